#include "doctor/kernel/triton.h"

#include <fmt/core.h>
#include <fmt/ranges.h>
#include <pwd.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <tuple>

#include "base/json/json.h"
#include "base/os/file.h"
#include "doctor/kernel/cubin.h"
#include "doctor/kernel/parts.h"
#include "doctor/kernel/ptx.h"
#include "segfuse/doctor/kernel.h"
#include "segfuse/error.h"

namespace segfuse {

namespace doctor {

TritonLaunch read_triton_launch(std::string_view text, const std::string& file) {
  constexpr std::int64_t kMaxWarps = 64;
  constexpr std::int64_t kMaxWarpSize = 64;
  constexpr std::int64_t kMaxShared = 1 << 20;
  const Json json = parse_json(text, file, {.bytes = std::size_t{1} << 20});
  const JsonPlace root(json, file);
  const auto whole = [&](const char* key, std::int64_t most) {
    return static_cast<std::uint64_t>(root.at(key).integer(0, most));
  };
  std::uint64_t warp_size = 32;
  if (root.find("warp_size")) warp_size = whole("warp_size", kMaxWarpSize);
  return {.threads = whole("num_warps", kMaxWarps) * warp_size,
          .shared_bytes = whole("shared", kMaxShared)};
}

}  // namespace doctor

namespace {

namespace fs = std::filesystem;

/// Below a cache of torch.compile: triton/DEVICE/HASH.
constexpr int kDepth = 3;
constexpr std::size_t kMaxEntries = 100'000;
constexpr std::uintmax_t kMaxBytes = std::uintmax_t{1} << 26;
constexpr std::size_t kMaxNotes = 10;

std::string variable(const char* name) {
  const char* const value = std::getenv(name);
  return value == nullptr ? "" : value;
}

/// As Python's getpass finds it.
std::string user_name() {
  for (const char* name : {"LOGNAME", "USER", "LNAME", "USERNAME"})
    if (const std::string value = variable(name); !value.empty()) return value;
  const passwd* const user = ::getpwuid(::getuid());
  return user == nullptr ? fmt::format("uid_{}", ::getuid()) : user->pw_name;
}

/// Where Triton and torch.compile keep kernels if nothing else is named.
std::vector<fs::path> usual_folders() {
  fs::path triton = variable("TRITON_CACHE_DIR");
  if (triton.empty()) {
    const std::string home = variable("TRITON_HOME");
    triton = fs::path(home.empty() ? variable("HOME") : home) / ".triton/cache";
  }
  fs::path inductor = variable("TORCHINDUCTOR_CACHE_DIR");
  if (inductor.empty()) inductor = fs::temp_directory_path() / ("torchinductor_" + user_name());
  return {triton, inductor};
}

/// Regular files and folders themselves; what a link leads to may lie anywhere.
bool is_itself(const fs::path& path, fs::file_type type) {
  std::error_code error;
  return fs::symlink_status(path, error).type() == type;
}

/// Cubins in the order of their paths.
void find_cubins(const fs::path& folder, int depth, std::vector<fs::path>& found,
                 std::vector<std::string>& left_out) {
  std::vector<fs::path> entries;
  try {
    entries = list_directory(folder);
  } catch (const DataError& error) {
    left_out.emplace_back(error.what());
    return;
  }
  for (const fs::path& entry : entries) {
    if (found.size() >= kMaxEntries) return;
    // What is being written lies in folders of their own until it is whole.
    const bool unfinished = entry.filename().string().starts_with("tmp.pid_");
    if (depth > 0 && !unfinished && is_itself(entry, fs::file_type::directory))
      find_cubins(entry, depth - 1, found, left_out);
    else if (entry.extension() == ".cubin" && is_itself(entry, fs::file_type::regular))
      found.push_back(entry);
  }
}

std::string read_bounded(const fs::path& file) {
  std::error_code error;
  const std::uintmax_t size = fs::file_size(file, error);
  if (!error && size > kMaxBytes)
    throw DataError(
        fmt::format("{}: {} bytes, expected at most {}", file.string(), size, kMaxBytes));
  return read_file(file);
}

std::vector<KernelInfo> kernels_of_entry(const fs::path& cubin) {
  std::vector<KernelInfo> kernels = doctor::read_cubin(read_bounded(cubin), cubin.string());
  fs::path beside = cubin;
  if (const fs::path text = beside.replace_extension(".ptx");
      is_itself(text, fs::file_type::regular))
    doctor::add_text(kernels, doctor::read_ptx(read_bounded(text), text.string()));
  doctor::TritonLaunch launch;
  if (const fs::path json = beside.replace_extension(".json");
      is_itself(json, fs::file_type::regular))
    launch = doctor::read_triton_launch(read_bounded(json), json.string());
  for (KernelInfo& kernel : kernels) {
    kernel.entry = cubin.parent_path().filename().string();
    kernel.shared_bytes += launch.shared_bytes;
    if (launch.threads > 0) kernel.max_threads = launch.threads;
  }
  return kernels;
}

}  // namespace

KernelReport examine_triton_cache(const fs::path& folder, const KernelOptions& options) {
  std::vector<fs::path> folders = {folder};
  if (folder.empty()) folders = usual_folders();
  std::erase_if(folders, [](const fs::path& one) { return !path_is_directory(one); });
  if (folders.empty()) {
    std::vector<std::string> names;
    for (const fs::path& one : folder.empty() ? usual_folders() : std::vector{folder})
      names.push_back(fmt::format("'{}'", one.string()));
    throw DataError(fmt::format(
        "there is no folder {}: run the program with Triton first, or name the folder of its cache "
        "(segfuse doctor kernel FOLDER --triton-cache)",
        fmt::join(names, " and no ")));
  }
  KernelReport report;
  std::vector<fs::path> cubins;
  std::vector<std::string> left_out;
  for (const fs::path& one : folders) {
    report.file += (report.file.empty() ? "" : ", ") + one.string();
    find_cubins(one, kDepth, cubins, left_out);
  }
  std::size_t entries = 0;
  for (const fs::path& cubin : cubins) try {
      std::vector<KernelInfo> kernels = kernels_of_entry(cubin);
      if (!options.architecture.empty())
        std::erase_if(kernels, [&](const KernelInfo& kernel) {
          return kernel.architecture != options.architecture;
        });
      if (!kernels.empty()) ++entries;
      std::ranges::move(kernels, std::back_inserter(report.kernels));
    } catch (const DataError& error) {
      left_out.emplace_back(error.what());
    }
  report.source = fmt::format("Triton's cache with {} entries", entries);
  std::ranges::stable_sort(report.kernels, [](const KernelInfo& a, const KernelInfo& b) {
    return std::tie(a.name, a.architecture, a.entry) < std::tie(b.name, b.architecture, b.entry);
  });
  for (std::size_t i = 0; i < std::min(left_out.size(), kMaxNotes); ++i)
    report.notes.push_back("An entry is left out: " + left_out[i]);
  if (left_out.size() > kMaxNotes)
    report.notes.push_back(
        fmt::format("{} more entries are left out.", left_out.size() - kMaxNotes));
  if (cubins.size() >= kMaxEntries)
    report.notes.push_back(fmt::format("Only the first {} entries were read.", kMaxEntries));
  doctor::add_occupancy(report, options);
  doctor::add_notes(report);
  return report;
}

}  // namespace segfuse
