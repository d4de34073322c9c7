#include "engine/device/gpus.h"

#include <fmt/core.h>

#include <charconv>

#include "runtime/kernels.h"

namespace segfuse::engine {

int gpu_count(std::string* reason) { return runtime::cuda_device_count(reason); }

std::string gpus_text(int count) {
  std::string text = fmt::format("{} GPU{}", count, count == 1 ? "" : "s");
  for (int gpu = 0; gpu < count; ++gpu) text += fmt::format("{} {}", gpu == 0 ? ":" : ",", gpu);
  return text;
}

std::string gpu_identity(std::string_view name) {
  int ordinal = 0;
  const std::string_view number = name.starts_with("cuda:") ? name.substr(5) : "";
  const auto [end, error] = std::from_chars(number.data(), number.data() + number.size(), ordinal);
  if (error != std::errc()) return "";
  return runtime::cuda_device_identity(ordinal);
}

}  // namespace segfuse::engine
