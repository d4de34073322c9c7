#include "engine/device/accelerator.h"

#include <fmt/core.h>

#include <algorithm>
#include <atomic>
#include <charconv>
#include <cstring>
#include <map>
#include <mutex>

#include "base/context/state.h"
#include "comm/registered/backends/cuda_host.h"
#include "comm/registered/pool.h"
#include "runtime/check/race_checker.h"
#include "runtime/cpu/cpu_device.h"
#include "segfuse/error.h"

namespace segfuse::engine {

using runtime::Buffer;

namespace {

constexpr std::size_t kPiece = std::size_t{32} << 20;  // bytes of one staged copy

}  // namespace

/// A buffer of the heap, as a tensor holds it.
class Accelerator::Memory final : public DeviceMemory {
 public:
  Memory(std::shared_ptr<Accelerator> accelerator, Buffer buffer)
      : accelerator_(std::move(accelerator)), buffer_(std::move(buffer)) {}
  ~Memory() override {
    if (handed_out_) accelerator_->bury(std::move(buffer_));
  }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;
  std::string device() const override { return accelerator_->name(); }
  void copy_to_host(void* to, std::size_t bytes) const override {
    accelerator_->copy_out(to, buffer_, bytes);
  }
  std::shared_ptr<DeviceMemory> clone() const override {
    Buffer copy = accelerator_->allocate(buffer_.bytes(), buffer_.label());
    accelerator_->executor().copy(accelerator_->streams_[0], copy, 0, buffer_, 0, buffer_.bytes());
    return std::make_shared<Memory>(accelerator_, std::move(copy));
  }
  const std::shared_ptr<Accelerator>& accelerator() const { return accelerator_; }
  const Buffer& buffer() const { return buffer_; }
  void set_handed_out() { handed_out_ = true; }

