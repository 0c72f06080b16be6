// The Python module lockstep_torch._C.
#include <pybind11/chrono.h>
#include <torch/csrc/utils/pybind.h>

#include <optional>
#include <string>
#include <torch/csrc/distributed/c10d/Types.hpp>
#include <vector>

#include "extension/interrupts.h"
#include "extension/lockstep_store.h"
#include "extension/process_group.h"
#include "extension/trace.h"
#include "extension/worlds.h"

namespace lockstep::python {
namespace {

namespace py = pybind11;
using std::chrono::milliseconds;
using ReleaseGil = py::call_guard<py::gil_scoped_release>;

milliseconds whole(std::chrono::duration<float> seconds) {
  return std::chrono::duration_cast<milliseconds>(seconds);
}

// What torch asks of a backend that is registered with its extended interface.
c10::intrusive_ptr<ProcessGroupLockstep> create(const c10d::DistributedBackendOptions& given,
                                                const std::optional<OptionsPtr>& options,
                                                bool rank_0_serves) {
  GroupRequest request{
      .store = given.store,
      .rank = given.group_rank,
      .size = given.group_size,
      .name = given.group_id,
      // A copy: the same may be given to several groups.
      .options = options ? c10::make_intrusive<Options>(**options) : c10::make_intrusive<Options>(),
      .rank_0_serves = rank_0_serves};
  request.options->timeout = whole(given.timeout);
  for (const std::int64_t rank : given.global_ranks_in_group)
    request.members.push_back(static_cast<int>(rank));
  return ProcessGroupLockstep::create(request);
}

void bind_process_group(py::module_& module) {
  py::class_<Options, OptionsPtr, c10d::Backend::Options>(
      module, "Options", "What may be said of a world, as pg_options of init_process_group.")
      .def(py::init([] { return c10::make_intrusive<Options>(); }))
      .def_readwrite("stall_after", &Options::stall_after,
                     "A rank that does not move for so long is lost; None: 5 seconds.")
      .def_readwrite("heap_capacity", &Options::heap_capacity,
                     "Address space in bytes for a rank's shared memory; None: 64 GiB.")
      .def_readwrite("threads", &Options::threads,
                     "Threads that a rank uses for a large operation; None: what cores are left over.");
  py::class_<ProcessGroupLockstep, c10::intrusive_ptr<ProcessGroupLockstep>, c10d::Backend>(
      module, "ProcessGroupLockstep")
      .def(py::init(
               [](const c10::intrusive_ptr<c10d::Store>& store, int rank, int size, milliseconds timeout) {
                 // No group of torch's: its ranks are nobody's but its own.
                 const auto options = c10::make_intrusive<Options>(timeout);
                 return c10::make_intrusive<ProcessGroupLockstep>(
                     make_world({.store = store, .rank = rank, .size = size, .options = options}), options);
               }),
           py::arg("store"), py::arg("rank"), py::arg("size"), py::arg("timeout") = kBackendDefaultTimeout,
           ReleaseGil())
      .def_property_readonly("options", &ProcessGroupLockstep::getBackendOptions)
      .def("_set_default_timeout", &ProcessGroupLockstep::setTimeout, py::arg("timeout"), ReleaseGil())
      .def("get_error", &ProcessGroupLockstep::getError, ReleaseGil())
      .def("set_profiling_name", &ProcessGroupLockstep::set_profiling_name, py::arg("name"))
      .def(
          "monitored_barrier",
          [](ProcessGroupLockstep& group, std::optional<milliseconds> timeout, bool wait_all_ranks) {
            c10d::BarrierOptions options;
            if (timeout) options.timeout = *timeout;
            group.monitoredBarrier(options, wait_all_ranks);
          },
          py::arg("timeout") = std::nullopt, py::arg("wait_all_ranks") = false, ReleaseGil())
      .def(
          "empty_resident",
          [](ProcessGroupLockstep& group, const std::vector<std::int64_t>& sizes, at::ScalarType type) {
            return group.empty_resident(sizes, type);
          },
          py::arg("sizes"), py::arg("dtype"), ReleaseGil());
  module.def("is_of_rendezvous", &TorchStore::is_of_rendezvous, py::arg("store"));
  module.def("leave_all", &leave_all, ReleaseGil());
  module.def("create", &create, py::arg("dist_backend_opts"), py::arg("pg_options") = std::nullopt,
             py::arg("rank_0_serves") = false, ReleaseGil());
}

py::dict entry_of(const Trace::Entry& entry) {
  const TracedOperation& operation = entry.operation;
  const bool ended = entry.state != Trace::State::kStarted;
  return py::dict(py::arg("record_id") = entry.id, py::arg("group") = operation.group->name,
                  py::arg("name") = operation.name, py::arg("peer") = operation.peer,
                  py::arg("sequence") = operation.sequence, py::arg("timeout_ms") = operation.timeout_ms,
                  py::arg("input_sizes") = operation.inputs.sizes(),
                  py::arg("input_dtypes") = operation.inputs.types(),
                  py::arg("output_sizes") = operation.outputs.sizes(),
                  py::arg("output_dtypes") = operation.outputs.types(),
                  py::arg("completed") = entry.state == Trace::State::kCompleted, py::arg("ended") = ended,
                  py::arg("started_ns") = entry.started_ns, py::arg("ended_ns") = entry.ended_ns,
                  py::arg("description") = operation.group->description,
                  py::arg("ranks") = operation.group->ranks, py::arg("rank") = operation.group->rank);
}

py::list entries_of(const Trace& trace) {
  py::list all;
  for (const Trace::Entry& entry : trace.entries()) all.append(entry_of(entry));
  return all;
}

void bind_trace(py::module_& module) {
  module.def("traced_collectives", [] { return entries_of(Trace::of_collectives()); });
  module.def("traced_messages", [] { return entries_of(Trace::of_messages()); });
}

void bind_store(py::module_& module) {
  py::object torch_store = py::module_::import("torch._C._distributed_c10d").attr("Store");
  py::class_<LockstepStore, c10::intrusive_ptr<LockstepStore>>(
      module, "Store", torch_store,
      "A store of Lockstep's as torch's: its ranks have met by a rendezvous of Lockstep's, with its secret.")
      .def(py::init([](const std::string& url, std::optional<int> rank, std::optional<int> world_size,
                       milliseconds timeout) {
             return LockstepStore::join(
                 {.url = url, .rank = rank, .world_size = world_size, .timeout = timeout});
           }),
           py::arg("url") = "env://", py::arg("rank") = std::nullopt, py::arg("world_size") = std::nullopt,
           py::arg("timeout") = c10d::Store::kDefaultTimeout, ReleaseGil())
      .def_property_readonly("rank", &LockstepStore::rank)
      .def_property_readonly("world_size", &LockstepStore::world_size);
}

}  // namespace

PYBIND11_MODULE(_C, module) {
  py::module_::import("torch");
  module.attr("built_for_torch") = LOCKSTEP_TORCH_VERSION;
  module.attr("__version__") = LOCKSTEP_VERSION;
  bind_process_group(module);
  bind_store(module);
  bind_trace(module);
}

}  // namespace lockstep::python
