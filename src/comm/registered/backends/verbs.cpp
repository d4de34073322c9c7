#include <fmt/core.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "base/console/log.h"
#include "base/os/shared_library.h"
#include "comm/registered/child.h"
#include "segfuse/error.h"
#include "segfuse/registered.h"

namespace segfuse::comm {
namespace {

// What is used of libibverbs' interface, whose layout is stable since version 1.1.
struct MemoryRegion {  // ibv_mr
  void* context;
  void* domain;
  void* address;
  std::size_t length;
  std::uint32_t handle;
  std::uint32_t local_key;
  std::uint32_t remote_key;
};
constexpr int kVerbsAccess = 1 | 2 | 4;  // local write, remote write, remote read

struct Verbs {
  void** (*devices)(int*);
  void (*free_devices)(void**);
  const char* (*device_name)(void*);
  void* (*open)(void*);
  int (*close)(void*);
  void* (*allocate_domain)(void*);
  int (*free_domain)(void*);
  MemoryRegion* (*register_memory)(void*, void*, std::size_t, int);
  int (*deregister)(MemoryRegion*);
};

const Verbs& verbs() {
  static const Verbs opened = [] {
    static const auto& library =
        *new SharedLibrary(SharedLibrary::open_first({"libibverbs.so.1", "libibverbs.so"}));
    if (!library)
      throw DeviceError(fmt::format(
          "verbs: libibverbs.so.1 cannot be opened ({}); install libibverbs1", library.error()));
    Verbs v{};
    library.load("ibv_get_device_list", v.devices);
    library.load("ibv_free_device_list", v.free_devices);
    library.load("ibv_get_device_name", v.device_name);
    library.load("ibv_open_device", v.open);
    library.load("ibv_close_device", v.close);
    library.load("ibv_alloc_pd", v.allocate_domain);
    library.load("ibv_dealloc_pd", v.free_domain);
    library.load("ibv_reg_mr", v.register_memory);
    library.load("ibv_dereg_mr", v.deregister);
    return v;
  }();
  return opened;
}

struct Domain {
  void* context = nullptr;
  void* domain = nullptr;

  ~Domain() {
    if (in_forked_child()) return;
    if (domain != nullptr) verbs().free_domain(domain);
    if (context != nullptr) verbs().close(context);
  }
};

class VerbsPin final : public Pin {
 public:
  VerbsPin(std::shared_ptr<Domain> domain, std::span<std::byte> pages)
      : domain_(std::move(domain)),
        region_(
            verbs().register_memory(domain_->domain, pages.data(), pages.size(), kVerbsAccess)) {
    if (region_ == nullptr)
      throw DeviceError(
          fmt::format("verbs: {} bytes cannot be registered: {}; see the limit on locked memory "
                      "(ulimit -l)",
                      pages.size(), std::strerror(errno)));
  }
  ~VerbsPin() override {
    if (!in_forked_child()) verbs().deregister(region_);
  }
  std::uint64_t key() const override { return region_->remote_key; }
  void* descriptor() const override {
    return reinterpret_cast<void*>(std::uintptr_t{region_->local_key});
  }

 private:
  std::shared_ptr<Domain> domain_;
  MemoryRegion* region_;
};

class VerbsBackend final : public Backend {
 public:
  explicit VerbsBackend(std::shared_ptr<Domain> domain) : domain_(std::move(domain)) {}
  std::string_view name() const override { return "verbs"; }
  std::unique_ptr<Pin> pin(std::span<std::byte> pages) override {
    return std::make_unique<VerbsPin>(domain_, pages);
  }
  bool counted() const override { return true; }

 private:
  std::shared_ptr<Domain> domain_;
};

void warn_of_environment() {
  for (const char* name : {"RDMAV_FORK_SAFE", "IBV_FORK_SAFE"})
    if (std::getenv(name) != nullptr)
      log(LogLevel::kWarning,
          "verbs: {} is set; before rdma-core 51 it takes whole pages of other people's memory "
          "from "
          "forked children; slabs do not need it, unset it",
          name);
}

}  // namespace

std::shared_ptr<Backend> make_verbs_backend(const std::string& device) {
  refuse_in_child("make_verbs_backend");
  const Verbs& v = verbs();
  warn_of_environment();
  int count = 0;
  void** const list = v.devices(&count);
  const int reason = errno;
  if (list == nullptr || count == 0) {
    if (list != nullptr) v.free_devices(list);
    throw DeviceError(
        fmt::format("verbs: no device{}; this machine has no RDMA adapter that is visible here",
                    list == nullptr ? fmt::format(" ({})", std::strerror(reason)) : ""));
  }
  auto domain = std::make_shared<Domain>();
  bool found = false;
  for (int i = 0; i < count && !found; ++i) {
    found = device.empty() || device == v.device_name(list[i]);
    if (found) domain->context = v.open(list[i]);
  }
  v.free_devices(list);
  if (!found) throw DeviceError(fmt::format("verbs: there is no device '{}'", device));
  if (domain->context != nullptr) domain->domain = v.allocate_domain(domain->context);
  if (domain->domain == nullptr)
    throw DeviceError(fmt::format("verbs: the device cannot be opened: {}", std::strerror(errno)));
  return std::make_shared<VerbsBackend>(std::move(domain));
}

}  // namespace segfuse::comm