 private:
  std::shared_ptr<Accelerator> accelerator_;  ///< outlives the buffer
  Buffer buffer_;
  std::atomic<bool> handed_out_ = false;
};

std::shared_ptr<Accelerator> Accelerator::make(std::string name,
                                               std::shared_ptr<runtime::OpenDevice> device,
                                               const AcceleratorOptions& options) {
  return std::shared_ptr<Accelerator>(new Accelerator(std::move(name), std::move(device), options));
}

std::shared_ptr<Accelerator> Accelerator::make(std::string name,
                                               std::shared_ptr<runtime::KernelLoader> kernels,
                                               std::unique_ptr<runtime::Device> device,
                                               const AcceleratorOptions& options) {
  runtime::OpenDeviceOptions how;
  if (options.check_streams) how.check_streams = runtime::CheckMode::kThrow;
  return make(std::move(name),
              std::make_shared<runtime::OpenDevice>(std::move(device), std::move(kernels), how),
              options);
}

Accelerator::Accelerator(std::string name, std::shared_ptr<runtime::OpenDevice> device,
                         const AcceleratorOptions& options)
    : name_(std::move(name)),
      behind_staging_(options.behind_staging),
      device_(std::move(device)),
      pinned_(device_->device(), timeline(), options.staging) {
  for (int i = 0; i < std::max(options.streams, 1); ++i)
    streams_.push_back(timeline().create(device_->device(), fmt::format("compute {}", i)));
  copies_ = timeline().create(device_->device(), "copies");
}

/// What others lent or were lent may be in use by work that nobody waited for. The device may stay
/// open for others.
Accelerator::~Accelerator() {
  const auto end = [](const auto& step) {
    try {
      step();
    } catch (const std::exception&) {
      // A failure of work that nobody waited for, or the device has failed.
    }
  };
  if (!kept_.empty() || !buried_.empty()) end([&] { (void)settle(); });
  for (const runtime::StreamId stream : streams_) end([&] { timeline().retire(stream); });
  end([&] { timeline().retire(copies_); });
}

Buffer Accelerator::allocate(std::size_t bytes, std::string_view label) {
  return heap().allocate(std::max<std::size_t>(bytes, 1), streams_[0], label);
}

Tensor Accelerator::empty(DType dtype, Shape shape, std::string_view label,
                          runtime::StreamId stream) {
  const std::size_t bytes = static_cast<std::size_t>(num_elements(shape)) * size_of(dtype);
  return wrap(dtype, std::move(shape),
              heap().allocate(std::max<std::size_t>(bytes, 1), stream, label));
}

void Accelerator::copy_in(const Tensor& host, const Buffer& to) {
  const auto* from = static_cast<const std::byte*>(host.data());
  for (std::size_t begin = 0; begin < host.bytes(); begin += kPiece) {
    const std::size_t bytes = std::min(kPiece, host.bytes() - begin);
    runtime::PinnedBuffer staging = pinned_.allocate(bytes);
    std::memcpy(staging.address(), from + begin, bytes);
    staging.upload(executor(), copies_, to, bytes, begin);
  }
}

void Accelerator::copy_out(void* to, const Buffer& from, std::size_t bytes) {
  for (std::size_t begin = 0; begin < bytes; begin += kPiece) {
    const std::size_t count = std::min(kPiece, bytes - begin);
    runtime::PinnedBuffer staging = pinned_.allocate(count);
    staging.download(executor(), streams_[0], from, count, begin);
    staging.wait_copied(timeline());
    std::memcpy(static_cast<std::byte*>(to) + begin, staging.address(), count);
  }
}

Tensor Accelerator::upload(const Tensor& host, std::string_view label) {
  Buffer buffer = heap().allocate(std::max<std::size_t>(host.bytes(), 1), copies_, label);
  copy_in(host, buffer);
  return Tensor::on_device(host.dtype(), host.shape(),
                           std::make_shared<Memory>(shared_from_this(), std::move(buffer)));
}

void Accelerator::upload_into(const Tensor& host, const Tensor& device) {
  if (host.dtype() != device.dtype() || host.shape() != device.shape())
    throw InternalError(fmt::format("{}{} was to be written over {}{}", name_of(host.dtype()),
                                    to_string(host.shape()), name_of(device.dtype()),
                                    to_string(device.shape())));
  copy_in(host, buffer(device));
}

Tensor Accelerator::part(const Tensor& whole, std::int64_t begin, Shape shape) {
  const std::size_t element = size_of(whole.dtype());
  const auto offset = static_cast<std::size_t>(begin) * element;
  const auto bytes = static_cast<std::size_t>(num_elements(shape)) * element;
  return wrap(whole.dtype(), std::move(shape), buffer(whole).part(offset, bytes));
}

Tensor part_of(const Tensor& whole, std::int64_t begin, Shape shape) {
  const std::int64_t count = num_elements(shape);
  if (begin < 0 || begin > whole.size() || count > whole.size() - begin)
    throw UsageError(fmt::format("a part of {} elements from {} on of a tensor of {}", count, begin,
                                 whole.size()));
  if (whole.device_memory()) {
    const std::shared_ptr<Accelerator> accelerator = Accelerator::of(whole);
    if (!accelerator)
      throw UsageError(fmt::format("a part of a tensor in the memory of {}, which is not ours",
                                   whole.device_memory()->device()));
    return accelerator->part(whole, begin, std::move(shape));
  }
  const auto owner = std::make_shared<Tensor>(whole);
  auto* const first = static_cast<std::byte*>(owner->data()) +
                      static_cast<std::size_t>(begin) * size_of(whole.dtype());
  return Tensor::borrow(whole.dtype(), std::move(shape), std::shared_ptr<std::byte>(owner, first));
}

bool Accelerator::owns(const Tensor& tensor) const {
  const auto* memory = dynamic_cast<const Memory*>(tensor.device_memory().get());
  return memory != nullptr && memory->accelerator().get() == this;
}

std::shared_ptr<Accelerator> Accelerator::of(const Tensor& tensor) {
  const auto* memory = dynamic_cast<const Memory*>(tensor.device_memory().get());
  return memory == nullptr ? nullptr : memory->accelerator();
}

const Buffer& Accelerator::buffer(const Tensor& tensor) const {
  if (!owns(tensor))
    throw UsageError(
        fmt::format("a tensor in the memory of {} was given to {}; copy it to the host first",
                    tensor.device_memory() ? tensor.device_memory()->device() : "the host", name_));
  return static_cast<const Memory&>(*tensor.device_memory()).buffer();
}

void Accelerator::synchronize() {
  for (const runtime::StreamId stream : streams_) timeline().synchronize(stream);
  timeline().synchronize(copies_);
}

void Accelerator::drain() noexcept {
  for (const runtime::StreamId stream : streams_) {
    try {
      timeline().synchronize(stream);
    } catch (const std::exception&) {
      // Another failure is thrown already.
    }
  }
}

void Accelerator::refuse_capture(runtime::StreamHandle stream) const {
  if (device_->is_captured(stream))
    throw UsageError(fmt::format(
        "{}: a compiled function was called on a stream that is being captured into a CUDA graph, "
        "expected one that is not, because a replay would use scratch memory that belongs to "
        "others by then; call the function outside of the capture",
        name_));
}

Tensor Accelerator::wrap(DType dtype, Shape shape, Buffer buffer) {
  return Tensor::on_device(dtype, std::move(shape),
                           std::make_shared<Memory>(shared_from_this(), std::move(buffer)));
}

void Accelerator::keep_until_over(Buffer buffer) {
  runtime::Frontier uses = executor().uses_of(buffer);
  timeline().settle(uses, runtime::kMaxStreams);  // events to be requested
  kept_.push_back(std::move(buffer));
}

std::vector<Buffer> Accelerator::finished() {
  std::vector<Buffer> over;
  if (kept_.empty()) return over;
  timeline().poll();
  std::erase_if(kept_, [&](Buffer& buffer) {
    if (!timeline().over(executor().uses_of(buffer))) return false;
    over.push_back(std::move(buffer));
    return true;
  });
  return over;
}

std::byte* Accelerator::hand_out(const Tensor& tensor, runtime::StreamHandle stream) {
  const Buffer& memory = buffer(tensor);
  static_cast<Memory&>(*tensor.device_memory()).set_handed_out();
  if (!stream)
    executor().wait_written(memory);
  else
    timeline().let_wait(device_->device(), stream, executor().uses_of(memory));
  return memory.address();
}

void Accelerator::bury(Buffer buffer) noexcept {
  const std::lock_guard lock(buried_mutex_);
  buried_bytes_ += buffer.bytes();
  buried_.push_back(std::move(buffer));
}

std::size_t Accelerator::waiting_bytes() const {
  const std::lock_guard lock(buried_mutex_);
  return buried_bytes_;
}

std::vector<Buffer> Accelerator::settle() {
  std::vector<Buffer> buried;
  {
    const std::lock_guard lock(buried_mutex_);
    buried.swap(buried_);
    buried_bytes_ = 0;
  }
  device_->device().drain();
  return std::exchange(kept_, {});
}

namespace {

/// Staging memory in slabs that no forked child can hurt: a data loader may fork while copies run.
struct Staging {
  explicit Staging(int ordinal) : registry(comm::make_cuda_host_backend(ordinal)) {}
  comm::Registry registry;
  comm::RegisteredPool pool{registry, {.owner = "staging"}};
};

void stage_in_slabs(int ordinal, AcceleratorOptions& options) {
  auto staging = std::make_shared<Staging>(ordinal);
  options.staging = comm::staging_from(staging->pool, options.staging.limit);
  options.behind_staging = std::move(staging);
}

/// As a context holds them.
struct KeptAccelerators {
  Mutex mutex;
  std::map<std::string, std::shared_ptr<Accelerator>, std::less<>> by_name
      SEGFUSE_GUARDED_BY(mutex);
};

}  // namespace

void keep_in(const Context& context, const std::shared_ptr<Accelerator>& accelerator) {
  auto& kept = context.state().part<KeptAccelerators>();
  const MutexLock lock(kept.mutex);
  kept.by_name[accelerator->name()] = accelerator;
}

std::shared_ptr<Accelerator> open_accelerator(std::string_view name, const Context& context) {
  if (name == "cpu") return nullptr;
  auto& kept = context.state().part<KeptAccelerators>();
  {
    const MutexLock lock(kept.mutex);
    const auto found = kept.by_name.find(name == "cuda" ? "cuda:0" : name);
    if (found != kept.by_name.end()) return found->second;
  }
  int ordinal = 0;
  const std::string_view number = name.starts_with("cuda:") ? name.substr(5) : "0";
  const auto [end, error] = std::from_chars(number.data(), number.data() + number.size(), ordinal);
  if ((name != "cuda" && !name.starts_with("cuda:")) || error != std::errc() ||
      end != number.data() + number.size() || ordinal < 0)
    throw UsageError(fmt::format(
        "device '{}' is unknown; known are 'cpu', 'cuda' and 'cuda:N' for the N-th GPU", name));
  static std::mutex mutex;
  static auto& opened = *new std::map<std::pair<int, bool>, std::weak_ptr<Accelerator>>();
  const std::lock_guard lock(mutex);
  const bool check_streams = context.options().get(options::kCheckStreams);
  std::weak_ptr<Accelerator>& slot = opened[{ordinal, check_streams}];
  std::shared_ptr<Accelerator> accelerator = slot.lock();
  if (!accelerator) {
    std::shared_ptr<runtime::OpenDevice> device = runtime::open_cuda(ordinal, check_streams);
    AcceleratorOptions how;
    stage_in_slabs(ordinal, how);
    accelerator = Accelerator::make(fmt::format("cuda:{}", ordinal), std::move(device), how);
    slot = accelerator;
  }
  return accelerator;
}

std::shared_ptr<Accelerator> open_host(const Context& context) {
  if (!context.options().get(options::kCheckStreams)) return nullptr;
  static std::mutex mutex;
  static auto& opened = *new std::weak_ptr<Accelerator>();
  const std::lock_guard lock(mutex);
  std::shared_ptr<Accelerator> host = opened.lock();
  if (!host)
    opened = host = Accelerator::make("cpu", nullptr, std::make_unique<runtime::CpuDevice>(),
                                      {.streams = 2, .check_streams = true});
  return host;
}

}  // namespace segfuse::engine
