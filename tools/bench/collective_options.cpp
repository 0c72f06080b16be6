#include "tools/bench/collective_options.h"

#include <algorithm>

#include "lockstep/base/text.h"
#include "tools/bench/arguments.h"
#include "tools/bench/two_hosts.h"

namespace lockstep::bench {
namespace {

constexpr Bytes kMostBytes = Bytes::gib(16);

Result<std::vector<Bytes>> parse_sizes(const CollectiveOptions& options, const std::string& text) {
  if (options.op == CollectiveOp::kBarrier) return std::vector{Bytes{0}};
  std::vector<Bytes> sizes;
  for (const std::string& part : base::split(text, ',')) {
    const auto bytes = base::parse_bytes(part);
    if (!bytes || *bytes > kMostBytes) {
      return Status::invalid(
          cat("--bytes ", base::quoted(text), " is not a list of sizes such as 4KiB,1MiB (at most 16GiB)"));
    }
    const Bytes cut = bytes_of_case(options.op, *bytes, options.dtype, options.world());
    if (cut.value == 0) {
      return Status::invalid(cat("--bytes ", base::quoted(part), " has no ",
                                 collective::name_of(options.dtype), " for each of ", options.world(),
                                 " ranks"));
    }
    sizes.push_back(cut);
  }
  return sizes;
}

Result<DType> parse_type(std::string_view option, const std::string& text) {
  if (const auto dtype = parse_bench_type(text)) return *dtype;
  std::vector<std::string> names;
  names.reserve(kBenchTypes.size());
  for (const DType type : kBenchTypes) names.emplace_back(collective::name_of(type));
  return Status::invalid(cat(option, " ", base::quoted(text), " is not one of ", base::join(names)));
}

}  // namespace

Result<CollectiveOptions> read_arguments(CollectiveOp op, const CollectiveArguments& arguments) {
  CollectiveOptions options{.op = op,
                            .nproc = arguments.nproc,
                            .hosts = arguments.hosts,
                            .rounds = arguments.rounds,
                            .python = arguments.python,
                            .json = arguments.json,
                            .plot = arguments.plot};
  if (op == CollectiveOp::kSendRecv && options.world().value < 2) {
    return Status::invalid("send_recv needs at least two ranks: give a larger --nproc");
  }
  LOCKSTEP_ASSIGN(options.dtype, parse_type("--dtype", arguments.dtype));
  options.peer_dtype = options.dtype;
  if (!arguments.peer_dtype.empty()) {
    LOCKSTEP_ASSIGN(options.peer_dtype, parse_type("--peer-dtype", arguments.peer_dtype));
  }
  LOCKSTEP_ASSIGN(options.bytes, parse_sizes(options, arguments.bytes));
  LOCKSTEP_ASSIGN(options.memory, parse_choices("--memory", arguments.memory, {"resident", "foreign"}));
  if (op == CollectiveOp::kBarrier) options.memory = {"none"};
  if (!arguments.against.empty()) {
    LOCKSTEP_ASSIGN(options.against, parse_choices("--against", arguments.against, {"gloo", "mpi"}));
  }
  if (arguments.api == "tensor") {
    options.against.insert(options.against.begin(), "tensor");
  } else if (arguments.api != "core") {
    return Status::invalid(cat("--api ", base::quoted(arguments.api), " is neither core nor tensor"));
  }
  const bool with_mpi =
      std::find(options.against.begin(), options.against.end(), "mpi") != options.against.end();
  if (with_mpi && options.hosts > 1) {
    return Status::invalid("--against mpi is for one host: leave --hosts out, or compare with gloo alone");
  }
  LOCKSTEP_ASSIGN(options.binding, parse_binding(arguments.cpu_binding));
  if (!arguments.rate.empty()) {
    if (options.hosts == 1)
      return Status::invalid("--rate bounds the wire between two hosts: give --hosts 2");
    options.rate = parse_rate(arguments.rate);
    if (!options.rate) {
      return Status::invalid(cat("--rate ", base::quoted(arguments.rate), " is not a rate such as 1gbit"));
    }
  }
  return options;
}

}  // namespace lockstep::bench
