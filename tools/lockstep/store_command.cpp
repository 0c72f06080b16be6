#include "tools/lockstep/store_command.h"

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <iostream>
#include <limits>
#include <memory>

#include "lockstep/base/net.h"
#include "lockstep/base/process.h"
#include "lockstep/base/secret.h"
#include "lockstep/base/text.h"
#include "lockstep/store/job_secret.h"
#include "lockstep/store/tcp_server.h"

namespace lockstep::tools {
namespace {

struct StoreArguments {
  std::string host = "127.0.0.1";
  std::uint16_t port = 0;
  std::string secret_file;
  std::vector<std::string> jobs = {"default"};
  std::uint64_t epoch = 0;
  int world_size = 256;
  bool insecure = false;
};

// SIGTERM and SIGINT are blocked, in the server's thread too, until someone waits for them.
class StopSignals {
 public:
  StopSignals() {
    ::sigemptyset(&set_);
    ::sigaddset(&set_, SIGTERM);
    ::sigaddset(&set_, SIGINT);
    ::pthread_sigmask(SIG_BLOCK, &set_, nullptr);
  }
  int wait() const {
    int signal = 0;
    while (::sigwait(&set_, &signal) == EINTR) {
    }
    return signal;
  }

 private:
  sigset_t set_{};
};

Result<Secret> secret_of(const StoreArguments& arguments, const Environment& environment) {
  if (arguments.insecure && !arguments.secret_file.empty()) {
    return Status::invalid("--insecure and --secret-file exclude each other");
  }
  if (arguments.insecure) return Secret::insecure();
  store::SecretSources sources;
  if (!arguments.secret_file.empty()) sources.file = arguments.secret_file;
  LOCKSTEP_ASSIGN(std::optional<Secret> secret, store::find_secret(sources, environment));
  if (secret) return *std::move(secret);
  if (environment.insecure) return Secret::insecure();
  return Status::invalid(
      "a store needs a secret: make one with 'lockstep secret FILE' and give --secret-file FILE here and "
      "LOCKSTEP_SECRET_FILE to the ranks, or say --insecure");
}

Result<store::TcpServerOptions> server_options(const StoreArguments& arguments,
                                               const Environment& environment) {
  for (const std::string& job : arguments.jobs) {
    if (std::ranges::count(arguments.jobs, job) > 1)
      return Status::invalid(
          cat("--job-id ", base::quoted(job), " is given twice: give each job a name of its own"));
  }
  if (!base::SocketAddress::parse(arguments.host, arguments.port).ok()) {
    return Status::invalid(cat("--host ", base::quoted(arguments.host),
                               " is not a numeric address of this host, such as 127.0.0.1 or ::1"));
  }
  LOCKSTEP_ASSIGN(const Secret secret, secret_of(arguments, environment));
  store::TcpServerOptions options;
  options.bind_host = arguments.host;
  options.port = arguments.port;
  if (secret.is_insecure()) options.open_to_all = store::OpenToAll::kAllow;
  for (const std::string& job : arguments.jobs) {
    options.tenants.push_back({.job_id = job,
                               .epoch = arguments.epoch,
                               .secret = secret,
                               .world = WorldSize{arguments.world_size}});
  }
  return options;
}

Result<int> serve(const StoreArguments& arguments, const CommandContext& context) {
  if (!context.environment.ok()) return context.environment.status();
  LOCKSTEP_ASSIGN(store::TcpServerOptions options, server_options(arguments, *context.environment));
  const bool insecure = options.tenants.front().secret.is_insecure();
  const StopSignals stop;
  const auto started = store::TcpStoreServer::start(std::move(options), context.clock);
  if (started.status().failure() == Failure::kPortTaken)
    return Status::invalid(cat(started.status().message(), ": choose another, or 0 to get a free one"));
  LOCKSTEP_TRY(started.status());
  const std::unique_ptr<store::TcpStoreServer>& server = *started;
  std::cout << server->address().text() << std::endl;
  std::cerr << "lockstep store: serving " << base::join(arguments.jobs) << " at " << server->address().text()
            << "; stop it with SIGTERM\n";
  if (insecure) {
    std::cerr << "lockstep store: warning: whoever reaches that address can join, read and write, because "
                 "insecure was asked for\n";
  }
  const int signal = stop.wait();
  server->close();
  std::cerr << "lockstep store: stopped by " << base::signal_name(signal) << '\n';
  return kExitOk;
}

}  // namespace

void add_store_command(CLI::App& app, CommandContext& context) {
  CLI::App* command = app.add_subcommand("store", "Serve a store on its own, until SIGTERM");
  command->footer(
      "Prints its address (HOST:PORT) to stdout once it serves. Give each rank LOCKSTEP_STORE=HOST:PORT,\n"
      "LOCKSTEP_JOB_ID, RANK and WORLD_SIZE, and the secret by LOCKSTEP_SECRET_FILE.\n"
      "Exit status: 0 after SIGTERM or SIGINT, 2 for bad input (an address in use included), 1 if it cannot "
      "serve.");
  auto arguments = std::make_shared<StoreArguments>();
  command->add_option("--host", arguments->host, "The one address to listen on (127.0.0.1)")
      ->type_name("ADDRESS");
  add_integer(*command, "--port", arguments->port, "0 picks a free one (0)", {0, 65535})->type_name("PORT");
  command->add_option("--job-id", arguments->jobs, "The job to serve; may be repeated (default)")
      ->type_name("ID")
      ->expected(1)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  add_integer(*command, "--epoch", arguments->epoch, "The try of the job that is served (0)",
              {0, std::numeric_limits<std::uint64_t>::max()});
  add_integer(*command, "--world-size", arguments->world_size, "How many ranks a job may have (256)",
              {1, 32768});
  command->add_option("--secret-file", arguments->secret_file, "The job's secret (LOCKSTEP_SECRET_FILE)")
      ->type_name("FILE");
  command->add_flag("--insecure", arguments->insecure, "Serve anyone who can reach the port");
  on_run(*command, context, [arguments, &context] { return serve(*arguments, context); });
}

}  // namespace lockstep::tools
