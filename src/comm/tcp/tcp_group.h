#pragma once
// Ranks that met (meet/) and exchange bytes over TCP, a connection between each two: what works
// without an MPI. Bytes are neither signed nor encrypted, as those of an MPI are not.

#include <memory>

#include "comm/group.h"
#include "comm/meet/meeting.h"

namespace segfuse::comm {

/// All ranks of the meeting call it. abort() tells the others through the meeting; what goes wrong
/// anywhere is thrown as the meeting has it (Meeting::check()). CommError where they cannot connect
/// to each other. With MeetingOptions::min_ranks they go on without ranks that are lost; then they
/// leave the meeting, as a unit, before the group finishes. A newcomer of the meeting
/// (Meeting::is_late()) is outside.
std::unique_ptr<Group> open_tcp_group(std::shared_ptr<meet::Meeting> meeting);

}  // namespace segfuse::comm
