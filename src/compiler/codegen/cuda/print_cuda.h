#pragma once
// CUDA C++ for a kernel of the loop IR; launch.h says how it is launched.
//
// One block runs schedule.rows_at_once outer iterations beside each other (threadIdx.y), each by
// schedule.threads lanes (threadIdx.x): a power of two up to 32, or a multiple of 32. Lane loops
// give every lane `vector` elements at a time, `unroll` of them in flight; the lane of an element
// depends on its distance from the loop's begin alone, so lane loops with equal bounds agree.
//
// What the schedule promises:
//   vector > 1  every extent of vector_multiples() is a multiple of it, rows in registers end with
//               whole vectors, and every global buffer begins at a multiple of min(16, vector *
//               element size) bytes;
//   filled      every lane loop over rows in registers takes as many elements as these hold;
//   narrow      every position, and every loop's end + threads * vector * unroll, is below 2^31.
// largest_vector() finds a vector for given sizes.

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

/// The extents that have to be multiples of `vector` for vector accesses to be aligned and loops
/// to end with whole vectors; numbers that are not are handled element by element instead.
std::vector<ir::Extent> vector_multiples(const loop::Kernel& kernel, int vector);
/// The largest of 8, 4, 2, 1 that keeps the promise at these sizes and moves at most 16 bytes of
/// the widest element of the longest buffers; what Schedule::vector says is not looked at.
int largest_vector(const loop::Kernel& kernel, const SizeOf& size);
/// Whether positions fit 32 bits at these sizes.
bool fits_narrow(const loop::Kernel& kernel, const SizeOf& size);
/// Whether rows in registers fill them at these sizes, with the schedule's vector.
bool fills_registers(const loop::Kernel& kernel, const SizeOf& size);
/// Gives the kernel's schedule what depends on these sizes.
void fit_to_sizes(loop::Kernel& kernel, const SizeOf& size);

}  // namespace segfuse::compiler::cuda
