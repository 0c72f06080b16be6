#include "lockstep/base/error_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <nlohmann/json.hpp>

#include "lockstep/base/process.h"
#include "lockstep/base/text.h"
#include "lockstep/base/unique_fd.h"

namespace lockstep::base {
namespace {

using nlohmann::json;

constexpr std::string_view kDescriptorFolder = "/proc/self/fd/";
constexpr std::size_t kMaxErrorFile = 1U << 20;
constexpr auto kCodes = std::to_array({Code::kInvalid, Code::kTimeout, Code::kDisconnected, Code::kAborted,
                                       Code::kUnsupported, Code::kInternal});

Code code_from_name(std::string_view name) {
  for (const Code code : kCodes) {
    if (code_name(code) == name) return code;
  }
  return Code::kInternal;
}

json to_json(const Cause& cause) {
  json out = json::object();
  if (cause.rank) out["rank"] = cause.rank->value;
  if (cause.peer) out["peer"] = cause.peer->value;
  if (!cause.op.empty()) out["op"] = cause.op;
  if (cause.sequence) out["sequence"] = *cause.sequence;
  if (!cause.group.empty()) out["group"] = cause.group;
  if (!cause.host.empty()) out["host"] = cause.host;
  if (cause.pid) out["pid"] = *cause.pid;
  for (const Rank rank : cause.missing) out["missing"].push_back(rank.value);
  return out;
}

// Wrong types are left out rather than refused: a report with less is better than none.
template <typename T>
std::optional<T> field(const json& object, const char* name) {
  const auto found = object.find(name);
  if (found == object.end()) return std::nullopt;
  if constexpr (std::is_same_v<T, std::string>) {
    if (!found->is_string()) return std::nullopt;
  } else {
    if (!found->is_number_integer()) return std::nullopt;
  }
  return found->template get<T>();
}

std::optional<Rank> rank_field(const json& object, const char* name) {
  const auto value = field<int>(object, name);
  return value ? std::optional(Rank{*value}) : std::nullopt;
}

Cause cause_from(const json& object) {
  Cause cause;
  if (!object.is_object()) return cause;
  cause.rank = rank_field(object, "rank");
  cause.peer = rank_field(object, "peer");
  cause.op = field<std::string>(object, "op").value_or("");
  cause.sequence = field<std::uint64_t>(object, "sequence");
  cause.group = field<std::string>(object, "group").value_or("");
  cause.host = field<std::string>(object, "host").value_or("");
  cause.pid = field<int>(object, "pid");
  if (const auto missing = object.find("missing"); missing != object.end() && missing->is_array()) {
    for (const json& rank : *missing) {
      if (rank.is_number_integer()) cause.missing.emplace_back(rank.get<int>());
    }
  }
  return cause;
}

// {"message": {"message": "...", "extraInfo": {"py_callstack": "...", "timestamp": "..."}}}
std::optional<ErrorRecord> from_torch(const json& object) {
  const auto message = object.find("message");
  if (message == object.end()) return std::nullopt;
  std::string text;
  if (message->is_string()) {
    text = message->get<std::string>();
  } else if (message->is_object()) {
    text = field<std::string>(*message, "message").value_or("");
  }
  if (text.empty()) return std::nullopt;
  return ErrorRecord{.status = Status(Code::kInternal, std::move(text))};
}

Result<std::string> read_bounded(const std::string& path) {
  const UniqueFd file(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!file) return Status::from_errno(cat("the error file ", path, " cannot be read"), errno);
  std::string text;
  std::array<char, 4096> buffer;
  for (;;) {
    const ssize_t got = read(file.get(), buffer.data(), buffer.size());
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return Status::from_errno(cat("the error file ", path, " cannot be read"), errno);
    if (got == 0) return text;
    text.append(buffer.data(), static_cast<std::size_t>(got));
    if (text.size() > kMaxErrorFile) return Status::invalid(cat("the error file ", path, " is above 1 MiB"));
  }
}

Status write_whole(int fd, std::string_view text) {
  while (!text.empty()) {
    const ssize_t wrote = write(fd, text.data(), text.size());
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote < 0) return Status::from_errno("the error file cannot be written", errno);
    text.remove_prefix(static_cast<std::size_t>(wrote));
  }
  return {};
}

// An inherited memfd has no folder for a draft: one write, unless there is something already.
Status write_to_descriptor(const std::string& path, std::string_view text) {
  const UniqueFd file(open(path.c_str(), O_WRONLY | O_CLOEXEC));
  struct stat info {};
  if (!file || fstat(file.get(), &info) != 0) {
    return Status::from_errno(cat("the error file ", path, " cannot be opened"), errno);
  }
  return info.st_size > 0 ? Status() : write_whole(file.get(), text);
}

}  // namespace

