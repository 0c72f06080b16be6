#include "tools/bench/training_options.h"

#include "lockstep/base/text.h"
#include "tools/bench/arguments.h"
#include "tools/bench/training_case.h"

namespace lockstep::bench {

Result<TrainingOptions> read_arguments(const TrainingArguments& arguments) {
  TrainingOptions options{.nproc = arguments.nproc,
                          .threads = arguments.threads,
                          .batch = arguments.batch,
                          .model = base::split(arguments.model, ','),
                          .rounds = arguments.rounds,
                          .python = arguments.python,
                          .json = arguments.json,
                          .plot = arguments.plot};
  for (const std::string& model : options.model) {
    if (!parse_training_model(model)) {
      return Status::invalid(cat("--model ", base::quoted(arguments.model),
                                 " is not a list of resnet18, gpt-small and MLPs such as "
                                 "mlp-1024x8 (width from 1 to 16384, layers from 1 to 256)"));
    }
  }
  LOCKSTEP_ASSIGN(options.option, parse_choices("--option", arguments.option,
                                                {kTrainingOptions.begin(), kTrainingOptions.end()}));
  LOCKSTEP_ASSIGN(options.binding, parse_binding(arguments.cpu_binding));
  if (arguments.against.empty()) return options;
  LOCKSTEP_ASSIGN(const auto against, parse_choices("--against", arguments.against, {"plain", "torch"}));
  for (const std::string& peer : against) {
    options.against.push_back(peer);
    if (peer == "torch") options.against.emplace_back("torch_tuned");
  }
  return options;
}

}  // namespace lockstep::bench
