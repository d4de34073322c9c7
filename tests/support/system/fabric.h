#pragma once
// libfabric: opened at run time, with its headers at build time.

#include <rdma/fabric.h>

#include <memory>
#include <string>

#include "segfuse/registered.h"

struct fid_domain;

namespace segfuse::comm {

class FabricBackend final : public Backend {
 public:
  /// A provider by name ("tcp", "shm", "tcp;ofi_rxm") for connectionless messages. Throws
  /// DeviceError without the library or the provider.
  explicit FabricBackend(const std::string& provider);
  ~FabricBackend() override;

  std::string_view name() const override { return "libfabric"; }
  std::unique_ptr<Pin> pin(std::span<std::byte> pages) override;

  /// For endpoints in the same domain.
  fid_domain* domain() const;
  fi_info* info() const;

  struct State;

 private:
  std::shared_ptr<State> state_;
};

}  // namespace segfuse::comm
