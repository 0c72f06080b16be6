#include "tools/lockstep/bench_command.h"

#include "tools/bench/collective_bench.h"
#include "tools/bench/fingerprint_bench.h"
#include "tools/bench/launch_bench.h"
#include "tools/bench/store_bench.h"
#include "tools/bench/training_bench.h"

namespace lockstep::tools {

void add_bench_command(CLI::App& app, CommandContext& context) {
  CLI::App* group = app.add_subcommand("bench", "Measure, beside what others offer");
  bench::add_collective_benches(*group, context);
  bench::add_launch_bench(*group, context);
  bench::add_fingerprint_bench(*group, context);
  bench::add_store_bench(*group, context);
  bench::add_training_bench(*group, context);
}

}  // namespace lockstep::tools
