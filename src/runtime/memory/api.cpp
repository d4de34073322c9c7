// segfuse/memory.h: the heap, the executor and the race checker of one device behind one handle.

#include <fmt/core.h>

#include <algorithm>
#include <atomic>
#include <charconv>
#include <cstring>

#include "base/code/code_store.h"
#include "runtime/check/race_checker.h"
#include "runtime/cpu/cpu_device.h"
#include "runtime/cuda/cuda_device.h"
#include "runtime/memory/pinned.h"
#include "runtime/open_device.h"
#include "segfuse/error.h"
#include "segfuse/memory.h"

namespace segfuse::memory {
namespace {

constexpr std::size_t kPiece = std::size_t{16} << 20;  ///< bytes that are staged at once

runtime::Work work_of(Work work) {
  if (!work.run) return {std::move(work.name), {}};
  return {std::move(work.name),
          [run = std::move(work.run)](runtime::StreamHandle stream) { run(stream.get()); }};
}

}  // namespace

struct Device::State {
  State(std::string_view name, const Options& options)
      : open(device_named(name), kernels_of(name), options_of(options)),
        pinned(open.device(), open.timeline()) {}

  static int ordinal_of(std::string_view name) {
    const std::string_view number = name.starts_with("cuda:") ? name.substr(5) : "0";
    int ordinal = 0;
    const char* const end = number.data() + number.size();
    const auto [last, error] = std::from_chars(number.data(), end, ordinal);
    if ((name != "cuda" && !name.starts_with("cuda:")) || error != std::errc() || last != end)
      throw UsageError(fmt::format(
          "device '{}' is unknown; known are 'cpu', 'cuda' and 'cuda:N' for the N-th GPU", name));
    return ordinal;
  }
  static std::unique_ptr<runtime::Device> device_named(std::string_view name) {
    if (name == "cpu") return std::make_unique<runtime::CpuDevice>();
    return runtime::open_cuda_device(ordinal_of(name));
  }
  static std::shared_ptr<runtime::KernelLoader> kernels_of(std::string_view name) {
    return name == "cpu" ? nullptr
                         : runtime::open_cuda_kernels(ordinal_of(name), CodeStore::nowhere());
  }
  static runtime::OpenDeviceOptions options_of(const Options& options) {
    runtime::OpenDeviceOptions all;
    all.heap.hard_limit = options.hard_limit;
    all.heap.soft_limit = options.soft_limit;
    if (options.check_streams) all.check_streams = runtime::CheckMode::kCollect;
    return all;
  }

  runtime::StreamId id(Stream stream) const {
    if (stream.device_ != serial)
      throw UsageError(
          fmt::format("the stream is not one of this device ({})", open.device().name()));
    return {stream.index_, stream.generation_};
  }
  Stream handle_of(runtime::StreamId id) const { return {serial, id.index, id.generation}; }

