// segfuse._native: what the doctor knows, for those of its parts that watch PyTorch.

#include "doctor/bind.h"

#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <cstddef>
#include <cstdint>
#include <exception>
#include <span>
#include <string>
#include <tuple>
#include <vector>

#include "segfuse/doctor/numerics.h"
#include "segfuse/doctor/streams.h"
#include "segfuse/error.h"

namespace segfuse::python {

namespace nb = nanobind;
using namespace nb::literals;

namespace {

/// First byte of the allocation, first byte, bytes, whether it is written.
using Use = std::tuple<std::uintptr_t, std::uintptr_t, std::size_t, bool>;

/// For the recorder of PyTorch's operations (segfuse/torch/_watch/recorder), which is not linked
/// with this. Whether it could be enqueued.
int magnitudes(int device, void* stream, const MagnitudeOf* tensors, std::size_t count,
               float* broken, int only_if_broken) noexcept {
  try {
    enqueue_magnitudes(device, stream, {tensors, count}, {broken, only_if_broken != 0});
    return 1;
  } catch (const std::exception&) {
    return 0;
  }
}

TracedUse use_of(const Use& use) {
  return {std::get<0>(use), std::get<1>(use), std::get<2>(use), std::get<3>(use)};
}

void operation(StreamTrace& trace, std::uintptr_t stream, const std::string& name,
               const std::string& place, const std::vector<Use>& uses) {
  std::vector<TracedUse> traced;
  traced.reserve(uses.size());
  for (const Use& use : uses) traced.push_back(use_of(use));
  trace.operation(stream, name, place, traced);
}

std::string cause_of_number(const std::string& operation, const std::string& dtype, bool nan,
                            bool gradient, const std::vector<double>& operands) {
  return numerics_cause(operation, dtype_from_name(dtype), nan, gradient, operands);
}

/// By the name that reports have for it.
std::string cause_of_fault(const std::string& fault, const std::string& operation) {
  for (const NumericsFault one : {NumericsFault::kNaN, NumericsFault::kCast,
                                  NumericsFault::kNondeterminism, NumericsFault::kUnwritten})
    if (numerics_fault_name(one) == fault) return numerics_cause(one, operation);
  throw InternalError("there is no fault '" + fault + "'");
}

}  // namespace

void bind_doctor(nb::module_& m) {
  m.def("magnitudes_address", [] { return reinterpret_cast<std::uintptr_t>(&magnitudes); });
  m.def("numerics_cause", &cause_of_number, "operation"_a, "dtype"_a, "nan"_a, "gradient"_a,
        "operands"_a);
  m.def("fault_cause", &cause_of_fault, "fault"_a, "operation"_a);
  nb::class_<StreamTrace>(m, "StreamTrace")
      .def(nb::init<>())
      .def("name_stream", &StreamTrace::name_stream, "stream"_a, "name"_a)
      .def("operation", &operation, "stream"_a, "name"_a, "place"_a, "uses"_a)
      .def(
          "host_use",
          [](StreamTrace& trace, const std::string& place, const Use& use) {
            trace.host_use(place, use_of(use));
          },
          "place"_a, "use"_a)
      .def("record", &StreamTrace::record, "stream"_a, "event"_a, "place"_a)
      .def("wait", &StreamTrace::wait, "stream"_a, "event"_a, "place"_a)
      .def("destroy_event", &StreamTrace::destroy_event, "event"_a)
      .def("synchronize_stream", &StreamTrace::synchronize_stream, "stream"_a)
      .def("synchronize_event", &StreamTrace::synchronize_event, "event"_a)
      .def("synchronize_device", &StreamTrace::synchronize_device)
      .def("allocate", &StreamTrace::allocate, "block"_a, "what"_a, "place"_a)
      .def("record_stream", &StreamTrace::record_stream, "block"_a, "stream"_a)
      .def("release", &StreamTrace::release, "block"_a, "place"_a)
      .def("count", &StreamTrace::count)
      .def("text", [](const StreamTrace& t) { return stream_report_text(t.report("")); })
      .def("json", [](const StreamTrace& t) { return stream_report_json(t.report("")); });
}

}  // namespace segfuse::python
