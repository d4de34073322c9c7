#pragma once
// The GPUs of this machine, before one is opened.

#include <string>
#include <string_view>

namespace segfuse::engine {

/// How many GPUs open_accelerator() knows; 0 with the reason.
int gpu_count(std::string* reason = nullptr);
/// "2 GPUs: 0, 1", "1 GPU: 0".
std::string gpus_text(int count);
/// What no other GPU is called, on any machine; empty for one that is not known.
std::string gpu_identity(std::string_view name);

}  // namespace segfuse::engine
