// The extension module segfuse._native: thin, checked calls that python/segfuse/ builds its
// functions from. Not a public interface.

#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <cstring>

#include "calls.h"
#include "doctor/bind.h"
#include "memory/bind.h"
#include "models.h"
#include "programs.h"
#include "segfuse/model.h"
#include "segfuse/version.h"
#include "xla/handlers.h"

namespace segfuse::python {
namespace {

using namespace nb::literals;

/// Names of files in a message may hold any byte; Python has those as it has them in paths.
void set_error(PyObject* type, const char* text) {
  const nb::object message = nb::steal(
      PyUnicode_DecodeUTF8(text, static_cast<Py_ssize_t>(std::strlen(text)), "surrogateescape"));
  if (message.is_valid()) PyErr_SetObject(type, message.ptr());
}

/// Raises the classes of segfuse/_errors.py for those of segfuse/error.h, and InternalError for any
/// other exception of C++.
void translate_error(const std::exception_ptr& pointer, void*) {
  try {
    std::rethrow_exception(pointer);
  } catch (const Interrupted& error) {
    PyErr_SetString(PyExc_KeyboardInterrupt, error.what());
  } catch (const Error& error) {
    const char* name = "InternalError";
    if (error.exit_code() == ExitCode::kUsage) name = "UsageError";
    if (error.exit_code() == ExitCode::kData) name = "DataError";
    if (error.exit_code() == ExitCode::kDevice) name = "DeviceError";
    const nb::object type = nb::module_::import_("segfuse._errors").attr(name);
    set_error(type.ptr(), error.what());
  } catch (const nb::python_error&) {
    throw;
  } catch (const nb::builtin_exception&) {
    throw;
  } catch (const std::bad_alloc&) {
    throw;  // a MemoryError
  } catch (const std::exception& error) {
    const nb::object type = nb::module_::import_("segfuse._errors").attr("InternalError");
    PyErr_Format(type.ptr(), "unexpected: %s; this is a bug in segfuse; please report it",
                 error.what());
  }
}

/// With K = 1, a linear chain, every frame is a segment.
semicrf::LabelRules label_rules(std::int64_t max_duration, std::int64_t classes,
                                std::int64_t ignore, bool split) {
  const semicrf::LongRuns long_runs =
      split || max_duration == 1 ? semicrf::LongRuns::kSplit : semicrf::LongRuns::kError;
  return {max_duration, classes, ignore, long_runs};
}

Segments make_segments_from_labels(nb::handle labels, nb::handle lengths, std::int64_t max_duration,
                                   std::int64_t classes, std::int64_t ignore, bool split) {
  return segments_from_labels(labels, lengths, label_rules(max_duration, classes, ignore, split));
}

void make_segments_on_device(nb::handle labels, nb::handle lengths, std::int64_t max_duration,
                             std::int64_t classes, std::int64_t ignore, bool split,
                             std::uintptr_t stream, nb::handle row_pointer, nb::handle start,
                             nb::handle duration, nb::handle label, nb::handle frames) {
  segments_on_device(labels, lengths, label_rules(max_duration, classes, ignore, split), stream,
                     row_pointer, start, duration, label, frames);
}

template <class T>
std::vector<T> copy(const semicrf::View<const T, 1>& view) {
  std::vector<T> values;
  for (std::int64_t i = 0; i < view.extent(0); ++i) values.push_back(view(i));
  return values;
}

nb::tuple arrays_of(const Segments& segments) {
  segments.need_device(Device{nb::device::cpu::value, 0});
  const semicrf::SegmentationsView y = segments.view();
  return to_numpy({copy(y.row_pointer), copy(y.start), copy(y.duration), copy(y.label)});
}

void bind_problem(nb::module_& m) {
  nb::class_<Problem>(m, "Problem")
      .def(nb::init<nb::handle, nb::handle, nb::handle, nb::handle, nb::handle, nb::handle,
                    nb::handle, nb::handle, nb::handle, nb::handle, std::uintptr_t>(),
           "emission"_a.none(), "transition"_a.none(), "duration"_a.none(), "initial"_a.none(),
           "final"_a.none(), "start"_a.none(), "end"_a.none(), "segment_scores"_a.none(),
           "transition_scores"_a.none(), "lengths"_a.none(), "stream"_a)
      .def_prop_ro("dtype", &Problem::dtype)
      .def_prop_ro("batch", &Problem::batch)
      .def_prop_ro("frames", &Problem::frames)
      .def_prop_ro("classes", &Problem::classes)
      .def_prop_ro("max_duration", &Problem::max_duration);
}

void bind_segments(nb::module_& m) {
  nb::class_<Segments>(m, "Segments")
      .def(nb::init<nb::handle, nb::handle, nb::handle, nb::handle>(), "row_pointer"_a, "start"_a,
           "duration"_a, "label"_a)
      .def_static("from_labels", &make_segments_from_labels, "labels"_a, "lengths"_a.none(),
                  "max_duration"_a, "classes"_a, "ignore"_a, "split"_a)
      .def_prop_ro("num_segments",
                   [](const Segments& segments) { return segments.view().start.extent(0); })
      .def("arrays", &arrays_of)
      .def("frames", [](const Segments& segments) { return to_numpy(segments.frames()); })
      .def("write_labels", &labels_from_segments, "labels"_a, "ignore"_a);
}

void bind_scope(nb::module_& m) {
  nb::class_<Scope>(m, "Scope")
      .def(nb::init<nb::handle, nb::handle, nb::handle, nb::handle, nb::handle, nb::handle,
                    nb::handle>(),
           "allowed"_a.none(), "transition"_a.none(), "min_duration"_a.none(),
           "max_duration"_a.none(), "label"_a.none(), "boundary"_a.none(), "tail"_a.none())
      .def(nb::init<const Problem&, const Segments&, nb::handle>(), "problem"_a, "known"_a,
           "tail"_a.none());
}

void bind_calls(nb::module_& m) {
  m.def("set_threads", &set_threads, "threads"_a);
  m.def("get_threads", &get_threads);
  m.def("log_partition", &log_partition, "problem"_a, "scope"_a.none(), "log_partition"_a.none(),
        "gradients"_a.none(), "tail_gradient"_a.none(), "weights"_a.none());
  m.def("loss", &loss, "problem"_a, "gold"_a, "loss"_a.none(), "log_partition"_a.none(),
        "score"_a.none(), "gradients"_a.none(), "weights"_a.none());
  m.def("score", &score, "problem"_a, "segments"_a, "score"_a);
  m.def("posteriors", &posteriors, "problem"_a, "scope"_a.none(), "label"_a.none(),
        "start"_a.none(), "end"_a.none(), "boundary"_a.none(), "duration"_a.none(),
        "entropy"_a.none(), "log_partition"_a.none());
  m.def("segment_posteriors", &segment_posteriors, "problem"_a, "segments"_a, "probability"_a);
  m.def("viterbi", &viterbi, "problem"_a, "scope"_a.none(), "score"_a.none());
  m.def("viterbi_on_device", &viterbi_on_device, "problem"_a, "row_pointer"_a, "start"_a,
        "duration"_a, "label"_a, "score"_a.none());
  m.def("segments_on_device", &make_segments_on_device, "labels"_a, "lengths"_a.none(),
        "max_duration"_a, "classes"_a, "ignore"_a, "split"_a, "stream"_a, "row_pointer"_a,
        "start"_a, "duration"_a, "label"_a, "frames"_a.none());
  m.def("check_device", &check_device, "device"_a, "stream"_a);
  m.def("sample_prior", &sample_prior, "initial"_a.none(), "transition"_a, "duration"_a, "rows"_a,
        "min_frames"_a, "seed"_a);
}

void bind_inference(nb::module_& m) {
  m.def("partial_loss", &partial_loss, "problem"_a, "scope"_a, "loss"_a, "gradients"_a.none(),
        "tail_gradient"_a.none(), "weights"_a.none());
  m.def("derivatives_along", &derivatives_along, "problem"_a, "scope"_a, "partial"_a, "direction"_a,
        "other"_a.none(), "derivative"_a.none(), "curvature"_a.none(), "product"_a.none(),
        "tail_product"_a.none(), "weights"_a.none());
  m.def("sample", &sample, "problem"_a, "scope"_a, "n"_a, "seed"_a);
  m.def("k_best", &k_best, "problem"_a, "scope"_a, "n"_a);
  m.def("cross_entropy", &cross_entropy, "p"_a, "q"_a, "result"_a);
  m.def("kl", &kl, "p"_a, "q"_a, "result"_a);
  m.def("boundary_within", &boundary_within, "problem"_a, "scope"_a, "tolerance"_a,
        "probability"_a);
  m.def("expected_durations", &expected_durations, "problem"_a, "scope"_a, "counts"_a);
  m.def("max_marginal", &max_marginal, "problem"_a, "scope"_a, "labels"_a, "ignore"_a);
  m.def("minimum_risk", &minimum_risk, "problem"_a, "scope"_a, "tolerance"_a, "f1"_a);
}

void bind_durations(nb::module_& m) {
  using Family = semicrf::DurationFamily;
  nb::enum_<Family>(m, "DurationFamily")
      .value("table", Family::kTable)
      .value("geometric", Family::kGeometric)
      .value("negative_binomial", Family::kNegativeBinomial)
      .value("poisson", Family::kPoisson)
      .value("log_normal", Family::kLogNormal)
      .value("buckets", Family::kBuckets);
  nb::class_<semicrf::DurationModel>(m, "DurationModel")
      .def(nb::init<Family, std::int64_t, std::int64_t, bool>(), "family"_a, "longest"_a,
           "buckets"_a, "normalise"_a);
  m.def("duration_layout", &duration_layout, "model"_a);
  m.def("duration_scores", &duration_scores, "model"_a, "parameters"_a, "scores"_a);
  m.def("duration_gradient", &duration_gradient, "model"_a, "parameters"_a, "score_gradient"_a,
        "parameter_gradient"_a);
}

/// A tuple for each, in the order of the fields of segfuse.PretrainedModel.
nb::list pretrained_rows() {
  nb::list rows;
  for (const PretrainedModel& m : pretrained_models())
    rows.append(nb::make_tuple(m.name, m.title, m.recordings, m.sample_rate, m.hop_ms, m.labels,
                               m.licence, m.figure, m.bytes, m.sha256, m.path.string()));
  return rows;
}

void bind_pretrained(nb::module_& m) {
  m.def("pretrained_models", &pretrained_rows);
  m.def("pretrained_card", &pretrained_card, "name"_a);
}

}  // namespace
}  // namespace segfuse::python

NB_MODULE(_native, m) {
  m.attr("__version__") = segfuse::version();
  // Values that live until the process ends (in a global, in a traceback) are not an error.
  nanobind::set_leak_warnings(false);
  nanobind::register_exception_translator(segfuse::python::translate_error);
  segfuse::python::bind_problem(m);
  segfuse::python::bind_segments(m);
  segfuse::python::bind_scope(m);
  segfuse::python::bind_calls(m);
  segfuse::python::bind_inference(m);
  segfuse::python::bind_durations(m);
  segfuse::python::bind_fusions(m);
  segfuse::python::bind_programs(m);
  segfuse::python::bind_device_programs(m);
  segfuse::python::bind_quick_calls(m);
  segfuse::python::bind_models(m);
  segfuse::python::bind_pretrained(m);
  segfuse::python::bind_doctor(m);
  segfuse::python::bind_memory(m);
  segfuse::python::xla::bind(m);
}
