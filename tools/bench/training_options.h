// What `lockstep bench ddp` is told, read and checked. Pure.
#pragma once

#include <string>
#include <vector>

#include "lockstep/base/status.h"
#include "lockstep/base/topology.h"

namespace lockstep::bench {

// As typed.
struct TrainingArguments {
  int nproc = 2;
  int threads = 1;
  int batch = 0;
  std::string model = "mlp-512x4,mlp-1024x8";
  std::string option = "default";
  std::string against = {};
  int rounds = 7;
  std::string cpu_binding = "none";
  std::string python = {};
  std::string json = {};
  std::string plot = {};
};

struct TrainingOptions {
  int nproc = 2;
  int threads = 1;                        // of each rank of every side
  int batch = 0;                          // examples of each rank; 0: the model's own number
  std::vector<std::string> model = {};    // names of training_case.h
  std::vector<std::string> option = {};   // of kTrainingOptions
  std::vector<std::string> against = {};  // "plain", "torch", "torch_tuned"
  int rounds = 7;
  base::Binding binding = base::Binding::kNone;
  std::string python = {};  // whose torch is measured; empty: the one that is found
  std::string json = {};    // where to write; empty: nowhere
  std::string plot = {};
};

// kInvalid with one sentence that names the option.
Result<TrainingOptions> read_arguments(const TrainingArguments& arguments);

}  // namespace lockstep::bench
