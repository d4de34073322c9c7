#include <fmt/core.h>

#include <filesystem>
#include <memory>

#include "commands.h"
#include "segfuse/doctor/kernel.h"
#include "segfuse/doctor/memory.h"
#include "segfuse/train.h"

namespace segfuse::cli {

namespace {

struct MemoryArguments {
  std::string file;
  std::string html;
  bool replay = false;
};

void run_memory(const MemoryArguments& arguments, const Common& common) {
  const MemoryReport report = examine_memory(arguments.file, arguments.replay);
  if (!arguments.html.empty())
    write_outputs({{arguments.html, memory_report_html(report)}}, common.overwrite);
  put("{}", common.json ? memory_report_json(report) : memory_report_text(report));
}

struct KernelArguments {
  std::string file;
  std::string against;
  std::string fail_on;
  bool triton_cache = false;
  KernelOptions options;
};

void run_kernel(const KernelArguments& arguments, Common& common) {
  if (arguments.file.empty() && !arguments.triton_cache)
    throw UsageError("doctor kernel: found no file, expected one with kernels, or --triton-cache");
  const KernelReport report = arguments.triton_cache
                                  ? examine_triton_cache(arguments.file, arguments.options)
                                  : examine_kernels(arguments.file, arguments.options);
  if (arguments.against.empty()) {
    put("{}", common.json ? kernel_report_json(report) : kernel_report_text(report));
  } else {
    const KernelReport former = examine_kernels(arguments.against, arguments.options);
    put("{}", common.json ? kernel_comparison_json(former, report)
                          : kernel_comparison_text(former, report));
  }
  common.status = arguments.fail_on == "spills" && report.spills() ? 1 : 0;
}

void add_memory(Command doctor, Common& common) {
  Command command = doctor.add(
      "memory",
      "Explain the use of device memory from a record, a trace or another allocator's log");
  auto arguments = std::make_shared<MemoryArguments>();
  command
      .option("file", arguments->file,
              "Memory record or Chrome trace of segfuse, RMM log (CSV), or PyTorch snapshot "
              "(docs/memory.md)")
      .required();
  command.option("--html", arguments->html, "Write a page with pictures to this file");
  command.flag("--replay", arguments->replay,
               "Report how much memory segfuse's heap would need for the same requests");
  command.footer(
      "\nExamples:\n  segfuse doctor memory snapshot.pickle --html memory.html\n"
      "  segfuse doctor memory rmm_log.csv --replay");
  command.runs([arguments, &common] { run_memory(*arguments, common); });
}

void add_kernel(Command doctor, Common& common) {
  Command command = doctor.add("kernel",
                               "Report the resources of GPU kernels (registers, spills, shared "
                               "memory, barriers, atomics) and the loops of C");
  auto arguments = std::make_shared<KernelArguments>();
  command.option("file", arguments->file,
                 "PTX (.ptx), cubin, CUDA C++ (.cu), C (.c), or a file that contains cubins");
  Option against =
      command.option("--against", arguments->against, "Compare with the kernels in this file");
  command
      .flag("--triton-cache", arguments->triton_cache,
            "Report the kernels in the caches of Triton and torch.compile, or in the folder given "
            "in place of a file")
      .excludes(against);
  command.option("--arch", arguments->options.architecture,
                 "Compile or assemble for this architecture; default: sm_90, or that of the PTX. "
                 "With --triton-cache, report only its kernels");
  command.option("--block", arguments->options.block,
                 "Threads per block for the occupancy; default: as the kernel declares, else 256");
  command
      .option("--fail-on", arguments->fail_on,
              "When to exit with code 1: spills, if a kernel spills registers")
      .is_one_of({"spills"});
  command.footer(
      "\nExamples:\n  segfuse doctor kernel layer_norm.cubin --fail-on spills\n"
      "  segfuse doctor kernel --triton-cache --arch sm_90\n"
      "  segfuse doctor kernel new.cubin --against old.cubin");
  command.runs([arguments, &common] { run_kernel(*arguments, common); });
}

}  // namespace

void add_doctor(Command app, Common& common) {
  Command doctor = app.add("doctor", "Diagnose a process, a program, or the record of a run");
  doctor.require_command();
  add_memory(doctor, common);
  add_doctor_fork(doctor, common);
  add_kernel(doctor, common);
  add_numerics(doctor, common);
  add_doctor_streams(doctor, common);
  add_doctor_determinism(doctor, common);
  add_doctor_ranks(doctor, common);
}

}  // namespace segfuse::cli
