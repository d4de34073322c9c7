// Recordings that a command writes.

#include <fmt/core.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>

#include "learn/data/audio/parsers.h"
#include "learn/data/text.h"
#include "segfuse/data.h"
#include "segfuse/error.h"
#include "segfuse/spawn.h"

namespace segfuse {
namespace {

constexpr std::chrono::minutes kPatience{10};
constexpr std::size_t kMaxBytes = std::size_t{2} << 30;

/// A file without a name that holds `bytes`.
class MemoryFile {
 public:
  explicit MemoryFile(std::string_view bytes) : number_(memfd_create("audio", MFD_CLOEXEC)) {
    bool fine = number_ >= 0;
    while (fine && !bytes.empty()) {
      const ssize_t count = write(number_, bytes.data(), bytes.size());
      if (count < 0 && errno == EINTR) continue;
      fine = count > 0;
      if (fine) bytes.remove_prefix(static_cast<std::size_t>(count));
    }
    if (fine) return;
    const int reason = errno;
    if (number_ >= 0) close(number_);
    throw DataError(fmt::format("a file in memory cannot be made: {}", std::strerror(reason)));
  }
  ~MemoryFile() { close(number_); }
  MemoryFile(const MemoryFile&) = delete;
  MemoryFile& operator=(const MemoryFile&) = delete;
  std::string path() const { return fmt::format("/proc/self/fd/{}", number_); }

 private:
  int number_;
};

}  // namespace

Audio data::read_command(const AudioCommand& command, const AudioOptions& options) {
  spawn::Request request = spawn::shell(command.line);
  request.directory = command.directory;
  request.timeout = kPatience;
  request.output_cap = kMaxBytes;
  request.end_group = true;
  const spawn::Result result = spawn::run(request);
  const std::string_view said = spawn::last_line(result.err);
  const std::string last =
      said.empty() ? "it wrote no message" : fmt::format("its last message: {}", data::shown(said));
  if (!result.ok())
    throw DataError(fmt::format("{}: the command \"{}\" failed: {}; {}", command.source,
                                command.line, result.outcome(), last));
  if (result.out.empty())
    throw DataError(fmt::format("{}: the command \"{}\" wrote nothing; {}", command.source,
                                command.line, last));
  if (result.out_cut)
    throw DataError(
        fmt::format("{}: the command \"{}\" writes more than 2 GiB", command.source, command.line));
  return data::read_audio_bytes(
      result.out, fmt::format("{}: what \"{}\" wrote", command.source, command.line), options);
}

namespace data {

Audio read_audio_bytes(std::string_view bytes, const std::string& name,
                       const AudioOptions& options) {
  const MemoryFile file(bytes);
  return read_audio_file(file.path(), name, options);
}

}  // namespace data

}  // namespace segfuse
