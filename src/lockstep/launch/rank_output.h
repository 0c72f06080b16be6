// One stream of one rank, from its pipe to where it goes: the console by lines, a log file byte for byte, and
// the memory of its last lines for the report.
//
// Thread safety: one thread.
#pragma once

#include <deque>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/base/status.h"
#include "lockstep/base/unique_fd.h"
#include "lockstep/launch/console.h"
#include "lockstep/launch/line_assembler.h"
#include "lockstep/launch/poller.h"

namespace lockstep::launch {

// The last lines of a stream, within a bound.
class Tail {
 public:
  static constexpr std::size_t kLines = 20;
  static constexpr std::size_t kLineLength = 400;
  void add(std::string_view line);
  std::vector<std::string> lines() const { return {lines_.begin(), lines_.end()}; }

 private:
  std::deque<std::string> lines_;
};

class RankOutput {
 public:
  struct Plan {
    Stream stream = Stream::kOut;
    bool shown = true;          // on the console
    std::string prefix = {};    // with its colours
    std::string log_path = {};  // empty: no file
  };
  // Opens the file and the pipe. The poller and the console outlive the result. kNoDescriptors says how many
  // are needed.
  static Result<std::unique_ptr<RankOutput>> open(Plan plan, Poller& poller, Console& console);
  ~RankOutput();
  RankOutput(const RankOutput&) = delete;
  RankOutput& operator=(const RankOutput&) = delete;

  // The end that the rank writes to; close_child_end() once it has been started.
  int child_end() const { return writer_.get(); }
  void close_child_end() { writer_.reset(); }
  // Stops and resumes reading; what the rank writes meanwhile stays in the pipe, and then holds the rank up.
  void set_paused(bool paused);
  // All writers have closed, and everything was passed on.
  bool finished() const { return !reader_; }
  // Reads what is there now, without waiting.
  void read_available();
  // The same, then gives the stream up although some process may still hold it.
  void abandon();
  std::vector<std::string> tail() const { return tail_.lines(); }
  const std::string& log_path() const { return plan_.log_path; }

 private:
  RankOutput(Plan plan, Poller& poller, Console& console, UniqueFd reader, UniqueFd writer, UniqueFd file);
  Status watch();
  void read_some();
  void take(std::string_view bytes);
  void write_log(std::string_view bytes);
  void show(std::string_view line);
  void finish();

  const Plan plan_;
  Poller& poller_;
  Console& console_;
  UniqueFd reader_;
  UniqueFd writer_;
  UniqueFd file_;
  bool paused_ = false;
  LineAssembler lines_;
  Tail tail_;
};

}  // namespace lockstep::launch
