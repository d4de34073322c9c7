#include "runtime/cuda/shared_memory.h"

#include <fmt/core.h>
#include <sys/random.h>

#include <cstring>
#include <map>

#include "base/mutex.h"
#include "runtime/device.h"
#include "segfuse/error.h"

namespace segfuse::runtime::cuda {
namespace {

/// What the driver maps at once. Smaller memory may lie in one mapping with memory of others, and a
/// handle stands for the whole mapping.
constexpr std::size_t kMapping = std::size_t{2} << 20;

/// A text as plain bytes, as which it travels.
struct Shared {
  unsigned char process[16];  ///< of its process, and no other one's on any machine
  Device device;
  DevicePtr address;
  IpcHandle handle;
};

const unsigned char (&own_process())[16] {
  static const struct Number {
    Number() {
      if (getrandom(bytes, sizeof bytes, 0) != sizeof bytes)
        throw DeviceError("the system gives no random bytes for shared memory");
    }
    unsigned char bytes[16];
  } number;
  return number.bytes;
}

struct OwnMemory {
  std::weak_ptr<std::byte> memory;
  Context context = nullptr;  ///< of its device, which keeps it open for as long
};

Mutex mutex;
/// What this process has shared and not given back.
std::map<DevicePtr, OwnMemory>& own_memory() SEGFUSE_REQUIRES(mutex) {
  static auto& map = *new std::map<DevicePtr, OwnMemory>();
  return map;
}

DevicePtr number(const void* address) { return reinterpret_cast<DevicePtr>(address); }

/// Does something to memory that nobody reaches any more, where nothing may be thrown.
void end(const Driver& driver, Context context, Result (*call)(DevicePtr), const void* memory) {
  Context ignored = nullptr;
  if (driver.context_push(context) != 0) return;
  const BesideCaptures beside(driver);
  call(number(memory));
  driver.context_pop(&ignored);
}

std::shared_ptr<std::byte> reach_own(const Driver& driver, Device device, const Shared& text) {
  std::shared_ptr<std::byte> memory;
  Context theirs = nullptr;
  {
    const MutexLock lock(mutex);
    const auto found = own_memory().find(text.address);
    if (found != own_memory().end()) {
      memory = found->second.memory.lock();
      theirs = found->second.context;
    }
  }
  if (memory == nullptr)
    throw DeviceError(
        "CUDA: the shared memory of another device was released before this one opened it");
  if (text.device == device) return memory;
  const Result result = driver.reach_context(theirs, 0);
  if (result != kReachedBefore) check(driver, result, "reaching another device's memory");
  return memory;
}

}  // namespace

std::shared_ptr<std::byte> allocate_shared(const Driver& driver, Context context,
                                           std::size_t bytes) {
  bytes = (bytes + kMapping - 1) / kMapping * kMapping;
  DevicePtr address = 0;
  const Result result = driver.mem_allocate(&address, bytes);
  if (result == kOutOfMemory) throw NoMemory();
  check(driver, result, "allocating memory to be shared");
  std::shared_ptr<std::byte> memory(reinterpret_cast<std::byte*>(address),
                                    [&driver, context](std::byte* gone) {
                                      {
                                        const MutexLock lock(mutex);
                                        own_memory().erase(number(gone));
                                      }
                                      end(driver, context, driver.mem_free, gone);
                                    });
  check(driver, driver.memset_now(address, 0, bytes), "clearing memory to be shared");
  check(driver, driver.context_synchronize(), "clearing memory to be shared");
  const MutexLock lock(mutex);
  own_memory()[address] = {memory, context};
  return memory;
}

std::string share(const Driver& driver, Device device, const std::shared_ptr<std::byte>& memory) {
  Shared text{};
  std::memcpy(text.process, own_process(), sizeof text.process);
  text.device = device;
  text.address = number(memory.get());
  check(driver, driver.share_memory(&text.handle, text.address), "sharing memory");
  return {reinterpret_cast<const char*>(&text), sizeof text};
}

std::shared_ptr<std::byte> reach_shared(const Driver& driver, Context context, Device device,
                                        const std::string& shared) {
  Shared text{};
  if (shared.size() != sizeof text)
    throw DeviceError(fmt::format("CUDA: shared memory has a name of {} bytes, expected {}",
                                  shared.size(), sizeof text));
  std::memcpy(&text, shared.data(), sizeof text);
  if (std::memcmp(text.process, own_process(), sizeof text.process) == 0)
    return reach_own(driver, device, text);
  DevicePtr address = 0;
  check(driver, driver.open_shared(&address, text.handle, kReachLazily),
        "reaching memory of another process");
  return {reinterpret_cast<std::byte*>(address),
          [&driver, context](std::byte* gone) { end(driver, context, driver.close_shared, gone); }};
}

}  // namespace segfuse::runtime::cuda
