#include <fmt/core.h>

#include <nlohmann/json.hpp>

#include "commands.h"
#include "segfuse/capabilities.h"
#include "segfuse/context.h"
#include "segfuse/version.h"

namespace segfuse::cli {

void add_info(Command app, Common& common) {
  Command command =
      app.add("info", "Show what this build and this machine support, and all options");
  command.footer("\nExample:\n  segfuse info");
  command.runs([&common] {
    const Options values = Context::process_default().options();
    nlohmann::ordered_json json = {{"version", version()}};
    for (const Capability& c : capabilities())
      json["capabilities"].push_back(
          {{"name", c.name}, {"available", c.available}, {"detail", c.detail}});
    for (const OptionInfo& option : option_table())
      json["options"].push_back({{"name", option.name},
                                 {"value", values.text(option.name)},
                                 {"environment", option.environment},
                                 {"doc", option.doc}});
    if (common.json) {
      print_json(json);
      return;
    }
    put("segfuse {}\n\n", version());
    for (const Capability& c : capabilities())
      put("  {:<14} {:<4} {}\n", c.name, c.available ? "yes" : "no", c.detail);
    put("\noptions (flag or environment variable):\n");
    for (const OptionInfo& option : option_table())
      put("  --{:<16} {:<10} {}  [{}]\n", option.name, values.text(option.name), option.doc,
          option.environment);
  });
}

}  // namespace segfuse::cli
