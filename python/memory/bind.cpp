// segfuse._native: memory for PyTorch. PyTorch itself calls the C functions of callbacks.h.

#include "memory/bind.h"

#include <nanobind/stl/map.h>
#include <nanobind/stl/string.h>

#include <cstdint>
#include <map>
#include <string>

#include "memory/callbacks.h"
#include "segfuse/doctor/memory.h"
#include "segfuse/memory.h"

namespace segfuse::python {

namespace nb = nanobind;
using namespace nb::literals;

namespace {

void* stream_of(std::uintptr_t number) { return reinterpret_cast<void*>(number); }

template <class Function>
std::uintptr_t address(Function* function) {
  return reinterpret_cast<std::uintptr_t>(function);
}

/// By the name of PyTorch's setter, where there is one.
std::map<std::string, std::uintptr_t> callbacks() {
  return {{"allocate", address(&segfuse_torch_allocate)},
          {"release", address(&segfuse_torch_release)},
          {"set_record_stream_fn", address(&segfuse_torch_record_stream)},
          {"set_reset_fn", address(&segfuse_torch_empty_cache)},
          {"set_memory_fraction_fn", address(&segfuse_torch_memory_fraction)},
          {"set_begin_allocate_to_pool", address(&segfuse_torch_begin_pool)},
          {"set_end_allocate_to_pool_fn", address(&segfuse_torch_end_pool)},
          {"set_release_pool", address(&segfuse_torch_release_pool)}};
}

std::map<std::string, std::uint64_t> statistics(int device) {
  const tensor_memory::Statistics now = tensor_memory::statistics(device);
  return {
      {"held", now.held},           {"peak_held", now.peak_held}, {"live", now.live},
      {"requested", now.requested}, {"blocks", now.blocks},       {"limit", now.limit},
      {"grown", now.grown},         {"waits", now.waits},         {"host_waits", now.host_waits}};
}

}  // namespace

void bind_memory(nb::module_& m) {
  const nb::call_guard<nb::gil_scoped_release> waits;
  tensor_memory::on_out_of_memory(&segfuse_torch_out_of_memory);
  m.def("memory_callbacks", &callbacks);
  m.def("memory_abandon_captures", &tensor_memory::abandon_captures);
  m.def("memory_out_of_memory", [] { return address(&segfuse_torch_out_of_memory); });
  m.def(
      "memory_enter",
      [](int device, std::uintptr_t stream) { tensor_memory::enter(device, stream_of(stream)); },
      "device"_a, "stream"_a);
  m.def(
      "memory_mark",
      [](int device, std::uintptr_t stream) { tensor_memory::mark(device, stream_of(stream)); },
      "device"_a, "stream"_a);
  m.def("memory_mark_all", &tensor_memory::mark_all);
  m.def("memory_limit", [](std::size_t bytes) { tensor_memory::set_limit(bytes); }, "bytes"_a);
  m.def("memory_trim", &tensor_memory::trim, waits);
  m.def("memory_statistics", &statistics, "device"_a);
  m.def("memory_reset_peaks", &tensor_memory::reset_peaks, "device"_a);
  m.def("memory_keep_history", &tensor_memory::keep_history, "device"_a, "events"_a);
  m.def("memory_record", &tensor_memory_record, "device"_a);
}

}  // namespace segfuse::python
