// --report-kernels: what each kernel that a command made needs.

#include <nlohmann/json.hpp>

#include "commands.h"

namespace segfuse::cli {

std::string kernels_text(const Common& common) {
  if (!common.kernels) return "";
  std::string text;
  for (const KernelReport& report : common.kernels->kernels())
    text += "\n" + kernel_report_text(report);
  return text.empty() ? "\nno kernels were made\n" : text;
}

void add_kernels(nlohmann::ordered_json& json, const Common& common) {
  if (!common.kernels) return;
  auto all = nlohmann::ordered_json::array();
  for (const KernelReport& report : common.kernels->kernels())
    all.push_back(nlohmann::ordered_json::parse(kernel_report_json(report)));
  json["kernels"] = std::move(all);
}

}  // namespace segfuse::cli
