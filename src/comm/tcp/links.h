#pragma once
// A connection between each two ranks of a meeting.

#include <string>
#include <vector>

#include "base/os/descriptor.h"
#include "comm/meet/meeting.h"

namespace segfuse::comm {

/// In the order of Meeting::ranks().
struct Links {
  std::vector<Descriptor> sockets;  ///< none (-1) at the own place
  std::vector<std::string> words;   ///< of each rank
};
/// Both sides of each connection have proved the meeting's key and are of one generation, and
/// nothing is on its way. All ranks call it, each with a word for the others. CommError where
/// somebody does not come, RanksChanged where one is lost meanwhile.
Links link_ranks(meet::Meeting& meeting, const std::string& word);

}  // namespace segfuse::comm
