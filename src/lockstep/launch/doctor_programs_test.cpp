#include "lockstep/launch/doctor_programs.h"

#include <chrono>
#include <string>

#include "lockstep/testing/status_matchers.h"

namespace lockstep::launch {
namespace {

using namespace std::chrono_literals;
using ::testing::HasSubstr;

ProgramOutput printed(std::string text) { return {.wait_status = 0, .text = std::move(text)}; }
ProgramOutput failed(std::string text) { return {.wait_status = 1 << 8, .text = std::move(text)}; }
Status not_there() { return Status::unsupported("there is no such program"); }
bool flag(const Finding& finding, const char* name) { return std::get<bool>(finding.facts.at(name)); }

TEST(DoctorPrograms, ReadsWhatTorchCanDo) {
  const Finding finding = judge_torch(
      "python3", printed("a warning of some library\n"
                         R"({"torch": "2.9.0+cu128", "where": "/opt/torch", "cuda": "12.8", "devices": 2,)"
                         R"( "gloo": true, "mpi": false, "nccl": true})"));
  EXPECT_EQ(finding.health, Health::kOk);
  EXPECT_THAT(finding.found, HasSubstr("2.9.0+cu128 in /opt/torch, CUDA 12.8 with 2 devices, gloo, nccl"));
  EXPECT_TRUE(flag(finding, "nccl"));
  EXPECT_FALSE(flag(finding, "mpi"));
}

TEST(DoctorPrograms, TorchWithoutCuda) {
  const Finding finding = judge_torch(
      "python3", printed(R"({"torch": "2.9.0", "where": "/t", "cuda": null, "devices": 0, "gloo": true,)"
                         R"( "mpi": false, "nccl": false})"));
  EXPECT_EQ(finding.health, Health::kOk);
  EXPECT_THAT(finding.found, HasSubstr("no CUDA"));
}

TEST(DoctorPrograms, NoTorchIsFineBrokenTorchIsNot) {
  EXPECT_EQ(judge_torch("python3", printed(R"({"torch": null})")).health, Health::kOk);
  EXPECT_EQ(judge_torch("python3", not_there()).health, Health::kOk);
  const Finding broken =
      judge_torch("python3", failed("Traceback\nImportError: libcudart.so.12: cannot open"));
  EXPECT_EQ(broken.health, Health::kWarning);
  EXPECT_THAT(broken.found, HasSubstr("libcudart.so.12"));
  EXPECT_EQ(judge_torch("python3", Status::timeout("did not end")).health, Health::kWarning);
  for (const char* nonsense : {"", "hello", "[1]", "{", "{\"cuda\": 1}"}) {
    EXPECT_EQ(judge_torch("python3", printed(nonsense)).health, Health::kWarning) << nonsense;
  }
}

TEST(DoctorPrograms, AsksARealInterpreter) {
  // -S hides the site packages, so what this machine has installed does not matter.
  const Result<ProgramOutput> answer =
      run_program({"python3", "-S", "-c", "print(1)"}, Clock::steady().in(60s));
  ASSERT_OK(answer);
  EXPECT_TRUE(answer->succeeded());
  EXPECT_EQ(check_torch("no-such-python", Clock::steady().in(60s)).health, Health::kOk);
  EXPECT_EQ(check_torch("false", Clock::steady().in(60s)).health, Health::kWarning);
}

TEST(DoctorPrograms, GpusByNameOrWhyNot) {
  const Finding two =
      judge_gpu(2, printed("NVIDIA H100, 81559 MiB, 550.54\nNVIDIA H100, 81559 MiB, 550.54\n"));
  EXPECT_EQ(two.health, Health::kOk);
  EXPECT_EQ(std::get<std::int64_t>(two.facts.at("count")), 2);
  EXPECT_EQ(judge_gpu(0, not_there()).health, Health::kOk);
  EXPECT_EQ(judge_gpu(1, not_there()).health, Health::kWarning);
  const Finding mismatch = judge_gpu(1, failed("Failed to initialize NVML: Driver/library version mismatch"));
  EXPECT_EQ(mismatch.health, Health::kWarning);
  EXPECT_THAT(mismatch.found, HasSubstr("version mismatch"));
}

TEST(DoctorPrograms, MpiByItsOwnWords) {
  EXPECT_EQ(judge_mpi(printed("mpirun (Open MPI) 4.1.4\n\nReport bugs to ...\n")).found,
            "mpirun (Open MPI) 4.1.4");
  EXPECT_EQ(judge_mpi(not_there()).health, Health::kOk);
  EXPECT_EQ(judge_mpi(failed("error while loading shared libraries")).health, Health::kWarning);
}

}  // namespace
}  // namespace lockstep::launch
