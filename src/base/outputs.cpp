#include "base/outputs.h"

#include <fmt/core.h>

#include <fstream>
#include <system_error>
#include <vector>

#include "base/code/blake2b.h"
#include "base/console/log.h"
#include "base/mutex.h"
#include "base/os/folder.h"
#include "base/text.h"
#include "segfuse/error.h"

namespace segfuse {
namespace {

namespace fs = std::filesystem;

fs::path folder_of(const fs::path& path) {
  return path.has_parent_path() ? path.parent_path() : fs::path(".");
}

/// A line as b2sum writes it: names with line ends or backslashes are escaped and marked by a
/// backslash in front.
std::string line_of(const fs::path& path, std::string_view hash) {
  std::string name;
  for (const char c : path.filename().string())
    name += c == '\\' ? "\\\\" : c == '\n' ? "\\n" : c == '\r' ? "\\r" : std::string(1, c);
  const bool escaped = name != path.filename().string();
  return fmt::format("{}{}  {}", escaped ? "\\" : "", hash, name);
}

std::set<std::string> lines_of(const fs::path& folder, const std::string& list) {
  std::set<std::string> lines;
  try {
    const Folder opened(folder);
    const std::string text = read_rest(opened.open(list).get(), folder / list);
    for (const std::string_view line : split_lines(text)) lines.emplace(line);
  } catch (const FileError&) {
    // No list: nothing there is ours.
  }
  return lines;
}

/// What can be written to and is no file of that name: a terminal, a pipe, an open descriptor
/// (/dev/stdout may be a file that the shell has opened).
bool is_stream(const fs::path& path) {
  const std::string name = path.lexically_normal().string();
  if (name == "/dev/stdout" || name == "/dev/stderr" || name.starts_with("/dev/fd/") ||
      name.starts_with("/proc/self/fd/"))
    return true;
  std::error_code error;
  const fs::file_status status = fs::status(path, error);
  return fs::is_character_file(status) || fs::is_fifo(status);
}

}  // namespace

void Outputs::announce(const fs::path& path, const std::string& source) {
  const auto [former, fresh] = announced_.emplace(path.lexically_normal(), source);
  if (fresh) return;
  if (former->second == source)
    throw UsageError(fmt::format("{} would be written twice, for {}", path.string(), source));
  throw UsageError(fmt::format("{} and {} would both be written to {}; name different folders",
                               former->second, source, path.string()));
}

void Outputs::check() {
  const MutexLock lock(mutex_);
  std::vector<fs::path> others;
  for (const auto& [path, source] : announced_)
    if (stands_in_the_way(path)) others.push_back(path);
  if (others.empty()) return;
  const std::string more =
      others.size() > 1 ? fmt::format(" (and {} files like it)", others.size() - 1) : "";
  throw UsageError(
      fmt::format("{}{} exists, and segfuse did not write it or it was changed since; choose "
                  "another place, or pass --overwrite to replace it",
                  others[0].string(), more));
}

void Outputs::write(const fs::path& path, std::string_view content) {
  if (is_stream(path)) return write(path, [&](const Put& put) { put(content); });
  const MutexLock lock(mutex_);
  refuse_foreign(path);
  note(path, line_of(path, blake2b_hex(content)));
  write_file_atomically(path, content);
}

void Outputs::write(const fs::path& path, const std::function<void(const Put&)>& content) {
  if (is_stream(path)) {
    std::ofstream out(path, std::ios::binary);
    content([&](std::string_view part) { out << part; });
    out.flush();
    if (!out) throw DataError(fmt::format("{}: cannot be written", path.string()));
    return;
  }
  const MutexLock lock(mutex_);
  refuse_foreign(path);
  write_file_atomically(path, [&](FileWriter& out) SEGFUSE_REQUIRES(mutex_) {
    Blake2b hash;
    content([&](std::string_view part) {
      hash.update(part);
      out.write(part);
    });
    note(path, line_of(path, hash.finish_hex()));
  });
}

void Outputs::refuse_foreign(const fs::path& path) {
  if (stands_in_the_way(path))
    throw UsageError(
        fmt::format("{} exists, and segfuse did not write it or it was changed since; choose "
                    "another place, or pass --overwrite to replace it",
                    path.string()));
}

bool Outputs::stands_in_the_way(const fs::path& path) {
  std::error_code error;
  return !overwrite_ && !is_stream(path) && fs::is_regular_file(path, error) && !is_ours(path);
}

bool Outputs::is_ours(const fs::path& path) {
  const FileMap content(path);
  const std::string line = line_of(path, blake2b_hex(content.text()));
  const fs::path folder = folder_of(path);
  if (noted_[folder].contains(line)) return true;
  // Another process may have written it.
  noted_[folder] = lines_of(folder, list_);
  return noted_[folder].contains(line);
}

/// Before the file is there, so that a process that is stopped in between leaves nothing unknown.
void Outputs::note(const fs::path& path, std::string line) {
  const fs::path folder = folder_of(path);
  if (!noted_.contains(folder)) noted_[folder] = lines_of(folder, list_);
  if (noted_[folder].contains(line)) return;
  try {
    Folder(folder).append_line(list_, line);
    noted_[folder].insert(std::move(line));
  } catch (const FileError& error) {
    std::error_code ignored;
    if (complained_ || !fs::is_directory(folder, ignored)) return;  // the write says it
    complained_ = true;
    log(LogLevel::kWarning, "the next run cannot tell which files this one wrote: {}",
        error.what());
  }
}

}  // namespace segfuse
