#pragma once
// Three ways to hand out memory to several streams, on a model of a device in virtual time: the
// same program, the same order of kernels, different allocators. Ours is the heap itself; the other
// two are small implementations of what PyTorch's and RMM's allocators do about streams, and a
// fourth does nothing about them.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "doctor/memory/model_device.h"
#include "runtime/executor.h"
#include "runtime/memory/heap.h"

namespace segfuse::bench {

struct ModelProgram {
  struct Step {
    std::size_t bytes = 0;
    int stream = 0;           ///< that the memory is asked for and first written on
    int read_block = -1;      ///< an older block that is read in this step
    int read_stream = 0;      ///< by this stream
    int freed_block = -1;     ///< given up at the end of the step
    bool host_waits = false;  ///< for the stream: it looks at a result
  };
  std::vector<Step> steps;
};
/// `foreign`: part of the steps in which a block is read by another stream.
ModelProgram model_program(std::uint64_t seed, int steps, double foreign);

inline constexpr int kModelStreams = 4;

/// The device, its streams, and how long kernels take.
struct ModelRun {
  ModelRun();
  doctor::ModelDevice device;
  runtime::Timeline timeline;
  std::vector<runtime::StreamId> streams;
};

class ModelPolicy {
 public:
  virtual ~ModelPolicy() = default;
  /// Blocks are numbered by the steps that ask for them. Returns the address.
  virtual std::byte* allocate(int block, std::size_t bytes, int stream) = 0;
  virtual void use(int block, int stream, bool write) = 0;
  virtual void release(int block) = 0;
  virtual std::size_t peak() const = 0;
};

enum class PolicyKind { kFrontier, kRecordAndPoll, kEventPerFree, kNothing };
struct PolicyOptions {
  PolicyKind kind = PolicyKind::kFrontier;
  std::size_t soft_limit = 0;  ///< of the heap
  bool free = true;  ///< no: nothing is ever used again, for what the program itself needs
};
std::unique_ptr<ModelPolicy> make_policy(ModelRun& run, const PolicyOptions& options);

struct ModelResult {
  double live_mib = 0;  ///< most that the program held, which nobody can do without
  double peak_mib = 0;
  double makespan = 0;
  std::uint64_t records = 0;
  std::uint64_t waits = 0;
  std::uint64_t queries = 0;
  std::uint64_t conflicts = 0;
  std::uint64_t addresses = 0;  ///< hash of all addresses
};
/// `work`: mean time of a kernel, where the host takes 1 for a step; `schedule` draws the times.
ModelResult run_model(const ModelProgram& program, const PolicyOptions& options, double work,
                      std::uint64_t schedule);

}  // namespace segfuse::bench
