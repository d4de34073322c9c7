// What a process does while it is watched: see Watch in segfuse/doctor/streams.h.

#include <fmt/core.h>

#include <algorithm>
#include <atomic>
#include <map>
#include <set>
#include <thread>

#include "base/code/made_kernels.h"
#include "base/mutex.h"
#include "doctor/kernel/cpu.h"
#include "doctor/kernel/cubin.h"
#include "doctor/kernel/parts.h"
#include "doctor/kernel/ptx.h"
#include "runtime/check/listener.h"
#include "runtime/cuda/nvrtc.h"
#include "segfuse/doctor/streams.h"
#include "segfuse/error.h"

namespace segfuse {

struct Watch::State {
  void hear(const MadeKernels& made) {
    std::string key = made.architecture + "\n";
    for (const std::string& define : made.defines) key += define + "\n";
    const MutexLock lock(mutex);
    if (known.insert(key + made.text).second) all.push_back(made);
  }

  mutable Mutex mutex;
  std::set<std::string> known SEGFUSE_GUARDED_BY(mutex);
  std::vector<MadeKernels> all SEGFUSE_GUARDED_BY(mutex);
  KernelListener listener{[this](const MadeKernels& made) { hear(made); }};
  runtime::RaceListener races;
};

namespace {

using Language = MadeKernels::Language;
constexpr const char* kFile = "kernels of this run";

/// "reduce", "reduce_of_2", ...
class Names {
 public:
  std::string next(const std::string& name) {
    const int number = ++count_[name];
    return number == 1 ? name : fmt::format("{}_of_{}", name, number);
  }

 private:
  std::map<std::string, int> count_;
};

KernelReport report_of_c(const std::vector<MadeKernels>& all) {
  KernelReport report;
  report.file = kFile;
  report.source = "C, not compiled";
  std::string reason;
  const auto compiler = jit::open_cpu_compiler(&reason);
  if (!compiler) {
    report.notes.push_back("There is no compiler for C: " + reason);
    return report;
  }
  report.source = doctor::source_of(*compiler);
  report.notes.emplace_back(
      "Generated C is written in vectors of 16 lanes: a loop that the compiler leaves holds these "
      "vectors already.");
  Names names;
  for (const MadeKernels& made : all) {
    const std::size_t kernels = report.kernels.size();
    const std::size_t loops = report.loops.size();
    doctor::add_c_text(report, *compiler, {made.name, made.text});
    for (std::size_t i = kernels; i < report.kernels.size(); ++i)
      report.kernels[i].name = names.next(report.kernels[i].name);
    for (std::size_t i = loops; i < report.loops.size(); ++i)
      report.loops[i].kernel = report.kernels.back().name;
  }
  return report;
}

/// Of texts whose PTX cannot be had it is empty; `why` gets the last reason. A text takes a fifth
/// of a second.
std::vector<std::string> ptx_of(const std::vector<MadeKernels>& all, std::string& why) {
  std::vector<std::string> found(all.size());
  Mutex mutex;
  std::atomic<std::size_t> next = 0;
  const auto work = [&] {
    for (std::size_t i = next++; i < all.size(); i = next++) try {
        found[i] = runtime::cuda::compile_cubin(all[i].name, all[i].text, all[i].defines,
                                                all[i].architecture)
                       .ptx;
      } catch (const Error& error) {
        const MutexLock lock(mutex);
        why = error.what();
      }
  };
  std::vector<std::jthread> threads;
  const std::size_t most = std::max(1U, std::thread::hardware_concurrency());
  for (std::size_t i = 1; i < std::min(most, all.size()); ++i) threads.emplace_back(work);
  work();
  return found;
}

KernelReport report_of_cuda(const std::vector<MadeKernels>& all) {
  KernelReport report;
  report.file = kFile;
  report.source = fmt::format("CUDA C++, compiled by NVRTC for {}", all.front().architecture);
  std::string why;
  const std::vector<std::string> ptx = ptx_of(all, why);
  if (!why.empty()) report.notes.push_back("Atomics are not known of every kernel: " + why);
  Names names;
  for (std::size_t i = 0; i < all.size(); ++i) {
    std::vector<KernelInfo> kernels = doctor::read_cubin(all[i].machine_code, all[i].name);
    if (!ptx[i].empty()) doctor::add_text(kernels, doctor::read_ptx(ptx[i], all[i].name));
    for (KernelInfo& kernel : kernels) {
      kernel.name = names.next(kernel.name);
      report.kernels.push_back(std::move(kernel));
    }
  }
  doctor::add_occupancy(report, {});
  doctor::add_notes(report);
  return report;
}

}  // namespace

Watch::Watch() : state_(std::make_unique<State>()) {}
Watch::~Watch() = default;

std::vector<KernelReport> Watch::kernels() const {
  std::vector<MadeKernels> c;
  std::vector<std::pair<std::string, std::vector<MadeKernels>>> cuda;  // by architecture
  {
    const MutexLock lock(state_->mutex);
    for (const MadeKernels& made : state_->all) {
      if (made.language == Language::kC) {
        c.push_back(made);
        continue;
      }
      auto kind = std::find_if(cuda.begin(), cuda.end(),
                               [&](const auto& entry) { return entry.first == made.architecture; });
      if (kind == cuda.end()) kind = cuda.insert(cuda.end(), {made.architecture, {}});
      kind->second.push_back(made);
    }
  }
  std::vector<KernelReport> reports;
  if (!c.empty()) reports.push_back(report_of_c(c));
  for (const auto& [architecture, all] : cuda) reports.push_back(report_of_cuda(all));
  return reports;
}

StreamReport Watch::streams(std::string command) const {
  StreamReport report{std::move(command), state_->races.operations(), {}};
  for (const runtime::Finding& finding : state_->races.findings())
    report.races.push_back({finding.describe(), finding.missing(), runtime::race_picture(finding)});
  return report;
}

}  // namespace segfuse