std::string error_to_json(const ErrorRecord& record) {
  const Status& status = record.status;
  json out = {{"lockstep_error", 1},
              {"code", code_name(status.code())},
              {"failure", failure_name(status.failure())},
              {"message", status.message()},
              {"cause", to_json(status.cause())},
              {"where", record.where.empty() ? status.where() : record.where},
              {"pid", record.pid},
              {"host", record.host}};
  return out.dump(2, ' ', false, json::error_handler_t::replace);
}

Result<ErrorRecord> error_from_json(std::string_view text) {
  const json object = json::parse(text, nullptr, false);
  if (!object.is_object()) return Status::invalid("an error record is not a JSON object");
  if (!object.contains("lockstep_error")) {
    auto record = from_torch(object);
    if (!record) return Status::invalid("an error record has no message");
    return *std::move(record);
  }
  Cause cause = cause_from(object.value("cause", json::object()));
  cause.failure =
      failure_from_name(field<std::string>(object, "failure").value_or("")).value_or(Failure::kNone);
  return ErrorRecord{.status = Status(code_from_name(field<std::string>(object, "code").value_or("")),
                                      field<std::string>(object, "message").value_or(""), std::move(cause)),
                     .where = field<std::string>(object, "where").value_or(""),
                     .pid = field<int>(object, "pid").value_or(0),
                     .host = field<std::string>(object, "host").value_or("")};
}

Status write_error_file(const std::string& path, const Status& status) {
  LOCKSTEP_CHECK(!status.ok(), "an error file needs an error");
  const std::string text =
      error_to_json({.status = status, .where = status.where(), .pid = getpid(), .host = host_name()});
  if (path.starts_with(kDescriptorFolder)) return write_to_descriptor(path, text);
  const std::string draft = cat(path, ".", getpid(), ".tmp");
  UniqueFd file(open(draft.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600));
  if (!file) return Status::from_errno(cat("the error file ", path, " cannot be made"), errno);
  Status written = write_whole(file.get(), text);
  file.reset();
  // link() does not replace, so the first error stays.
  if (written.ok() && link(draft.c_str(), path.c_str()) != 0 && errno != EEXIST) {
    written = Status::from_errno(cat("the error file ", path, " cannot be made"), errno);
  }
  unlink(draft.c_str());
  return written;
}

ErrorNote::ErrorNote(const Environment& environment) : path_(environment.error_file.value_or("")) {
  if (path_.starts_with(kDescriptorFolder)) path_.clear();
}

void ErrorNote::write(const Status& status) const {
  if (!path_.empty()) (void)write_error_file(path_, status);
}

void ErrorNote::withdraw() const {
  if (!path_.empty()) unlink(path_.c_str());
}

Result<ErrorRecord> read_error_file(const std::string& path) {
  LOCKSTEP_ASSIGN(const std::string text, read_bounded(path));
  auto record = error_from_json(text);
  if (!record.ok()) return record.status().with_prefix(cat(path, ": "));
  return record;
}

}  // namespace lockstep::base
