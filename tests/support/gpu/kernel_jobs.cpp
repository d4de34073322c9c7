#include "support/gpu/kernel_jobs.h"

#include <fmt/format.h>

#include <cmath>
#include <limits>

#include "base/rng.h"
#include "compiler/loop/interpret.h"
#include "compiler/passes/pass.h"
#include "compiler/segment/segmenter.h"
#include "ir/interpret/evaluate.h"
#include "segfuse/error.h"

namespace segfuse::testing {

using namespace segfuse::compiler;
using ir::Extent;

namespace {

/// Between the kernel's types and the interpreter's.
Tensor converted(const Tensor& tensor, DType dtype) {
  Tensor result(dtype, tensor.shape());
  if (dtype == DType::kI64 && tensor.dtype() == DType::kI64) return tensor.clone();
  for (std::int64_t i = 0; i < tensor.size(); ++i) result.set(i, tensor.at(i));
  return result;
}

Tensor poisoned(DType dtype, const Shape& shape) {
  return Tensor::full(dtype, shape,
                      is_float(dtype) ? std::numeric_limits<double>::quiet_NaN()
                                      : (dtype == DType::kBool ? 1 : -77));
}

class Recorder {
 public:
  Recorder(std::vector<KernelJob>& jobs, const std::string& what, const Adapt& adapt)
      : jobs_(jobs), what_(what), adapt_(adapt) {}

  int operator()(const loop::Kernel& kernel, std::span<Tensor> globals,
                 const std::function<std::int64_t(const Extent&)>& size) const {
    KernelJob job;
    job.kernel = kernel;
    if (adapt_ && !adapt_(job.kernel, size)) return loop::interpret(kernel, globals, size);
    job.what = fmt::format("{}, {} [{}]", what_, kernel.name, to_string(job.kernel.schedule));
    std::size_t next = 0;
    for (const loop::KernelBuffer& buffer : kernel.buffers) {
      if (buffer.kind == loop::KernelBuffer::Kind::kRow) continue;
      Tensor& global = globals[next++];
      const bool read = buffer.kind != loop::KernelBuffer::Kind::kOutput;
      job.before.push_back(read ? converted(global, buffer.dtype)
                                : poisoned(buffer.dtype, global.shape()));
      // The interpreter starts from what the types hold.
      if (read) {
        const Tensor held = converted(job.before.back(), ir::wide(buffer.dtype));
        std::copy_n(static_cast<const std::byte*>(held.data()), held.bytes(),
                    static_cast<std::byte*>(global.data()));
      }
    }
    job.status = loop::interpret(job.kernel, globals, size);
    for (const Tensor& global : globals) job.after.push_back(global.clone());
    auto note = [&](const Extent& extent) { job.sizes.emplace_back(extent, size(extent)); };
    for (const Extent& extent : job.kernel.sizes()) note(extent);
    for (const loop::KernelBuffer& buffer : job.kernel.buffers) note(buffer.elements);
    note(job.kernel.outer_count);
    jobs_.push_back(std::move(job));
    return jobs_.back().status;
  }

 private:
  std::vector<KernelJob>& jobs_;
  const std::string& what_;
  const Adapt& adapt_;
};

double scale_of(DType dtype) {
  switch (dtype) {
    case DType::kF64: return 1e-5;
    case DType::kF16: return 1e3;
    case DType::kBF16: return 8e3;
    default: return 1;
  }
}

bool alike(double a, double b, double tolerance) {
  if (std::isnan(a) || std::isnan(b)) return std::isnan(a) && std::isnan(b);
  if (std::isinf(a) || std::isinf(b)) return a == b;
  return std::abs(a - b) <= tolerance * std::max({1.0, std::abs(a), std::abs(b)});
}

}  // namespace

std::int64_t KernelJob::size(const Extent& extent) const {
  if (extent.is_constant()) return extent.constant();
  for (const auto& [known, value] : sizes)
    if (known == extent) return value;
  throw InternalError(fmt::format("{}: a size that the job does not know", what));
}

std::vector<KernelJob> jobs_of(const ir::Fusion& fusion, std::span<const Tensor> inputs,
                               const ScheduleFor& schedule, const std::string& what,
                               const Adapt& adapt,
                               const std::map<std::string, std::int64_t>& hints) {
  ir::Fusion copy = fusion;
  SegmentOptions options;
  options.hints.symbols = hints;
  run_passes(copy, {.verify = true});
  std::vector<KernelJob> jobs;
  run_groups(segment(std::move(copy), options), inputs, schedule, {}, Recorder(jobs, what, adapt));
  return jobs;
}

std::vector<Tensor> normal_inputs(const ir::Fusion& fusion,
                                  const std::map<std::string, std::int64_t>& sizes,
                                  std::uint64_t seed, std::int64_t whole) {
  Rng rng(seed);
  std::vector<Tensor> inputs;
  for (const ir::Input& input : fusion.inputs()) {
    const ir::Val& val = fusion.val(input.val);
    Shape shape;
    for (const Extent& extent : val.shape)
      shape.push_back(fusion.canonical(extent).evaluate(
          [&](ir::SymbolId symbol) { return sizes.at(fusion.to_string(Extent(symbol))); }));
    Tensor tensor(val.dtype, shape);
    for (std::int64_t i = 0; i < tensor.size(); ++i)
      tensor.set(i, is_float(val.dtype) ? rng.normal()
                                        : static_cast<double>(rng.below(static_cast<std::uint64_t>(
                                              val.dtype == DType::kBool ? 2 : whole))));
    inputs.push_back(tensor);
  }
  return inputs;
}

std::string difference(const KernelJob& job, std::span<const Tensor> globals, int status,
                       double tolerance) {
  if (status != job.status)
    return fmt::format("{}: status {}, expected {}", job.what, status, job.status);
  // 16-bit values within make results of any type coarser.
  DType coarsest = DType::kF64;
  for (const DType dtype : job.kernel.values)
    if (is_float(dtype) && scale_of(dtype) > scale_of(coarsest)) coarsest = dtype;
  const double bound = tolerance * scale_of(coarsest);
  for (std::size_t g = 0; g < globals.size(); ++g)
    for (std::int64_t i = 0; i < globals[g].size(); ++i)
      if (!alike(globals[g].at(i), job.after[g].at(i), is_float(globals[g].dtype()) ? bound : 0)) {
        return fmt::format("{}: global {} element {} of {}: {}, expected {}", job.what, g, i,
                           globals[g].size(), globals[g].at(i), job.after[g].at(i));
      }
  return "";
}

}  // namespace segfuse::testing
