#include <fmt/core.h>

#include <memory>

#include "commands.h"
#include "segfuse/doctor/ranks.h"

namespace segfuse::cli {

void add_doctor_ranks(Command doctor, Common& common) {
  Command command = doctor.add(
      "ranks", "Show where the ranks of a running job are and which ranks the others wait for");
  auto target = std::make_shared<std::string>();
  command
      .option("target", *target,
              "Folder of the run, in which rank 0 keeps ranks.json while it runs; that file; or "
              "HOST:PORT of rank 0, with the key in SEGFUSE_JOB_KEY")
      .required();
  command.footer(
      "\nExamples:\n  segfuse doctor ranks out/ecg\n"
      "  SEGFUSE_JOB_KEY=... segfuse doctor ranks node1:29500");
  command.runs([target, &common] {
    const RanksReport report = examine_ranks(*target);
    put("{}", common.json ? ranks_report_json(report) : ranks_report_text(report));
    common.status = report.failure.empty() ? 0 : 1;
  });
}

}  // namespace segfuse::cli