  static inline std::atomic<std::uint32_t> made = 0;
  const std::uint32_t serial = ++made;
  runtime::OpenDevice open;
  runtime::PinnedPool pinned;
};

struct Buffer::State {
  std::shared_ptr<Device::State> device;  ///< outlives the buffer
  runtime::Buffer buffer;
};

struct Loan::State {
  std::shared_ptr<Device::State> device;
  runtime::Borrow borrow;
};

Loan::Loan(std::unique_ptr<State> state) : state_(std::move(state)) {}
Loan::Loan(Loan&&) noexcept = default;
Loan::~Loan() = default;

std::byte* Buffer::address() const { return state_ ? state_->buffer.address() : nullptr; }
std::size_t Buffer::bytes() const { return state_ ? state_->buffer.bytes() : 0; }

const Buffer::State& Buffer::state(const char* call) const {
  if (!state_) throw UsageError(fmt::format("{}: the buffer is empty; allocate it first", call));
  return *state_;
}

Loan Buffer::borrow(Stream stream) const {
  const State& own = state("borrow");
  Device::State& device = *own.device;
  return Loan(std::unique_ptr<Loan::State>(
      new Loan::State{own.device, own.buffer.borrow(device.open.timeline(), device.id(stream))}));
}

void Buffer::record_stream(Stream stream) const {
  const State& own = state("record_stream");
  own.buffer.record_stream(own.device->open.timeline(), own.device->id(stream));
}

Device Device::open(std::string_view name, const Options& options) {
  return Device(std::make_shared<State>(name, options));
}

std::string Device::name() const { return state_->open.device().name(); }

Stream Device::stream(std::string name) const {
  return state_->handle_of(state_->open.timeline().create(state_->open.device(), std::move(name)));
}

Stream Device::adopt(void* handle, std::string name) const {
  return state_->handle_of(state_->open.timeline().adopt(
      state_->open.device(), runtime::StreamHandle(handle), std::move(name)));
}

void Device::retire(Stream stream) const { state_->open.timeline().retire(state_->id(stream)); }

void* Device::handle(Stream stream) const {
  return state_->open.timeline().handle(state_->id(stream)).get();
}

Buffer Device::allocate(std::size_t bytes, Stream stream, std::string_view label) const {
  return Buffer(std::make_shared<const Buffer::State>(
      Buffer::State{state_, state_->open.heap().allocate(bytes, state_->id(stream), label)}));
}

void Device::launch(Stream stream, Work work, std::span<const Use> uses) const {
  std::vector<runtime::Use> all;
  all.reserve(uses.size());
  for (const Use& use : uses)
    all.emplace_back(use.buffer->state(work.name.c_str()).buffer, use.write);
  state_->open.executor().launch(state_->id(stream), work_of(std::move(work)), all);
}

void Device::launch_unordered(Stream stream, Work work, std::span<const Access> accesses) const {
  std::vector<runtime::MemoryAccess> all;
  all.reserve(accesses.size());
  for (const Access& access : accesses)
    all.push_back({access.address, access.bytes, access.write, access.name});
  state_->open.timeline().enqueue(state_->id(stream), [&](runtime::StreamHandle handle) {
    state_->open.device().launch(handle, work_of(std::move(work)), all);
  });
}

void Device::wait(Stream later, Stream earlier) const {
  const runtime::StreamTick last = state_->open.timeline().tail(state_->id(earlier));
  state_->open.timeline().order_after(state_->id(later), runtime::Frontier(last));
}

Work Device::kernel(const std::string& source, const std::string& entry, unsigned blocks,
                    unsigned threads, std::span<const std::byte> argument) const {
  const std::shared_ptr<runtime::KernelLoader>& kernels = state_->open.kernels();
  if (!kernels)
    throw UsageError(fmt::format("kernel '{}': CUDA C++ needs a GPU, this is the CPU", entry));
  const runtime::GpuKernel kernel = kernels->kernel({entry, source, {}}, entry);
  return {entry, [kernels, kernel, launch = runtime::GpuLaunch{{blocks}, {threads}},
                  bytes = std::vector(argument.begin(), argument.end())](void* stream) {
            kernels->launch(runtime::StreamHandle(stream), kernel, launch, bytes.data(),
                            bytes.size());
          }};
}

void Device::write(Stream stream, const Buffer& to, std::span<const std::byte> from) const {
  const runtime::Buffer& buffer = to.state("write").buffer;
  for (std::size_t begin = 0; begin < from.size(); begin += kPiece) {
    const auto piece = from.subspan(begin, std::min(kPiece, from.size() - begin));
    runtime::PinnedBuffer staging = state_->pinned.allocate(piece.size());
    std::memcpy(staging.address(), piece.data(), piece.size());
    staging.upload(state_->open.executor(), state_->id(stream), buffer, piece.size(), begin);
    staging.wait_copied(state_->open.timeline());
  }
}

void Device::read(Stream stream, std::span<std::byte> to, const Buffer& from) const {
  const runtime::Buffer& buffer = from.state("read").buffer;
  for (std::size_t begin = 0; begin < to.size(); begin += kPiece) {
    const auto piece = to.subspan(begin, std::min(kPiece, to.size() - begin));
    runtime::PinnedBuffer staging = state_->pinned.allocate(piece.size());
    staging.download(state_->open.executor(), state_->id(stream), buffer, piece.size(), begin);
    staging.wait_copied(state_->open.timeline());
    std::memcpy(piece.data(), staging.address(), piece.size());
  }
}

void Device::synchronize(Stream stream) const {
  state_->open.timeline().synchronize(state_->id(stream));
}

Statistics Device::statistics() const {
  const runtime::HeapStatistics heap = state_->open.heap().statistics();
  return {.mapped = heap.mapped_bytes,
          .live = heap.live_bytes,
          .requested = heap.requested_bytes,
          .cached = heap.cached_bytes,
          .free = heap.free_bytes,
          .peak_mapped = heap.peak_mapped_bytes,
          .live_buffers = heap.live_blocks,
          .allocations = heap.allocations,
          .waits = state_->open.timeline().counts().waits,
          .waits_for_memory = heap.added_waits,
          .out_of_memory = heap.out_of_memory};
}

void Device::trim() const { state_->open.heap().trim(); }

std::vector<Race> Device::races() const {
  std::vector<Race> all;
  if (!state_->open.checker()) return all;
  for (const runtime::Finding& finding : state_->open.checker()->findings())
    all.push_back({finding.describe(), finding.missing(), race_picture(finding)});
  return all;
}

}  // namespace segfuse::memory
