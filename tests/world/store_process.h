// A `lockstep store` as a process, for tests. LOCKSTEP_COMMAND is the command's file.
#pragma once

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>

#include "lockstep/base/net.h"
#include "lockstep/base/text.h"
#include "lockstep/store/tcp_store.h"
#include "lockstep/testing/status_matchers.h"

namespace lockstep::store {

inline Deadline soon() { return Clock::steady().in(std::chrono::minutes(1)); }

// A `lockstep store` with its job "job". `limits` is a shell command that runs first, such as ulimit.
class StoreProcess {
 public:
  explicit StoreProcess(const std::string& limits = "true") : secret_(Secret::generate()) {
    static std::atomic<int> made{0};
    const std::filesystem::path folder = std::filesystem::temp_directory_path();
    secret_file_ = (folder / cat("lockstep-store-test-", getpid(), "-", made++)).string();
    EXPECT_OK(secret_.to_new_file(secret_file_));
    const std::string command =
        cat(limits, " && exec ", LOCKSTEP_COMMAND, " store --job-id job --secret-file ", secret_file_);
    int out[2];
    EXPECT_EQ(pipe2(out, O_CLOEXEC), 0);
    pid_ = fork();
    if (pid_ == 0) {
      dup2(out[1], STDOUT_FILENO);
      execl("/bin/sh", "sh", "-c", command.c_str(), static_cast<char*>(nullptr));
      _exit(127);
    }
    ::close(out[1]);
    std::string line;
    for (char c = 0; read(out[0], &c, 1) == 1 && c != '\n';) line += c;
    ::close(out[0]);
    const auto endpoint = base::parse_endpoint(line);
    EXPECT_OK(endpoint);
    endpoint_ = *endpoint;
  }
  ~StoreProcess() {
    if (pid_ > 0) end(SIGKILL);
    std::filesystem::remove(secret_file_);
  }

  void signal(int number) const { ASSERT_EQ(kill(pid_, number), 0); }
  // Returns once it has stopped: a process runs on for a while after kill(2).
  void stop() const {
    signal(SIGSTOP);
    int status = 0;
    ASSERT_EQ(waitpid(pid_, &status, WUNTRACED), pid_);
    ASSERT_TRUE(WIFSTOPPED(status));
  }
  void end(int number) {
    signal(number);
    int status = 0;
    EXPECT_EQ(waitpid(pid_, &status, 0), pid_);
    pid_ = -1;
  }
  std::unique_ptr<TcpStore> connect(LocalSocket local, const Deadline& deadline = soon()) const {
    auto store = TcpStore::connect(options(local), deadline);
    EXPECT_OK(store);
    return std::move(store).value();
  }
  TcpStoreOptions options(LocalSocket local) const {
    return {.endpoint = endpoint_,
            .job_id = "job",
            .secret = secret_,
            .timeout = std::chrono::minutes(1),
            .local_socket = local};
  }
  Result<base::UniqueFd> stranger() const {
    LOCKSTEP_ASSIGN(const auto address, base::SocketAddress::parse(endpoint_.host, endpoint_.port));
    return base::connect_to(address, soon(), base::OnRefused::kFail);
  }
  const base::Endpoint& endpoint() const { return endpoint_; }

  Bytes resident() const {
    std::ifstream statm(cat("/proc/", pid_, "/statm"));
    std::uint64_t pages = 0;
    statm >> pages >> pages;
    return Bytes(pages * static_cast<std::uint64_t>(sysconf(_SC_PAGESIZE)));
  }
  Duration cpu_time() const {
    std::int64_t nanos = 0;
    std::int64_t all = 0;
    // Of every thread: the loop has its own.
    for (const auto& task : std::filesystem::directory_iterator(cat("/proc/", pid_, "/task"))) {
      std::ifstream(task.path() / "schedstat") >> nanos;
      all += nanos;
    }
    return Duration(all);
  }

 private:
  const Secret secret_;
  std::string secret_file_;
  pid_t pid_ = -1;
  base::Endpoint endpoint_;
};

}  // namespace lockstep::store
