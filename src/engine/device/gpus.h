#pragma once
// The GPUs of this machine, before one is opened.

#include <string>
#include <string_view>

namespace segfuse::engine {

/// How many GPUs open_accelerator() knows; 0 with the reason.
int gpu_count(std::string* reason = nullptr);
/// "2 GPUs: 0, 1", "1 GPU: 0".
std::string gpus_text(int count);
/// An identifier that is unique on all machines; empty for an unknown GPU.
std::string gpu_identity(std::string_view name);

}  // namespace segfuse::engine
