#include "support/c/c_kernels.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "compiler/codegen/cpu/print_c.h"
#include "compiler/loop/interpret.h"
#include "ir/interpret/evaluate.h"

namespace segfuse::test {

using namespace compiler;

namespace {

/// The same numbers as the type has them.
Tensor narrowed(const Tensor& tensor, DType dtype) {
  Tensor result(dtype, tensor.shape());
  for (std::int64_t i = 0; i < tensor.size(); ++i) {
    if (dtype == DType::kI64) {
      result.span<std::int64_t>()[static_cast<std::size_t>(i)] =
          tensor.span<std::int64_t>()[static_cast<std::size_t>(i)];
    } else {
      result.set(i, tensor.at(i));
    }
  }
  return result;
}

Tensor widened(const Tensor& tensor) {
  if (is_float(tensor.dtype())) return tensor.to(DType::kF64).clone();
  Tensor result(DType::kI64, tensor.shape());
  for (std::int64_t i = 0; i < tensor.size(); ++i)
    result.span<std::int64_t>()[static_cast<std::size_t>(i)] =
        tensor.dtype() == DType::kI64 ? tensor.span<std::int64_t>()[static_cast<std::size_t>(i)]
                                      : static_cast<std::int64_t>(tensor.at(i));
  return result;
}

/// How far a kernel's float may be from what exact arithmetic gives: some tens of roundings of
/// numbers about as large as the largest of the results, and one for each term of a sum.
double tolerance(DType dtype, double largest, double terms) {
  const double unit = dtype == DType::kF64   ? 0x1p-52
                      : dtype == DType::kF32 ? 0x1p-23
                      : dtype == DType::kF16 ? 0x1p-10
                                             : 0x1p-7;
  return (64 + terms) * unit * std::max(1.0, largest);
}

void expect_near(const loop::Kernel& kernel, const std::string& name, const Tensor& got,
                 const Tensor& want, double terms) {
  double largest = 0;
  if (is_float(got.dtype()))
    for (std::int64_t i = 0; i < want.size(); ++i)
      if (std::isfinite(want.at(i))) largest = std::max(largest, std::abs(want.at(i)));
  for (std::int64_t i = 0; i < got.size(); ++i) {
    const double a = got.at(i), b = want.at(i);
    bool equal = a == b || (std::isnan(a) && std::isnan(b));
    if (is_float(got.dtype()) && std::isfinite(b))
      equal = std::abs(a - b) <= tolerance(got.dtype(), largest, terms);
    if (!equal) {
      ADD_FAILURE() << kernel.name << ": element " << i << " of " << name << " is " << a
                    << ", expected " << b << "\n"
                    << loop::print(kernel) << cpu::print_c(kernel);
      return;
    }
  }
}

}  // namespace

CKernels::CKernels(bool stranger, std::string flags) : flags_(std::move(flags)) {
  if (!stranger) clang_ = jit::open_cpu_compiler();
}

jit::CpuFunction CKernels::function(const loop::Kernel& kernel, const std::string& text) {
  if (clang_) {
    compiled_ = static_cast<int>(clang_->counters().compiled) + 1;
    return clang_->compile({kernel.name, text})->function(kernel.name);
  }
  auto& library = libraries_[text];
  if (!library) {
    library = std::make_unique<CompiledC>(text, flags_);
    ++compiled_;
  }
  return library->get<void(void* const*, const std::int64_t*, std::int64_t, std::int64_t, void*)>(
      kernel.name);
}

int CKernels::run(const loop::Kernel& kernel, std::span<Tensor> typed, const Size& size) {
  const jit::CpuFunction call = function(kernel, cpu::print_c(kernel));
  std::vector<void*> buffers;
  for (Tensor& tensor : typed) buffers.push_back(tensor.data());
  std::int32_t status = 0;
  buffers.push_back(&status);
  std::vector<std::int64_t> sizes;
  for (const ir::Extent& extent : kernel.sizes()) sizes.push_back(size(extent));
  std::int64_t bytes = 0;
  for (const loop::KernelBuffer& buffer : kernel.buffers)
    if (buffer.kind == loop::KernelBuffer::Kind::kRow)
      bytes += loop::row_buffer_bytes(buffer.dtype, size(buffer.elements));
  constexpr std::size_t kGuard = 64;
  std::vector<char> memory(static_cast<std::size_t>(bytes) + 64 + kGuard, '\x5A');
  char* const scratch = memory.data() + (64 - reinterpret_cast<std::uintptr_t>(memory.data()) % 64);
  const std::int64_t count = size(kernel.outer_count);
  call(buffers.data(), sizes.data(), 0, count / 2, scratch);  // in two parts, as threads would
  call(buffers.data(), sizes.data(), count / 2, count, scratch);
  for (std::size_t i = static_cast<std::size_t>(scratch - memory.data() + bytes); i < memory.size();
       ++i)
    EXPECT_EQ(memory[i], '\x5A') << kernel.name << " wrote behind its row buffers";
  return status;
}

int CKernels::compare(const loop::Kernel& kernel, std::span<Tensor> globals, const Size& size) {
  std::vector<Tensor> typed;
  std::vector<const loop::KernelBuffer*> buffers;
  for (const loop::KernelBuffer& buffer : kernel.buffers)
    if (buffer.kind != loop::KernelBuffer::Kind::kRow) buffers.push_back(&buffer);
  for (std::size_t i = 0; i < globals.size(); ++i) {
    typed.push_back(narrowed(globals[i], buffers[i]->dtype));
    const Tensor rounded = widened(typed.back());
    for (std::int64_t e = 0; e < rounded.size(); ++e) {  // the interpreter begins with the same
      if (is_float(rounded.dtype())) globals[i].set(e, rounded.at(e));
    }
  }
  const int status = run(kernel, typed, size);
  const int expected = loop::interpret(kernel, globals, size);
  EXPECT_EQ(status != 0, expected != 0) << kernel.name;
  for (std::size_t i = 0; i < globals.size(); ++i) {
    if (buffers[i]->kind == loop::KernelBuffer::Kind::kInput || expected != 0) continue;
    for (std::int64_t e = 0; e < typed[i].size(); ++e)  // compilers may order a NaN's operands
      if (std::isnan(typed[i].at(e))) typed[i].set(e, std::numeric_limits<double>::quiet_NaN());
    written_.append(static_cast<const char*>(typed[i].data()),
                    static_cast<std::size_t>(typed[i].size()) * size_of(typed[i].dtype()));
    expect_near(kernel, buffers[i]->name, typed[i], globals[i],
                static_cast<double>(size(kernel.work)));
  }
  return expected;
}

}  // namespace segfuse::test
