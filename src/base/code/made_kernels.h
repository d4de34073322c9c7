#pragma once
// Generated code of a device, as it is made or loaded: reported to those who listen, like messages
// to the log sink.

#include <functional>
#include <string>
#include <vector>

namespace segfuse {

/// One text and what became of it.
struct MadeKernels {
  enum class Language { kC, kCuda };
  Language language = Language::kC;
  std::string name;  ///< for people
  std::string text;
  std::vector<std::string> defines = {};
  std::string architecture = {};  ///< of CUDA: "sm_90"
  std::string machine_code = {};  ///< of CUDA: the cubin
};

/// Hears of every text from when it is made until it is destroyed; the same text may come again.
/// Called by one thread at a time, which waits.
class KernelListener {
 public:
  explicit KernelListener(std::function<void(const MadeKernels&)> listen);
  ~KernelListener();
  KernelListener(const KernelListener&) = delete;
  KernelListener& operator=(const KernelListener&) = delete;

 private:
  friend void tell_kernels(const MadeKernels& made);
  std::function<void(const MadeKernels&)> listen_;
};

/// Whether tell_kernels() does anything.
bool kernels_are_heard() noexcept;
void tell_kernels(const MadeKernels& made);

}  // namespace segfuse
