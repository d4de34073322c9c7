#include "comm/mpi/choice.h"

#include <fmt/ranges.h>
#include <unistd.h>

#include <array>
#include <charconv>
#include <cstdlib>
#include <filesystem>
#include <vector>

#include "base/os/shared_library.h"
#include "comm/mpi/abi.h"
#include "segfuse/error.h"

namespace segfuse::comm {
namespace {

namespace fs = std::filesystem;

constexpr const char* kModule = "libsegfuse_mpi.so";
constexpr const char* kAbiLibrary = "libmpi_abi.so.1";
constexpr const char* kVariable = "SEGFUSE_MPI";

std::string variable(const char* name) {
  const char* const value = ::secure_getenv(name);
  return value == nullptr ? "" : value;
}

int number(std::string_view text) {
  int value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc{} && end == text.data() + text.size() && value > 0 ? value : 0;
}

/// The module's table. Null where `file` cannot be opened, is no module, or fits another version.
const SegfuseMpiTable* open_module(const std::string& file, std::string& reason) {
  const SharedLibrary library = SharedLibrary::open_first({file});
  if (!library) {
    reason = library.error();
    return nullptr;
  }
  try {
    SegfuseMpiEntry entry = nullptr;
    library.load("segfuse_mpi", entry);
    if (entry()->version == kSegfuseMpiVersion) return entry();
    reason = fmt::format("{} is of another version of segfuse", file);
  } catch (const DeviceError& error) {
    reason = error.what();
  }
  return nullptr;
}

std::vector<std::string> module_files() {
  std::vector<std::string> files;
  for (const fs::path& file : places_of_module(&kModule, kModule)) {
    std::error_code error;
    if (fs::exists(file, error)) files.push_back(file.string());
  }
  return files;
}

/// Beside the launcher, which is this process's parent; by the loader; beside PATH's mpiexec.
std::vector<std::string> places_of_abi() {
  std::vector<fs::path> folders;
  std::error_code error;
  const fs::path parent = fs::read_symlink(fmt::format("/proc/{}/exe", ::getppid()), error);
  if (!parent.empty()) folders.push_back(parent.parent_path());
  const std::string path = variable("PATH");
  for (std::size_t begin = 0; begin < path.size();) {
    const std::size_t end = std::min(path.find(':', begin), path.size());
    const fs::path folder = path.substr(begin, end - begin);
    if (fs::exists(folder / "mpiexec", error)) folders.push_back(folder);
    begin = end + 1;
  }
  std::vector<std::string> files;
  for (std::size_t i = 0; i <= folders.size(); ++i) {
    if (i == std::min<std::size_t>(1, folders.size())) files.emplace_back(kAbiLibrary);
    if (i == folders.size()) break;
    const fs::path file = (folders[i] / "../lib" / kAbiLibrary).lexically_normal();
    if (fs::exists(file, error)) files.push_back(file.string());
  }
  return files;
}

ChosenMpi named_mpi(const std::string& file, const MpiLauncher& launcher) {
  std::string reason;
  if (const auto* table = open_mpi_abi(file, reason)) return {table, file, launcher};
  std::string no_module;
  if (const auto* table = open_module(file, no_module)) return {table, file, launcher};
  throw CommError(
      fmt::format("{} names '{}', which is not a library with MPI's standard ABI: {}; expected the "
                  "path of a {}",
                  kVariable, file, reason, kAbiLibrary));
}

}  // namespace

MpiLauncher mpi_launcher() {
  struct Known {
    const char* variable;
    const char* size;
    const char* name;
  };
  // Open MPI's mpirun sets PMIx's variables as well; srun only those of what it was asked for.
  constexpr std::array<Known, 3> kKnown = {
      Known{"OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "Open MPI"},
      Known{"PMI_SIZE", "PMI_SIZE", "MPICH"}, Known{"PMIX_RANK", "SLURM_STEP_NUM_TASKS", "PMIx"}};
  for (const Known& known : kKnown)
    if (!variable(known.variable).empty())
      return {known.name, known.variable, number(variable(known.size))};
  return {};
}

ChosenMpi choose_mpi() {
  const MpiLauncher launcher = mpi_launcher();
  if (const std::string named = variable(kVariable); !named.empty())
    return named_mpi(named, launcher);
  if (launcher.name.empty())
    throw CommError(
        "no launcher of an MPI started this process (OMPI_COMM_WORLD_SIZE, PMI_SIZE and PMIX_RANK "
        "are not set); start it by mpirun, or by srun with --mpi=pmix");
  std::vector<std::string> tried;
  for (const std::string& file : module_files()) {
    std::string reason;
    const SegfuseMpiTable* const table = open_module(file, reason);
    if (table != nullptr && (table->made_for == launcher.name || launcher.name == "PMIx"))
      return {table, file, launcher};
    tried.push_back(table == nullptr ? reason
                                     : fmt::format("{} is made for {}", file, table->made_for));
  }
  if (tried.empty()) tried.push_back(fmt::format("{} is not installed", kModule));
  for (const std::string& file : places_of_abi()) {
    std::string reason;
    if (const auto* table = open_mpi_abi(file, reason)) return {table, file, launcher};
    tried.push_back(reason);
  }
  throw CommError(fmt::format(
      "{} started this process ({} is set), and no MPI of that kind can be used (tried: {}); name "
      "its {} in {}, or install libopenmpi-dev, build segfuse again and use that mpirun",
      launcher.name, launcher.variable, fmt::join(tried, "; "), kAbiLibrary, kVariable));
}

}  // namespace segfuse::comm
