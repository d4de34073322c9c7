#pragma once
// Matrix products by cuBLASLt, opened at run time: neither its headers nor the library are needed
// to build.

#include <memory>
#include <string>

#include "runtime/matmul.h"

namespace segfuse::runtime::cuda {

/// Whether the library can be opened; the sentence that says why not otherwise.
bool cublas_lt_is_there(std::string* reason = nullptr);
/// "13.1.0"
std::string cublas_lt_version();

/// Handles of one device. The device's context is current in all calls.
class CublasLt {
 public:
  /// Throws DeviceError when the library is missing or refuses.
  CublasLt();
  ~CublasLt();
  CublasLt(const CublasLt&) = delete;
  CublasLt& operator=(const CublasLt&) = delete;

  /// The way that the library thinks fastest for these sizes, among those that give the same bits
  /// each time. Null when it has none.
  std::unique_ptr<GpuMatmul> prepare(const GpuProduct& product) const;

 private:
  void* handle_ = nullptr;
};

}  // namespace segfuse::runtime::cuda
