#pragma once
// Every implementation of Device, for the tests that all of them pass (conformance_*_test.cpp).

#include <gtest/gtest.h>

#include <atomic>
#include <condition_variable>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "runtime/check/race_checker.h"
#include "runtime/cuda/driver.h"
#include "runtime/device.h"
#include "support/sim/sim_device.h"
#include "support/system/fake_cuda.h"

namespace segfuse::runtime {

/// A device with what tests need to hold its streams and to run host code in them.
class Harness {
 public:
  /// Granules of memory that a device has, where that can be chosen.
  static constexpr std::size_t kGranules = 16;

  virtual ~Harness() = default;
  virtual Device& device() = 0;
  /// Work that runs in the stream's order, on the host.
  virtual void work(StreamHandle stream, std::function<void()> body, std::string name = "work") = 0;
  /// The stream gets no further until it is released.
  virtual void hold(StreamHandle stream) = 0;
  virtual void release(StreamHandle stream) = 0;
  /// The device has kGranules granules and no more.
  virtual bool is_limited() const { return true; }

  void fill(StreamHandle stream, std::byte* at, int value, std::size_t bytes) {
    device().fill(stream, at, static_cast<std::uint8_t>(value), bytes);
  }
  /// Device memory, read through pinned memory and a stream of its own.
  std::vector<int> read(const std::byte* at, std::size_t bytes) {
    std::byte* const pinned = device().allocate_pinned(bytes);
    const StreamHandle stream = device().create_stream();
    device().copy(stream, pinned, at, bytes);
    device().synchronize(stream);
    std::vector<int> values;
    for (std::size_t i = 0; i < bytes; ++i) values.push_back(std::to_integer<int>(pinned[i]));
    device().destroy_stream(stream);
    device().release_pinned(pinned, bytes);
    return values;
  }
  int read(const std::byte* at) { return read(at, 1)[0]; }
};

struct Backend {
  std::string name;
  std::function<std::unique_ptr<Harness>()> open;
};
inline void PrintTo(const Backend& backend, std::ostream* out) { *out << backend.name; }

/// All that can be tested here: SEGFUSE_TEST_DEVICE=cuda adds the CUDA device.
std::vector<Backend> backends();
/// Those that check handles, and are in order after work has failed: not CUDA, whose handles are
/// pointers and whose context is lost.
std::vector<Backend> checking_backends();
/// Why the CUDA device is not among them; empty if it is.
std::string why_no_cuda();

/// TEST_P body with `device`, `harness` and helpers.
class Conformance : public testing::TestWithParam<Backend> {
 protected:
  void SetUp() override { harness_ = GetParam().open(); }
  Harness& harness() { return *harness_; }
  Device& device() { return harness_->device(); }
  StreamHandle stream() { return device().create_stream(); }
  /// Reserves granules, maps the first of them.
  std::byte* memory(std::size_t mapped, std::size_t reserved = Harness::kGranules) {
    std::byte* const address = device().reserve(reserved * device().granule());
    if (mapped != 0) device().map(address, mapped * device().granule());
    return address;
  }
  EventHandle recorded(StreamHandle on) {
    const EventHandle event = device().create_event();
    device().record(on, event);
    return event;
  }
  std::unique_ptr<Harness> harness_;
};

inline std::string backend_name(const testing::TestParamInfo<Backend>& info) {
  return info.param.name;
}

}  // namespace segfuse::runtime
