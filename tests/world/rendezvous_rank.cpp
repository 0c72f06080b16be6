// One rank for rendezvous_test.py: joins as its options and its environment say, prints what it got as one
// line of JSON, then obeys commands from stdin, each answered by one line. Ends, and leaves, at the end of
// stdin.
//
//   set KEY VALUE · get KEY SECONDS · leave · join · second (a join while the first is held) · fork
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <iostream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "lockstep/base/crypto.h"
#include "lockstep/base/text.h"
#include "lockstep/store/rendezvous.h"

namespace lockstep {
namespace {

using nlohmann::json;

json addresses_of(const std::vector<base::SocketAddress>& addresses) {
  json out = json::array();
  for (const auto& address : addresses) out.push_back(address.host());
  return out;
}

json to_json(const Status& status) {
  if (status.ok()) return {{"ok", true}};
  json missing = json::array();
  for (const Rank rank : status.cause().missing) missing.push_back(rank.value);
  return {{"ok", false},
          {"code", base::code_name(status.code())},
          {"failure", base::failure_name(status.failure())},
          {"message", status.message()},
          {"peer", status.cause().peer ? status.cause().peer->value : -1},
          {"host", status.cause().host},
          {"pid", status.cause().pid.value_or(0)},
          {"missing", missing}};
}

json to_json(const Rendezvous& job) {
  json members = json::array();
  for (const store::Member& member : job.members) {
    members.push_back({{"rank", member.rank.value},
                       {"pid", member.pid},
                       {"host", member.host.name},
                       {"addresses", addresses_of(member.addresses)}});
  }
  return {{"ok", true},
          {"rank", job.rank.value},
          {"world_size", job.world_size.value},
          {"local_rank", job.local_rank.value},
          {"local_size", job.local_size.value},
          {"job_id", job.job_id},
          {"epoch", job.epoch},
          {"secret", base::hex(base::sha256(job.secret.bytes()))},
          {"insecure", job.secret.is_insecure()},
          {"addresses", addresses_of(job.addresses)},
          {"store", job.store->description()},
          {"members", members}};
}

json to_json(const Result<Rendezvous>& job) { return job.ok() ? to_json(*job) : to_json(job.status()); }

void say(const json& answer) { std::cout << answer.dump() << std::endl; }

void ignore_signal(int) {}

// A hundred signals a second that interrupt every system call.
void storm() {
  struct sigaction action {};
  action.sa_handler = ignore_signal;  // without SA_RESTART
  sigaction(SIGALRM, &action, nullptr);
  const itimerval period{{0, 10'000}, {0, 10'000}};
  setitimer(ITIMER_REAL, &period, nullptr);
}

// What a forked child may do with its parent's rendezvous: get an error, and destroy it.
json fork_and_use(Result<Rendezvous>& job) {
  int ends[2];
  if (pipe(ends) != 0) return {{"ok", false}};
  const pid_t child = fork();
  if (child == 0) {
    const Status used = job->store->set("from the child", bytes_of("x"));
    const std::string text = to_json(used).dump();
    const bool told = write(ends[1], text.data(), text.size()) == static_cast<ssize_t>(text.size());
    job = Status::internal("destroyed");
    _exit(told ? 0 : 1);
  }
  close(ends[1]);
  std::string text;
  char buffer[4096];
  for (ssize_t n = 0; (n = read(ends[0], buffer, sizeof(buffer))) != 0;) {
    if (n > 0) text.append(buffer, static_cast<std::size_t>(n));
  }
  close(ends[0]);
  int status = 0;
  while (waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  return {{"ok", status == 0}, {"child", json::parse(text)}};
}

// As getline, but a signal is not the end.
bool read_line(std::string& line) {
  line.clear();
  while (true) {
    char byte = 0;
    const ssize_t count = read(STDIN_FILENO, &byte, 1);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) return false;
    if (byte == '\n') return true;
    line += byte;
  }
}

json obey(const std::string& line, const RendezvousOptions& options, const Environment& env,
          Result<Rendezvous>& job) {
  std::istringstream words(line);
  std::string command, key, value;
  words >> command >> key >> value;
  if (command == "set") return to_json(job->store->set(key, bytes_of(value)));
  if (command == "get") {
    const auto got = job->store->get(key, Clock::steady().in(std::chrono::seconds(std::stoi(value))));
    if (!got.ok()) return to_json(got.status());
    return {{"ok", true}, {"value", text_of(*got)}};
  }
  if (command == "leave") {
    job = Status::internal("left");
    return {{"ok", true}};
  }
  if (command == "join") {
    job = rendezvous(options, env);
    return to_json(job);
  }
  if (command == "second") return to_json(rendezvous(options, env));
  if (command == "fork") return fork_and_use(job);
  return {{"ok", false}, {"message", cat("unknown command ", line)}};
}

int run(int argc, char** argv) {
  RendezvousOptions options;
  for (int i = 1; i < argc; ++i) {
    const std::string option = argv[i];
    if (option == "--storm") {
      storm();
      continue;
    }
    const std::string value = i + 1 < argc ? argv[++i] : "";
    if (option == "--url") options.url = value;
    if (option == "--rank") options.rank = Rank{std::stoi(value)};
    if (option == "--world-size") options.world_size = WorldSize{std::stoi(value)};
    if (option == "--secret") options.secret.file = value;
  }
  const auto env = Environment::read();
  if (!env.ok()) {
    say(to_json(env.status()));
    return 2;
  }
  base::configure_logging(env->log);
  Result<Rendezvous> job = rendezvous(options, *env);
  say(to_json(job));
  const bool joined = job.ok();
  for (std::string line; read_line(line);) say(obey(line, options, *env, job));
  return joined ? 0 : 1;
}

}  // namespace
}  // namespace lockstep

int main(int argc, char** argv) { return lockstep::run(argc, argv); }
