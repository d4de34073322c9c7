// From a file to the report: see the contracts in segfuse/doctor/kernel.h.

#include <fmt/core.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <iterator>
#include <tuple>

#include "base/os/file.h"
#include "base/text.h"
#include "doctor/kernel/cpu.h"
#include "doctor/kernel/cubin.h"
#include "doctor/kernel/fatbin.h"
#include "doctor/kernel/occupancy.h"
#include "doctor/kernel/parts.h"
#include "doctor/kernel/ptx.h"
#include "runtime/cuda/nvrtc.h"
#include "segfuse/error.h"
#include "segfuse/spawn.h"

namespace segfuse {

namespace {

using namespace doctor;
namespace fs = std::filesystem;

constexpr const char* kUsualArchitecture = "sm_90";
constexpr std::uint64_t kUsualBlock = 256;

/// ptxas of PATH or of a toolkit's usual place; empty: there is none.
std::string find_ptxas() {
  std::vector<std::string> folders;
  if (const char* path = std::getenv("PATH")) {
    std::string rest = path;
    for (std::size_t at = 0; at <= rest.size();) {
      const std::size_t end = std::min(rest.find(':', at), rest.size());
      folders.push_back(rest.substr(at, end - at));
      at = end + 1;
    }
  }
  if (const char* home = std::getenv("CUDA_HOME")) folders.push_back(fmt::format("{}/bin", home));
  folders.emplace_back("/usr/local/cuda/bin");
  for (const std::string& folder : folders) {
    const std::string program = folder + "/ptxas";
    if (folder.starts_with('/') && ::access(program.c_str(), X_OK) == 0) return program;
  }
  return "";
}

/// A file that goes with the object.
class TemporaryFile {
 public:
  TemporaryFile() {
    std::string name = (fs::temp_directory_path() / "segfuse_XXXXXX").string();
    const int descriptor = ::mkstemp(name.data());
    if (descriptor < 0)
      throw DataError(fmt::format("{}: no temporary file can be made there", name));
    ::close(descriptor);
    path_ = name;
  }
  ~TemporaryFile() {
    std::error_code error;
    fs::remove(path_, error);
  }
  TemporaryFile(const TemporaryFile&) = delete;
  TemporaryFile& operator=(const TemporaryFile&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

/// The first error that ptxas names, which says where; what it prints last only says that there
/// were some.
std::string complaint_of(const std::string& said) {
  for (const std::string_view line : split_lines(said))
    if (line.find(", line ") != std::string_view::npos) return std::string(trim(line));
  return std::string(spawn::last_line(said));
}

std::string assemble(const std::string& ptxas, const fs::path& file,
                     const std::string& architecture) {
  const TemporaryFile cubin;
  const spawn::Result result = spawn::run({.arguments = {ptxas, "-arch=" + architecture, "-o",
                                                         cubin.path(), fs::absolute(file).string()},
                                           .err = spawn::Capture{}});
  if (!result.ok())
    throw DataError(fmt::format("{}: ptxas does not assemble it for {} ({}): {}", file.string(),
                                architecture, result.outcome(),
                                complaint_of(result.err + result.out)));
  return read_file(cubin.path());
}

void read_ptx_file(KernelReport& report, const fs::path& file, const KernelOptions& options) {
  report.source = "PTX";
  report.kernels = read_ptx(read_file(file), report.file);
  const std::string ptxas = find_ptxas();
  if (ptxas.empty()) {
    report.notes.push_back(
        "ptxas was not found: registers are those that PTX declares, and spills are not known.");
    return;
  }
  std::string architecture = options.architecture;
  if (architecture.empty())
    architecture =
        report.kernels.empty() ? kUsualArchitecture : report.kernels.front().architecture;
  std::vector<KernelInfo> assembled = read_cubin(assemble(ptxas, file, architecture), report.file);
  add_text(assembled, report.kernels);
  report.kernels = std::move(assembled);
  report.source = "PTX, assembled by ptxas";
}

void compile_file(KernelReport& report, const fs::path& file, const KernelOptions& options) {
  const std::string architecture =
      options.architecture.empty() ? kUsualArchitecture : options.architecture;
  std::vector<std::string> folders = {fs::absolute(file).parent_path().string()};
  if (const char* home = std::getenv("CUDA_HOME"))
    folders.push_back(fmt::format("{}/include", home));
  folders.emplace_back("/usr/local/cuda/include");
  runtime::cuda::Compiled compiled;
  try {
    compiled = runtime::cuda::compile_cubin(file.stem().string(), read_file(file), {}, architecture,
                                            folders);
  } catch (const InternalError& error) {
    // The text is not ours.
    throw DataError(error.what());
  }
  report.source = "CUDA C++, compiled by NVRTC";
  report.kernels = read_cubin(compiled.cubin, report.file);
  if (compiled.ptx.empty())
    report.notes.push_back("This NVRTC keeps no PTX: atomics are not known.");
  else
    add_text(report.kernels, read_ptx(compiled.ptx, report.file));
}

/// Cubins out of a fat binary, or of what one was linked into. False: `bytes` are neither.
bool read_parts(KernelReport& report, std::string_view bytes) {
  const bool alone = is_fatbin(bytes);
  const Fatbin fatbin = alone ? read_fatbin(bytes, report.file) : read_embedded(bytes, report.file);
  if (!alone && fatbin.cubins.empty() && fatbin.texts.empty() && fatbin.notes.empty()) return false;
  for (const std::string& cubin : fatbin.cubins)
    std::ranges::move(read_cubin(cubin, report.file), std::back_inserter(report.kernels));
  report.source =
      fmt::format("{} with {} cubins and {} PTX texts", alone ? "fat binary" : "program or library",
                  fatbin.cubins.size(), fatbin.texts.size());
  for (const std::string& text : fatbin.texts) {
    const std::vector<KernelInfo> texts = read_ptx(text, report.file);
    // PTX alone says little; it is taken where there is nothing else.
    if (fatbin.cubins.empty())
      report.kernels.insert(report.kernels.end(), texts.begin(), texts.end());
    else
      add_text(report.kernels, texts);
  }
  std::ranges::stable_sort(report.kernels, [](const KernelInfo& a, const KernelInfo& b) {
    return std::tie(a.name, a.architecture) < std::tie(b.name, b.architecture);
  });
  // One for each kind, not for each of thousands of parts.
  for (const std::string& note : fatbin.notes)
    if (std::ranges::find(report.notes, note) == report.notes.end()) report.notes.push_back(note);
  return true;
}

}  // namespace

namespace doctor {

void add_text(std::vector<KernelInfo>& kernels, const std::vector<KernelInfo>& texts) {
  for (KernelInfo& kernel : kernels)
    for (const KernelInfo& text : texts) {
      if (text.name != kernel.name) continue;
      kernel.has_text = true;
      kernel.declared_registers = text.declared_registers;
      kernel.local_bytes = text.local_bytes;
      kernel.local_loads = text.local_loads;
      kernel.local_stores = text.local_stores;
      kernel.atomics = text.atomics;
      if (kernel.max_threads == 0) kernel.max_threads = text.max_threads;
    }
}

void add_occupancy(KernelReport& report, const KernelOptions& options) {
  for (KernelInfo& kernel : report.kernels) {
    if (!kernel.registers) continue;
    std::uint64_t block = options.block > 0 ? options.block : kernel.max_threads;
    if (block == 0) block = kUsualBlock;
    if (const auto occupancy =
            occupancy_of(kernel.architecture, *kernel.registers, kernel.shared_bytes, block))
      kernel.occupancy.push_back(*occupancy);
  }
}

void add_notes(KernelReport& report) {
  const auto any = [&](auto has) {
    return std::any_of(report.kernels.begin(), report.kernels.end(), has);
  };
  if (report.kernels.empty()) report.notes.push_back("There is no kernel in this file.");
  if (any([](const KernelInfo& kernel) { return !kernel.has_text; }))
    report.notes.push_back("Machine code alone does not show atomics here; PTX and CUDA C++ do.");
  if (any([](const KernelInfo& kernel) { return kernel.registers && kernel.occupancy.empty(); }))
    report.notes.push_back(
        fmt::format("Occupancy is known for {}, and blocks of at most 1024 threads whose shared "
                    "memory fits.",
                    known_architectures()));
}

}  // namespace doctor

bool KernelReport::spills() const {
  return std::any_of(kernels.begin(), kernels.end(),
                     [](const KernelInfo& kernel) { return kernel.spills(); });
}

KernelReport examine_cubin(const std::string& name, std::string_view cubin,
                           const KernelOptions& options) {
  KernelReport report;
  report.file = name;
  report.source = "cubin";
  report.kernels = read_cubin(cubin, name);
  add_occupancy(report, options);
  add_notes(report);
  return report;
}

KernelReport examine_kernels(const fs::path& file, const KernelOptions& options) {
  KernelReport report;
  report.file = file.string();
  const std::string ending = file.extension().string();
  if (ending == ".ptx") {
    read_ptx_file(report, file, options);
  } else if (ending == ".cu") {
    compile_file(report, file, options);
  } else if (ending == ".c") {
    read_c_file(report, file);
    return report;
  } else {
    const std::string bytes = read_file(file);
    if (!read_parts(report, bytes)) return examine_cubin(report.file, bytes, options);
  }
  add_occupancy(report, options);
  add_notes(report);
  return report;
}

}  // namespace segfuse
