#pragma once
// One call over several devices (ranges.h says who does what). The host leads: it waits for all
// devices after the passes, after the row's end is known, and after partial sums.

#include <memory>
#include <vector>

#include "semicrf/cuda/split/ranges.h"

namespace segfuse::semicrf {

/// Pinned memory of the host through which devices give each other what they found.
class Staging {
 public:
  explicit Staging(std::shared_ptr<gpu::Queue> queue) : queue_(std::move(queue)) {}
  ~Staging();
  Staging(const Staging&) = delete;
  Staging& operator=(const Staging&) = delete;
  /// What was there is lost.
  std::byte* of(std::size_t bytes);

 private:
  std::shared_ptr<gpu::Queue> queue_;
  std::byte* memory_ = nullptr;
  std::size_t bytes_ = 0;
};

/// What one device works with.
struct Member {
  CudaEngine::State* engine = nullptr;
  Staging* staging = nullptr;
  StreamHandle stream;
  Call call{};
  PartOfRow part;
  std::unique_ptr<gpu::Workspace> workspace;
  double* log_partition = nullptr;  ///< of the workspace, as the two after it
  unsigned char* status = nullptr;
  void* final = nullptr;

  gpu::Queue& queue() const { return *engine->gpu; }
  template <class T>
  void write(T* to, const std::vector<T>& values) const;
  /// Copies this device's memory to another's, and waits for it.
  void give(const Member& other, void* to, const void* from, std::size_t bytes) const;
};

/// Values of several members, read at once: each device is waited for once. They are there when
/// run() returns.
class Reads {
 public:
  template <class T>
  void add(const Member& member, const T* from, std::int64_t n, std::vector<T>& to) {
    to.resize(static_cast<std::size_t>(n));
    if (n > 0) parts_.push_back({&member, from, to.data(), sizeof(T) * to.size()});
  }
  template <class T>
  void add(const Member& member, const T* from, T& to) {
    parts_.push_back({&member, from, &to, sizeof(T)});
  }
  void run();

 private:
  struct Part {
    const Member* member;
    const void* from;
    void* to;
    std::size_t bytes;
  };
  std::vector<Part> parts_;
};

/// The cuts of a row of these sizes and the devices' parts; no part: it is not split. `call` needs
/// sizes, and whether there are start or end scores.
struct SplitPlan {
  ChunkCuts cuts;
  std::vector<PartOfRow> parts;
};
SplitPlan plan_split(CudaEngine::State& engine, Call call, int devices);

/// Gives a member its cuts, its workspace and the row's frames as it holds them.
template <class T>
void prepare_member(Member& member, const SplitPlan& plan, const DeviceWanted& wanted);

/// False: all of the row has to be done on one device.
template <class T>
bool run_split(std::vector<Member>& members, const ChunkCuts& cuts, const DeviceWanted& wanted,
               SplitCudaEngine::Partition& result);

}  // namespace segfuse::semicrf
