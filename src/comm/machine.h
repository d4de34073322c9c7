#pragma once
// Which ranks are on one machine.

#include <cstdint>
#include <string>
#include <vector>

namespace segfuse::comm {

class Group;

/// A name of this machine while it runs, as no other one has. Host names may repeat.
std::string own_machine();

/// For each rank, the first rank of its machine. All ranks call it.
std::vector<std::int64_t> machines_of(Group& control);

}  // namespace segfuse::comm
