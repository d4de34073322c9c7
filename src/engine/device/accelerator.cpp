#include "engine/device/accelerator.h"

#include <fmt/core.h>

#include <algorithm>
#include <atomic>
#include <charconv>
#include <cstring>
#include <filesystem>
#include <map>
#include <mutex>
#include <tuple>

#include "base/context_state.h"
#ifdef SEGFUSE_WITH_COMM
#include "comm/registered/backends/cuda_host.h"
#include "comm/registered/pool.h"
#endif
#include "runtime/cuda/cuda_device.h"
#include "segfuse/error.h"

namespace segfuse::engine {

using runtime::Buffer;

namespace {

constexpr std::size_t kPiece = std::size_t{32} << 20;  // bytes of one staged copy
constexpr std::size_t kMostAdopted = 32;

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
    accelerator_->executor_.copy(accelerator_->streams_[0], copy, 0, buffer_, 0, buffer_.bytes());
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

std::shared_ptr<Accelerator> Accelerator::make(std::string name, std::shared_ptr<runtime::Gpu> gpu,
                                               std::unique_ptr<runtime::Device> device,
                                               AcceleratorOptions options) {
  return std::shared_ptr<Accelerator>(
      new Accelerator(std::move(name), std::move(gpu), std::move(device), options));
}

Accelerator::Accelerator(std::string name, std::shared_ptr<runtime::Gpu> gpu,
                         std::unique_ptr<runtime::Device> device, const AcceleratorOptions& options)
    : name_(std::move(name)),
      behind_staging_(options.behind_staging),
      gpu_(std::move(gpu)),
      device_(std::move(device)),
      checker_(options.check_streams
                   ? std::make_unique<runtime::RaceChecker>(*device_, runtime::CheckMode::kThrow)
                   : nullptr),
      executor_(timeline_),
      heap_(outer(), timeline_, options.heap),
      pinned_(outer(), timeline_, options.staging) {
  for (int i = 0; i < std::max(options.streams, 1); ++i)
    streams_.push_back(timeline_.create(outer(), fmt::format("compute {}", i)));
  copies_ = timeline_.create(outer(), "copies");
}

/// What others lent or were lent may be in use by work that nobody waited for.
Accelerator::~Accelerator() {
  if (kept_.empty() && buried_.empty()) return;
  try {
    (void)settle();
  } catch (const std::exception&) {
    // The device is gone.
  }
}

runtime::Device& Accelerator::outer() const {
  return checker_ ? static_cast<runtime::Device&>(*checker_) : *device_;
}

Buffer Accelerator::allocate(std::size_t bytes, std::string_view label) {
  return heap_.allocate(std::max<std::size_t>(bytes, 1), streams_[0], label);
}

Tensor Accelerator::empty(DType dtype, Shape shape, std::string_view label,
                          runtime::StreamId stream) {
  const std::size_t bytes = static_cast<std::size_t>(num_elements(shape)) * size_of(dtype);
  return wrap(dtype, std::move(shape),
              heap_.allocate(std::max<std::size_t>(bytes, 1), stream, label));
}

void Accelerator::copy_in(const Tensor& host, const Buffer& to) {
  const auto* from = static_cast<const std::byte*>(host.data());
  for (std::size_t begin = 0; begin < host.bytes(); begin += kPiece) {
    const std::size_t bytes = std::min(kPiece, host.bytes() - begin);
    runtime::PinnedBuffer staging = pinned_.allocate(bytes);
    std::memcpy(staging.address(), from + begin, bytes);
    staging.upload(executor_, copies_, to, bytes, begin);
  }
}

void Accelerator::copy_out(void* to, const Buffer& from, std::size_t bytes) {
  for (std::size_t begin = 0; begin < bytes; begin += kPiece) {
    const std::size_t count = std::min(kPiece, bytes - begin);
    runtime::PinnedBuffer staging = pinned_.allocate(count);
    staging.download(executor_, streams_[0], from, count, begin);
    staging.wait_copied(timeline_);
    std::memcpy(static_cast<std::byte*>(to) + begin, staging.address(), count);
  }
}

Tensor Accelerator::upload(const Tensor& host, std::string_view label) {
  Buffer buffer = heap_.allocate(std::max<std::size_t>(host.bytes(), 1), copies_, label);
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
        fmt::format("a tensor in the memory of {} was given to {}; bring it to the host first",
                    tensor.device_memory() ? tensor.device_memory()->device() : "the host", name_));
  return static_cast<const Memory&>(*tensor.device_memory()).buffer();
}

void Accelerator::synchronize() {
  for (const runtime::StreamId stream : streams_) timeline_.synchronize(stream);
  timeline_.synchronize(copies_);
}

std::optional<runtime::StreamId> Accelerator::adopt(runtime::StreamHandle stream) {
  if (std::ranges::find(adopted_, stream) != adopted_.end())
    return timeline_.adopt(outer(), stream);
  if (adopted_.size() == kMostAdopted) return {};
  adopted_.push_back(stream);
  return timeline_.adopt(outer(), stream, fmt::format("caller's {}", adopted_.size()));
}

Tensor Accelerator::wrap(DType dtype, Shape shape, Buffer buffer) {
  return Tensor::on_device(dtype, std::move(shape),
                           std::make_shared<Memory>(shared_from_this(), std::move(buffer)));
}

void Accelerator::keep_until_over(Buffer buffer) {
  runtime::Frontier uses = executor_.uses_of(buffer);
  timeline_.settle(uses, runtime::kMaxStreams);  // events to be asked for
  kept_.push_back(std::move(buffer));
}

std::vector<Buffer> Accelerator::finished() {
  std::vector<Buffer> over;
  if (kept_.empty()) return over;
  timeline_.poll();
  std::erase_if(kept_, [&](Buffer& buffer) {
    if (!timeline_.over(executor_.uses_of(buffer))) return false;
    over.push_back(std::move(buffer));
    return true;
  });
  return over;
}

std::byte* Accelerator::hand_out(const Tensor& tensor, runtime::StreamHandle stream) {
  const Buffer& memory = buffer(tensor);
  static_cast<Memory&>(*tensor.device_memory()).set_handed_out();
  if (stream == nullptr)
    executor_.wait_written(memory);
  else
    timeline_.let_wait(outer(), stream, executor_.uses_of(memory));
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
  outer().drain();
  return std::exchange(kept_, {});
}

namespace {

#ifdef SEGFUSE_WITH_COMM
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
#else
void stage_in_slabs(int, AcceleratorOptions&) {}
#endif

/// As a context holds them.
struct KeptAccelerators {
  std::mutex mutex;
  std::map<std::string, std::shared_ptr<Accelerator>, std::less<>> by_name;
};

}  // namespace

void keep_in(const Context& context, const std::shared_ptr<Accelerator>& accelerator) {
  auto& kept = context.state().part<KeptAccelerators>();
  const std::lock_guard lock(kept.mutex);
  kept.by_name[accelerator->name()] = accelerator;
}

std::shared_ptr<Accelerator> open_accelerator(std::string_view name, const Context& context) {
  if (name == "cpu") return nullptr;
  auto& kept = context.state().part<KeptAccelerators>();
  {
    const std::lock_guard lock(kept.mutex);
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
  static std::map<std::tuple<int, bool, std::filesystem::path>, std::weak_ptr<Accelerator>> opened;
  const std::lock_guard lock(mutex);
  const bool check_streams = context.options().get(options::kCheckStreams);
  const std::shared_ptr<const CodeStore>& code = context.state().code;
  std::weak_ptr<Accelerator>& slot = opened[{ordinal, check_streams, code->folder()}];
  std::shared_ptr<Accelerator> accelerator = slot.lock();
  if (!accelerator) {
    std::shared_ptr<runtime::Gpu> gpu = runtime::open_cuda_gpu(ordinal, code);
    AcceleratorOptions how{.check_streams = check_streams};
    stage_in_slabs(ordinal, how);
    accelerator = Accelerator::make(fmt::format("cuda:{}", ordinal), std::move(gpu),
                                    runtime::open_cuda_device(ordinal), std::move(how));
    slot = accelerator;
  }
  return accelerator;
}

}  // namespace segfuse::engine
