#include <fmt/core.h>

#include <filesystem>
#include <fstream>
#include <memory>

#include "commands.h"
#include "segfuse/doctor.h"
#include "segfuse/error.h"

namespace segfuse::cli {

namespace {

struct MemoryArguments {
  std::string file;
  std::string html;
  bool replay = false;
};

void write(const std::filesystem::path& path, const std::string& text) {
  std::ofstream out(path, std::ios::binary);
  out << text;
  out.flush();
  if (!out) throw DataError("{}: cannot be written; is there such a folder?", path.string());
}

void run_memory(const MemoryArguments& arguments, bool json) {
  const MemoryReport report = examine_memory(arguments.file, arguments.replay);
  if (!arguments.html.empty()) write(arguments.html, memory_report_html(report));
  fmt::print("{}", json ? memory_report_json(report) : memory_report_text(report));
}

struct ForkArguments {
  int pid = 0;
  std::string html;
};

void run_fork(const ForkArguments& arguments, Common& common) {
  const ForkReport report = examine_fork(arguments.pid);
  if (!arguments.html.empty()) write(arguments.html, fork_report_html(report));
  fmt::print("{}", common.json ? fork_report_json(report) : fork_report_text(report));
  common.status = report.at_risk() ? 1 : 0;
}

void add_memory(CLI::App& doctor, Common& common) {
  CLI::App* command = doctor.add_subcommand(
      "memory", "What device memory was used for, from a record, a trace or another's log");
  auto arguments = std::make_shared<MemoryArguments>();
  command
      ->add_option("file", arguments->file,
                   "Memory record or Chrome trace of segfuse, RMM log (CSV), PyTorch snapshot as "
                   "JSON (docs/memory.md)")
      ->required();
  command->add_option("--html", arguments->html, "Write a page with pictures to this file");
  command->add_flag("--replay", arguments->replay,
                    "Say what segfuse's heap would have needed for the same requests");
  command->callback([arguments, &common] { run_memory(*arguments, common.json); });
}

void add_fork(CLI::App& doctor, Common& common) {
  CLI::App* command = doctor.add_subcommand(
      "fork", "What fork() in a live process would do: whose memory its children would lack");
  auto arguments = std::make_shared<ForkArguments>();
  command->add_option("pid", arguments->pid, "Number of the process; it is read, never stopped")
      ->required();
  command->add_option("--html", arguments->html, "Write a page with a map to this file");
  command->callback([arguments, &common] { run_fork(*arguments, common); });
}

}  // namespace

void add_doctor(CLI::App& app, Common& common) {
  CLI::App* doctor =
      app.add_subcommand("doctor", "Explain a process, or what a run recorded about itself");
  doctor->require_subcommand(1);
  add_memory(*doctor, common);
  add_fork(*doctor, common);
}

}  // namespace segfuse::cli
