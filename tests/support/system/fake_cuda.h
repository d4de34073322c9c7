#pragma once
// The part of the CUDA driver that the runtime's device uses, in host memory, with its rules: calls
// need a current context, memory lives while it is mapped or its handle is held, mappings are
// unmapped whole, and touching what has no access faults. Every call can be made to fail.

#include <cstdint>
#include <memory>

#include "runtime/cuda/driver.h"

namespace segfuse::test {

class FakeCuda {
 public:
  static constexpr std::size_t kUnit = 64 << 10;  ///< granularity of mappings
  static constexpr runtime::cuda::Result kOutOfMemory = runtime::cuda::kOutOfMemory;
  static constexpr runtime::cuda::Result kIllegalAddress = 700;

  /// One at a time: the driver's functions have no argument to find theirs by.
  explicit FakeCuda(std::size_t memory);
  ~FakeCuda();
  FakeCuda(const FakeCuda&) = delete;
  FakeCuda& operator=(const FakeCuda&) = delete;

  const runtime::cuda::Driver& driver() const;
  /// The k-th call from now returns `result` and does nothing else (contexts and releases aside);
  /// 0: none.
  void fail_at(std::uint64_t k, runtime::cuda::Result result);
  /// Calls that fail_at() counts.
  std::uint64_t calls() const;
  /// Bytes of device memory that exist.
  std::size_t used() const;
  std::size_t reservations() const;
  std::size_t registered_host_bytes() const;
  /// cuLaunchHostFunc, which only tests use.
  static runtime::cuda::Result host_function(runtime::cuda::Stream stream, void (*function)(void*),
                                             void* data);

  struct State;

 private:
  std::unique_ptr<State> state_;
};

}  // namespace segfuse::test
