#include "lockstep/launch/doctor_programs.h"

#include <nlohmann/json.hpp>
#include <vector>

#include "lockstep/base/process.h"
#include "lockstep/base/text.h"
#include "lockstep/launch/local_setting.h"

namespace lockstep::launch {
namespace {

// The answer is the last line: what a library prints while it is imported comes before it.
constexpr const char* kTorchQuestion = R"(
import json, sys
try:
    import torch
except ModuleNotFoundError as error:
    if error.name != "torch":
        raise
    print(json.dumps({"torch": None}))
    sys.exit(0)
import torch.distributed as dist
have = dist.is_available()
print(json.dumps({
    "torch": torch.__version__,
    "where": torch.__path__[0],
    "cuda": torch.version.cuda,
    "devices": torch.cuda.device_count(),
    "gloo": bool(have and dist.is_gloo_available()),
    "mpi": bool(have and dist.is_mpi_available()),
    "nccl": bool(have and dist.is_nccl_available()),
}))
)";

std::string last_line(const std::string& text) {
  const std::string_view trimmed = base::trim(text);
  const std::size_t end = trimmed.rfind('\n');
  return std::string(end == std::string_view::npos ? trimmed : trimmed.substr(end + 1));
}

// Why asking failed, in words.
std::string failure_text(const Result<ProgramOutput>& answer) {
  if (answer.status().code() == Code::kTimeout) return "did not end in time and was killed";
  if (!answer.ok()) return std::string(answer.status().message());
  const std::string last = last_line(answer->text);
  return cat(base::exit_text(answer->wait_status), last.empty() ? "" : ": ",
             last.empty() ? "" : base::quoted(last));
}

Finding found_torch(const nlohmann::json& answer) {
  const auto yes = [&answer](const char* name) { return answer.value(name, false); };
  const std::string version = answer["torch"].get<std::string>();
  const std::string cuda = answer["cuda"].is_string() ? answer["cuda"].get<std::string>() : "";
  std::vector<std::string> backends;
  for (const char* name : {"gloo", "mpi", "nccl"}) {
    if (yes(name)) backends.push_back(name);
  }
  return {.topic = "torch",
          .found = cat(
              version, " in ", answer.value("where", ""), ", ",
              cuda.empty() ? "no CUDA" : cat("CUDA ", cuda, " with ", answer.value("devices", 0), " devices"),
              ", ", backends.empty() ? "no torch.distributed" : base::join(backends)),
          .facts = {{"version", version},
                    {"cuda", cuda},
                    {"devices", std::int64_t{answer.value("devices", 0)}},
                    {"gloo", yes("gloo")},
                    {"mpi", yes("mpi")},
                    {"nccl", yes("nccl")}}};
}

}  // namespace

Finding judge_torch(const std::string& python, const Result<ProgramOutput>& answer) {
  if (answer.status().code() == Code::kUnsupported) {
    return {.topic = "torch",
            .found = cat("not asked: there is no '", python, "'; C++ programs bring their libtorch")};
  }
  if (answer.ok() && answer->succeeded()) {
    const auto parsed = nlohmann::json::parse(last_line(answer->text), nullptr, false);
    if (parsed.is_object() && parsed.contains("torch") && parsed.contains("cuda")) return found_torch(parsed);
    if (parsed.is_object() && parsed.contains("torch")) {
      return {.topic = "torch", .found = cat(python, " has none; C++ programs bring their own libtorch")};
    }
  }
  return {.topic = "torch",
          .health = Health::kWarning,
          .found = cat("'import torch' in ", python, " ", failure_text(answer)),
          .advice = cat("Run it by hand: ", python, " -c 'import torch'. Only Python programs need it.")};
}

Finding check_torch(const std::string& python, const Deadline& deadline) {
  return judge_torch(python, run_program({python, "-c", kTorchQuestion}, deadline));
}

Finding judge_gpu(int devices, const Result<ProgramOutput>& answer) {
  if (answer.ok() && answer->succeeded()) {
    std::vector<std::string> names;
    for (const std::string& line : base::split(base::trim(answer->text), '\n')) {
      if (!base::trim(line).empty()) names.emplace_back(base::trim(line));
    }
    return {.topic = "gpu",
            .found = names.empty() ? "none" : base::join(names, "; "),
            .facts = {{"count", static_cast<std::int64_t>(names.size())}}};
  }
  if (devices == 0 && answer.status().code() == Code::kUnsupported) {
    return {.topic = "gpu", .found = "none", .facts = {{"count", std::int64_t{0}}}};
  }
  Finding finding{.topic = "gpu",
                  .health = Health::kWarning,
                  .found = cat(devices, " device files, but nvidia-smi: ", failure_text(answer)),
                  .facts = {{"count", std::int64_t{devices}}}};
  finding.advice = devices == 0
                       ? "The driver is installed but shows no device: pass one (docker run --gpus all)."
                       : "Install nvidia-smi of the driver's version, or reload the driver.";
  return finding;
}

Finding check_gpu(const Deadline& deadline) {
  return judge_gpu(
      count_gpu_devices(),
      run_program({"nvidia-smi", "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader"},
                  deadline));
}

Finding judge_mpi(const Result<ProgramOutput>& answer) {
  if (answer.status().code() == Code::kUnsupported) {
    return {.topic = "mpi", .found = "no mpirun; only the mpi backend needs it"};
  }
  if (answer.ok() && answer->succeeded()) {
    return {.topic = "mpi", .found = answer->first_line(), .facts = {{"version", answer->first_line()}}};
  }
  return {.topic = "mpi",
          .health = Health::kWarning,
          .found = cat("mpirun --version ", failure_text(answer)),
          .advice = "Reinstall it, or take it out of PATH: jobs under this mpirun will not start."};
}

Finding check_mpi(const Deadline& deadline) {
  return judge_mpi(run_program({"mpirun", "--version"}, deadline));
}

}  // namespace lockstep::launch
