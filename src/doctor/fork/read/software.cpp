#include "doctor/fork/read/software.h"

#include <fmt/core.h>
#include <sys/utsname.h>

#include <algorithm>
#include <array>
#include <set>

#include "base/text.h"

namespace segfuse::doctor {

namespace {

/// Prefixes of libraries that register memory, or hand out memory instead of glibc.
constexpr std::array<std::string_view, 10> kRegistering = {
    "libibverbs.so", "libmlx5.so", "libefa.so",   "libfabric.so", "libuct_ib.so",
    "libucp.so",     "libnccl.so", "libnccl-net", "libmpi.so",    "libcuda.so"};
constexpr std::array<std::string_view, 5> kAllocators = {"libjemalloc", "libtcmalloc",
                                                         "libmimalloc", "libhoard", "librpmalloc"};
constexpr std::array<std::string_view, 12> kVariables = {
    "RDMAV_FORK_SAFE",  "IBV_FORK_SAFE",    "RDMAV_HUGEPAGES_SAFE", "FI_EFA_FORK_SAFE",
    "CXI_FORK_SAFE",    "CXI_FORK_SAFE_HP", "FI_EFA_USE_HUGE_PAGE", "UCX_IB_FORK_INIT",
    "MALLOC_ARENA_MAX", "LD_PRELOAD",       "NCCL_IB_DISABLE",      "OMPI_MCA_mpi_warn_on_fork"};

std::string_view file_of(const std::string& path) {
  return std::string_view(path).substr(path.rfind('/') + 1);
}

/// "2.36" out of the text that glibc carries about itself.
std::string glibc_version(const Process& process, const Vma& vma) {
  const std::string_view file = file_of(vma.name);
  if (file.starts_with("libc-2.")) return std::string(file.substr(5, file.rfind(".so") - 5));
  // The file as the process sees it: it may live in another root.
  auto text = process.try_read("root" + vma.name);
  if (!text) text = read_system_file(vma.name);
  if (!text) return "";
  constexpr std::string_view kMark = "GNU C Library ";
  const std::size_t at = text->find(kMark);
  if (at == std::string::npos) return "";
  const std::string_view line =
      std::string_view(*text).substr(at, text->find('\n', at) - at).substr(0, 200);
  const std::size_t version = line.find("release version ");
  if (version == std::string_view::npos) return "";
  const std::string_view rest = line.substr(version + 16);
  return std::string(rest.substr(0, rest.find_first_not_of("0123456789.")));
}

void add_libraries(const Process& process, const std::vector<Vma>& vmas, ForkReport& report,
                   Software& software) {
  std::set<std::string> seen;
  for (const Vma& vma : vmas) {
    if (vma.inode == 0 || !seen.insert(vma.name).second) continue;
    const std::string_view file = file_of(vma.name);
    if (file.starts_with("libc.so.6") || file.starts_with("libc-2.")) {
      software.glibc = true;
      std::string version = glibc_version(process, vma);
      while (version.ends_with('.')) version.pop_back();
      report.versions.emplace_back("glibc", version.empty() ? "unknown version" : version);
    }
    for (const std::string_view prefix : kAllocators)
      if (file.starts_with(prefix)) software.other_allocator = file;
    for (const std::string_view prefix : kRegistering)
      if (file.starts_with(prefix))
        report.versions.emplace_back(file.substr(0, file.find(".so")), file);
    if (!file.starts_with("libibverbs.so")) continue;
    software.rdma_core = rdma_core_release(vma.name);
    if (software.rdma_core > 0)
      report.versions.emplace_back("rdma-core", std::to_string(software.rdma_core));
  }
}

void add_environment(const Process& process, ForkReport& report) {
  const std::optional<std::string> text = process.try_read("environ");
  if (!text) {
    report.notes.push_back("The environment may not be read.");
    return;
  }
  for (const std::string_view entry : split(*text, '\0'))
    for (const std::string_view name : kVariables)
      if (entry.starts_with(name) && entry.substr(name.size()).starts_with('='))
        report.environment.emplace_back(name, entry.substr(name.size() + 1));
}

}  // namespace

int rdma_core_release(const std::string& path) {
  const std::string_view file = file_of(path);
  const std::vector<std::string_view> parts = split(file, '.');
  // libibverbs so 1 14 RELEASE PATCH
  if (parts.size() < 6 || parts[0] != "libibverbs" || parts[1] != "so") return 0;
  const std::optional<std::int64_t> release = parse_int(parts[4]);
  return release && *release > 0 && *release < 10000 ? static_cast<int>(*release) : 0;
}

Kernel parse_kernel(const std::string& release) {
  Kernel kernel;
  const std::vector<std::string_view> parts = split(release, '.');
  if (parts.size() < 2) return kernel;
  const std::string_view minor = parts[1].substr(0, parts[1].find_first_not_of("0123456789"));
  kernel.major = static_cast<int>(parse_int(parts[0]).value_or(0));
  kernel.minor = static_cast<int>(parse_int(minor).value_or(0));
  return kernel;
}

Software find_software(const Process& process, const std::vector<Vma>& vmas, ForkReport& report) {
  Software software;
  utsname name{};
  if (::uname(&name) == 0) {
    software.kernel = parse_kernel(name.release);
    report.versions.emplace_back("kernel", name.release);
  }
  add_libraries(process, vmas, report, software);
  add_environment(process, report);
  const bool forced =
      std::any_of(report.environment.begin(), report.environment.end(), [](const auto& entry) {
        return entry.first == "RDMAV_FORK_SAFE" || entry.first == "IBV_FORK_SAFE";
      });
  if (software.rdma_core > 0 && software.rdma_core < 51 && forced)
    report.warnings.push_back(fmt::format(
        "RDMAV_FORK_SAFE is set and rdma-core is {}: every registration takes whole pages from "
        "children, even pages that hold other data. Unset it{}, or use rdma-core 51 or later.",
        software.rdma_core,
        software.kernel.copies_pinned() ? " (this kernel needs no such help)" : ""));
  else if (software.rdma_core > 0 && software.rdma_core < 51)
    report.notes.push_back(fmt::format(
        "rdma-core {} takes whole pages from children once ibv_fork_init() was called, as NCCL "
        "does; rdma-core 51 and later leave that to kernels from 5.12 on.",
        software.rdma_core));
  if (!software.other_allocator.empty())
    report.notes.push_back(fmt::format(
        "{} hands out memory here: its blocks are reported as anonymous, without neighbours.",
        software.other_allocator));
  return software;
}

}  // namespace segfuse::doctor
