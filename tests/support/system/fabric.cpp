#include "support/system/fabric.h"

#include <fmt/core.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_errno.h>

#include <atomic>
#include <cstring>
#include <utility>

#include "base/os/shared_library.h"
#include "comm/registered/child.h"
#include "segfuse/error.h"

namespace segfuse::comm {
namespace {

constexpr std::uint32_t kVersion = FI_VERSION(1, 11);
constexpr std::uint64_t kFabricAccess =
    FI_SEND | FI_RECV | FI_READ | FI_WRITE | FI_REMOTE_READ | FI_REMOTE_WRITE;

/// What libfabric exports; the rest of its interface is functions in its headers.
struct Library {
  int (*get_info)(std::uint32_t, const char*, const char*, std::uint64_t, const fi_info*,
                  fi_info**);
  void (*free_info)(fi_info*);
  fi_info* (*copy_info)(const fi_info*);
  int (*open_fabric)(fi_fabric_attr*, fid_fabric**, void*);
  const char* (*text)(int);
};

const Library& library() {
  static const Library opened = [] {
    static const SharedLibrary file = SharedLibrary::open_first({"libfabric.so.1"});
    if (!file)
      throw DeviceError(fmt::format(
          "libfabric: libfabric.so.1 cannot be opened ({}); install libfabric1", file.error()));
    Library l{};
    file.load("fi_getinfo", l.get_info);
    file.load("fi_freeinfo", l.free_info);
    file.load("fi_dupinfo", l.copy_info);
    file.load("fi_fabric", l.open_fabric);
    file.load("fi_strerror", l.text);
    return l;
  }();
  return opened;
}

void check(int result, const char* what, const std::string& provider) {
  if (result != 0)
    throw DeviceError(fmt::format("libfabric: {} of provider '{}' failed: {}", what, provider,
                                  library().text(-result)));
}

}  // namespace

struct FabricBackend::State {
  State() = default;
  ~State() {
    if (in_forked_child()) return;
    if (domain != nullptr) fi_close(&domain->fid);
    if (fabric != nullptr) fi_close(&fabric->fid);
    if (info != nullptr) library().free_info(info);
  }
  State(const State&) = delete;
  State& operator=(const State&) = delete;

  std::string provider;
  fi_info* info = nullptr;
  fid_fabric* fabric = nullptr;
  fid_domain* domain = nullptr;
  std::atomic<std::uint64_t> next_key{1};
};

namespace {

class FabricPin final : public Pin {
 public:
  FabricPin(std::shared_ptr<FabricBackend::State> state, std::span<std::byte> pages)
      : state_(std::move(state)) {
    check(fi_mr_reg(state_->domain, pages.data(), pages.size(), kFabricAccess, 0,
                    state_->next_key++, 0, &region_, nullptr),
          "registering memory", state_->provider);
  }
  ~FabricPin() override {
    if (!in_forked_child()) fi_close(&region_->fid);
  }
  std::uint64_t key() const override { return fi_mr_key(region_); }
  void* descriptor() const override { return fi_mr_desc(region_); }

 private:
  std::shared_ptr<FabricBackend::State> state_;
  fid_mr* region_ = nullptr;
};

}  // namespace

FabricBackend::FabricBackend(const std::string& provider) : state_(std::make_shared<State>()) {
  refuse_in_child("FabricBackend");
  const Library& l = library();
  State& s = *state_;
  s.provider = provider;
  fi_info* hints = l.copy_info(nullptr);
  if (hints == nullptr) throw DeviceError("libfabric: out of memory");
  hints->caps = FI_MSG | FI_RMA;
  hints->mode = FI_CONTEXT;
  hints->ep_attr->type = FI_EP_RDM;
  hints->domain_attr->mr_mode = FI_MR_LOCAL | FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY;
  hints->fabric_attr->prov_name = strdup(provider.c_str());
  const int result = l.get_info(kVersion, nullptr, nullptr, 0, hints, &s.info);
  l.free_info(hints);
  check(result, "looking for endpoints", provider);
  check(l.open_fabric(s.info->fabric_attr, &s.fabric, nullptr), "opening the fabric", provider);
  check(fi_domain(s.fabric, s.info, &s.domain, nullptr), "opening the domain", provider);
}

FabricBackend::~FabricBackend() = default;

std::unique_ptr<Pin> FabricBackend::pin(std::span<std::byte> pages) {
  return std::make_unique<FabricPin>(state_, pages);
}

fid_domain* FabricBackend::domain() const { return state_->domain; }
fi_info* FabricBackend::info() const { return state_->info; }

}  // namespace segfuse::comm
