#include "comm/machine.h"

#include <fmt/core.h>

#include <algorithm>
#include <fstream>

#include "comm/group.h"
#include "comm/meet/wire/socket.h"

namespace segfuse::comm {

std::string own_machine() {
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  std::string boot;
  std::getline(file, boot);
  return fmt::format("{} ({})", meet::own_host(), boot);
}

std::vector<std::int64_t> machines_of(Group& control) {
  const std::vector<std::string> names = control.gather(own_machine());
  std::vector<std::int64_t> first;
  for (const std::string& name : names)
    first.push_back(std::ranges::find(names, name) - names.begin());
  return first;
}

}  // namespace segfuse::comm
