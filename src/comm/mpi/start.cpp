#include "comm/mpi/start.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <thread>

#include "base/console/log.h"
#include "comm/launch/signals.h"
#include "segfuse/error.h"
#include "segfuse/spawn.h"

namespace segfuse::comm {
namespace {

struct Launcher {
  std::string program;
  std::string version;  ///< the first line of what it says of itself
  bool open_mpi = false;
};

Launcher find_launcher() {
  for (const char* const program : {"mpirun", "mpiexec"}) {
    spawn::Request request;
    request.arguments = {program, "--version"};
    const spawn::Result result = spawn::run(request);
    if (!result.ok()) continue;
    const std::string first = result.out.substr(0, result.out.find('\n'));
    return {program, first,
            result.out.find("Open MPI") != std::string::npos ||
                result.out.find("PRTE") != std::string::npos};
  }
  throw CommError(
      "no launcher of an MPI was found: neither mpirun nor mpiexec is in PATH; install Open MPI "
      "(openmpi-bin) or MPICH");
}

}  // namespace

int start_mpi_ranks(int ranks, const std::vector<std::string>& command) {
  const Launcher launcher = find_launcher();
  spawn::Request request;
  request.arguments = {launcher.program, "-n", std::to_string(ranks)};
  if (launcher.open_mpi) {
    // Ranks have threads of their own, and there may be more of them than processors.
    request.arguments.insert(request.arguments.end(), {"--oversubscribe", "--bind-to", "none"});
    if (geteuid() == 0) request.arguments.push_back("--allow-run-as-root");
  }
  request.arguments.insert(request.arguments.end(), command.begin(), command.end());
  if (std::getenv("SEGFUSE_THREADS") == nullptr) {
    const auto processors = static_cast<int>(std::max(1U, std::thread::hardware_concurrency()));
    request.environment = spawn::Environment::patch(
        {{"SEGFUSE_THREADS", std::to_string(std::max(1, processors / ranks))}});
  }
  request.in = spawn::Inherit{};
  request.out = spawn::Inherit{};
  request.err = spawn::Inherit{};
  const launch::PassedSignals signals;
  launch::PassedSignals::Cursor cursor{};
  request.signal = [&] { return launch::PassedSignals::next(cursor); };
  log(LogLevel::kInfo, "starting {} ranks by {} ({})", ranks, launcher.program, launcher.version);
  const spawn::Result result = spawn::run(request);
  if (result.exit_code) return *result.exit_code;
  throw CommError(fmt::format("{}: {}", launcher.program, result.outcome()));
}

}  // namespace segfuse::comm
