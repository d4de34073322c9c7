#pragma once
// Where a rank meets the others, and with which key.

#include <filesystem>
#include <functional>
#include <optional>
#include <string>

#include "base/os/ranks.h"
#include "comm/meet/clock.h"
#include "comm/meet/meeting.h"

namespace segfuse::comm::meet {

struct Key {
  std::string bytes;  ///< 32
  bool weak = false;  ///< known to all who can list the jobs of this scheduler
};
/// The key that a secret text of any length gives.
std::string key_of(std::string_view secret);
/// SEGFUSE_JOB_KEY, 16 characters at least; else from the scheduler's name for the job. Throws
/// UsageError where there is neither.
Key key_of_environment(const std::string& job);
/// A secret that nobody can guess, in printable characters.
std::string new_secret();

/// MASTER_PORT; else one that all ranks compute from the scheduler's name for the job. Throws
/// UsageError where there is neither.
int port_for(const Ranks& ranks);

// The variables that segfuse's launcher sets for its children besides those of all launchers.
inline constexpr const char* kKeyVariable = "SEGFUSE_JOB_KEY";
inline constexpr const char* kLauncherVariable = "SEGFUSE_LAUNCHER";  ///< its process number
inline constexpr int kLauncherDescriptor = 3;  ///< a pipe that ends with the launcher
inline constexpr int kBoardDescriptor = 4;
inline constexpr int kListeningDescriptor = 5;  ///< of rank 0

/// Of a process that our launcher started without others, which is a meeting of its own; nothing
/// where it did not.
std::optional<MeetingOptions> options_of_only_child();

/// Where a meeting can be found while it lasts: a file in the folder of a run that only its user
/// can read.
struct Place {
  std::string host;
  int port = 0;
  std::string key;  ///< 32 bytes
  std::int64_t count = 0;
  std::int64_t pid = 0;  ///< of rank 0
};
inline constexpr const char* kPlaceFile = "ranks.json";
void write_place(const std::filesystem::path& folder, const Place& place);
void remove_place(const std::filesystem::path& folder) noexcept;
/// Removes the file that a killed rank 0 with this process number left there.
void remove_place_of(std::int64_t pid, const std::filesystem::path& folder) noexcept;
/// Throws DataError.
Place read_place(const std::filesystem::path& file);

/// The report of rank 0 of a running job on all ranks. Throws CommError.
Rows look(const Place& place, const Clock& clock, const Timings& timings);

}  // namespace segfuse::comm::meet
