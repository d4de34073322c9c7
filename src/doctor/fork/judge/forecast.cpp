#include "doctor/fork/judge/forecast.h"

#include <fmt/core.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <cstring>
#include <ctime>

#include "base/memory/headroom.h"
#include "base/text.h"
#include "doctor/record.h"

namespace segfuse::doctor {

namespace {

constexpr double kGib = 1024.0 * 1024.0 * 1024.0;
/// A child's page tables for a GiB of touched memory, where too little is touched for a
/// measurement.
constexpr double kTableSecondsPerGib = 0.016;
/// A page table entry for a huge page does for 512; what is left is a fifth, measured.
constexpr double kHugeTableFactor = 0.2;
/// A split huge page is copied in small ones, after its table was made: 3 to 3.5 times, measured,
/// at the first fork() and at every later one.
constexpr double kHugeFactor = 3;
/// Less than this is not worth a measurement of page tables, which takes a few milliseconds.
constexpr std::uint64_t kMuchMemory = std::uint64_t{128} << 20;

std::uint64_t overlap(std::uint64_t a, std::uint64_t b, std::uint64_t c, std::uint64_t d) {
  const std::uint64_t begin = std::max(a, c);
  const std::uint64_t end = std::min(b, d);
  return end > begin ? end - begin : 0;
}

/// Rounds to whole pages: a pin holds these.
std::uint64_t pinned_in(const Vma& vma, const std::vector<Pin>& pins) {
  std::uint64_t bytes = 0;
  for (const Pin& pin : pins)
    bytes += overlap(pin.begin & ~(vma.page - 1), (pin.end + vma.page - 1) & ~(vma.page - 1),
                     vma.begin, vma.end);
  return std::min(bytes, vma.bytes());
}

void count_copies(ForkForecast& forecast, const std::vector<Vma>& vmas,
                  const std::vector<Pin>& pins, std::uint64_t pinned) {
  std::uint64_t placed = 0;    // pins whose place is known
  std::uint64_t absorbed = 0;  // memory that pins of unknown place may well be in
  for (const Vma& vma : vmas) {
    const std::uint64_t bytes = pins.empty() ? 0 : pinned_in(vma, pins);
    placed += bytes;
    const bool stays = vma.kept || vma.shared || vma.device;
    if (stays) absorbed += vma.bytes() - bytes;
    if (stays || vma.wiped) continue;
    forecast.private_bytes += vma.anonymous + vma.private_huge;
    if (vma.huge) {
      forecast.huge_pages_needed += bytes / vma.page;
      continue;
    }
    forecast.copied_bytes += bytes;
    forecast.split_bytes += std::min(bytes, vma.transparent_huge);
    forecast.huge_bytes += std::min(bytes, vma.in_huge_pages());
  }
  const std::uint64_t unknown = pinned - std::min(pinned, placed);
  forecast.copied_at_most = forecast.copied_bytes +
                            std::min(unknown - std::min(unknown, absorbed), forecast.private_bytes);
}

std::uint64_t free_huge_pages() {
  const auto of = [](const char* name) {
    return number_in_file(std::string("/sys/kernel/mm/hugepages/hugepages-2048kB/") + name)
        .value_or(0);
  };
  const std::uint64_t free = of("free_hugepages");
  return free - std::min(free, of("resv_hugepages")) +
         (of("nr_overcommit_hugepages") -
          std::min(of("nr_overcommit_hugepages"), of("surplus_hugepages")));
}

/// With strict accounting (overcommit 2) the child needs room for all private memory at once.
bool over_commit_limit(const std::vector<Vma>& vmas) {
  if (number_in_file("/proc/sys/vm/overcommit_memory").value_or(0) != 2) return false;
  const std::string text = read_system_file("/proc/meminfo").value_or("");
  const std::uint64_t limit = status_value(text, "CommitLimit").value_or(kUnlimited);
  std::uint64_t needed = status_value(text, "Committed_AS").value_or(0);
  for (const Vma& vma : vmas)
    if (vma.accounted && !vma.kept) needed += vma.bytes();
  return needed > limit;
}

std::string in_seconds(double seconds) {
  if (seconds < 0.001) return fmt::format("{:.2f} ms", seconds * 1e3);
  if (seconds < 1) return fmt::format("{:.0f} ms", seconds * 1e3);
  return fmt::format("{:.1f} s", seconds);
}

std::string sentence_of(const ForkForecast& forecast) {
  std::string text = "fork() now: ";
  if (forecast.no_memory && forecast.huge_pages_needed > forecast.huge_pages_free)
    return text +
           fmt::format("fails with ENOMEM: {} pinned huge pages would be copied, {} are free",
                       forecast.huge_pages_needed, forecast.huge_pages_free);
  if (forecast.no_memory)
    return text + "fails with ENOMEM: the limit of committed memory leaves no room for a copy";
  text += forecast.copied_bytes > 0
              ? fmt::format("{} copied at once, ", in_words(forecast.copied_bytes))
              : "nothing copied, ";
  text += fmt::format("about {} of standstill", in_seconds(forecast.stall_seconds));
  if (forecast.copied_at_most > forecast.copied_bytes)
    text += fmt::format(" ({} more are pinned at places that the kernel does not report)",
                        in_words(forecast.copied_at_most - forecast.copied_bytes));
  if (forecast.headroom_bytes)
    text +=
        fmt::format(", {} left in {}", in_words(*forecast.headroom_bytes), forecast.headroom_of);
  if (forecast.out_of_memory_kill) text += " => this process, or one beside it, is OOM-killed";
  return text;
}

}  // namespace

namespace {

double processor_seconds() {
  timespec time{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

double copy_once() {
  constexpr std::size_t kBytes = std::size_t{16} << 20;
  const auto map = [] {
    void* memory =
        ::mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory != MAP_FAILED) ::madvise(memory, kBytes, MADV_NOHUGEPAGE);
    return memory;
  };
  void* from = map();
  void* to = map();
  double seconds = 0.4 * kBytes / kGib;
  if (from != MAP_FAILED && to != MAP_FAILED) {
    std::memset(from, 1, kBytes);
    const double start = processor_seconds();
    std::memcpy(to, from, kBytes);
    seconds = processor_seconds() - start;
  }
  if (from != MAP_FAILED) ::munmap(from, kBytes);
  if (to != MAP_FAILED) ::munmap(to, kBytes);
  return seconds / kBytes * kGib;
}

}  // namespace

double measured_copy_seconds_per_gib() {
  const double first = copy_once();
  const double least = std::min({first, copy_once(), copy_once()});
  return std::sqrt(first * least);
}

namespace {

/// Of a fork() without all that the C library and libraries do around it; nothing if it fails.
std::optional<double> fork_once() {
  const double start = processor_seconds();
  // No signal at its end, so that nobody who waits for children hears of it.
  const long child = ::syscall(SYS_clone, 0, nullptr, nullptr, nullptr, nullptr);
  if (child == 0) ::syscall(SYS_exit_group, 0);
  const double seconds = processor_seconds() - start;
  if (child < 0) return std::nullopt;
  while (::waitpid(static_cast<pid_t>(child), nullptr, __WCLONE) < 0 && errno == EINTR) {
  }
  return seconds;
}

}  // namespace

std::optional<double> measured_table_seconds_per_gib() {
  constexpr std::size_t kBytes = std::size_t{32} << 20;
  void* memory =
      ::mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return std::nullopt;
  ::madvise(memory, kBytes, MADV_NOHUGEPAGE);
  std::memset(memory, 1, kBytes);
  // With the memory and without it, in turns: the least of each.
  std::optional<double> with;
  std::optional<double> without;
  for (int i = 0; i < 4; ++i)
    for (const bool kept : {true, false}) {
      ::madvise(memory, kBytes, kept ? MADV_DONTFORK : MADV_DOFORK);
      std::optional<double>& least = kept ? without : with;
      if (const auto seconds = fork_once()) least = std::min(least.value_or(*seconds), *seconds);
    }
  ::munmap(memory, kBytes);
  if (!with || !without || *with <= *without) return std::nullopt;
  return (*with - *without) / kBytes * kGib;
}

double copy_seconds(std::uint64_t bytes, std::uint64_t huge_bytes, double seconds_per_gib) {
  const double small = static_cast<double>(bytes - std::min(bytes, huge_bytes));
  return (small + kHugeFactor * static_cast<double>(huge_bytes)) / kGib * seconds_per_gib;
}

namespace {

/// What it costs here, and how much longer everything takes than on a processor of its own: by what
/// the measurement itself took.
void measure(ForkForecast& forecast, std::uint64_t small) {
  const bool copies = forecast.copied_bytes >= (1U << 20);
  if (!copies && small < kMuchMemory) return;
  const auto start = std::chrono::steady_clock::now();
  const double processor = processor_seconds();
  if (copies) forecast.copy_seconds_per_gib = measured_copy_seconds_per_gib();
  if (small >= kMuchMemory)
    forecast.table_seconds_per_gib = measured_table_seconds_per_gib().value_or(kTableSecondsPerGib);
  const double wall =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  const double used = processor_seconds() - processor;
  if (used > 0) forecast.slowdown = std::max(1.0, wall / used);
}

}  // namespace

ForkForecast forecast_fork(const Process& process, const std::vector<Vma>& vmas,
                           const std::vector<Pin>& pins, std::uint64_t pinned) {
  ForkForecast forecast;
  count_copies(forecast, vmas, pins, pinned);
  forecast.table_seconds_per_gib = kTableSecondsPerGib;
  std::uint64_t huge = 0;
  for (const Vma& vma : vmas)
    if (!vma.kept && !vma.wiped && !vma.shared && !vma.device) huge += vma.transparent_huge;
  const std::uint64_t small = forecast.private_bytes - std::min(forecast.private_bytes, huge);
  measure(forecast, small);
  forecast.table_bytes = forecast.private_bytes / 512;
  const double tables =
      (static_cast<double>(small) + kHugeTableFactor * static_cast<double>(huge)) / kGib;
  forecast.processor_seconds =
      50e-6 + forecast.table_seconds_per_gib * tables +
      copy_seconds(forecast.copied_bytes, forecast.huge_bytes, forecast.copy_seconds_per_gib);
  forecast.stall_seconds = forecast.slowdown * forecast.processor_seconds;
  if (forecast.huge_pages_needed > 0) forecast.huge_pages_free = free_huge_pages();
  forecast.no_memory =
      forecast.huge_pages_needed > forecast.huge_pages_free || over_commit_limit(vmas);
  if (const auto room = memory_headroom(process.try_read("cgroup").value_or(""), "")) {
    forecast.headroom_bytes = room->bytes;
    forecast.headroom_of = room->of;
    // What a few pages more or less decide is not foretold: only what is copied counts.
    forecast.out_of_memory_kill = forecast.copied_bytes >= (1U << 20) &&
                                  forecast.copied_bytes + forecast.table_bytes > room->bytes;
  }
  forecast.sentence = sentence_of(forecast);
  return forecast;
}

}  // namespace segfuse::doctor
