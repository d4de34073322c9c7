#pragma once
// CUDA C++ for a kernel of the loop IR; launch.h says how it is launched.
//
// One block runs schedule.rows_at_once outer iterations beside each other (threadIdx.y), each by
// schedule.threads lanes (threadIdx.x): a power of two up to 32, or a multiple of 32. Lane loops
// give every lane `vector` elements at a time, `unroll` of them in flight; the lane of an element
// depends on its distance from the loop's begin alone, so lane loops with equal bounds agree.
//
// What the schedule promises:
//   vector > 1  every extent of promised_multiples() is a multiple of it, rows in registers end
//   with
//               whole vectors, and every global buffer begins at a multiple of min(16, vector *
//               element size) bytes;
//   filled      every lane loop over rows in registers takes as many elements as these hold;
//   narrow      every position, and every loop's end + threads * vector * unroll, is below 2^31.
// fit_to_sizes() makes these promises.

#include <string>
#include <vector>

#include "compiler/codegen/cuda/launch.h"
#include "compiler/loop/kernel.h"

namespace segfuse::compiler::cuda {

/// The text in parts: put together in this order it is complete and includes nothing.
struct CudaText {
  std::string machine;  ///< functions in the device's assembly language
  std::string code;     ///< everything else
  std::string text() const { return machine + code; }
};
CudaText print_cuda_parts(const loop::Kernel& kernel);
/// One function `extern "C" __global__ void NAME(Arguments)`, NAME being the kernel's.
inline std::string print_cuda(const loop::Kernel& kernel) {
  return print_cuda_parts(kernel).text();
}

/// Gives the kernel's schedule the promises that hold at these sizes, and the vector.
void fit_to_sizes(loop::Kernel& kernel, const SizeOf& size);

}  // namespace segfuse::compiler::cuda
