// The command line tool. No logic of its own: options in, library call, result out.

#include <fmt/core.h>

#include <atomic>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <new>
#include <string>
#include <system_error>

#include "commands.h"
#include "segfuse/error.h"

namespace {

using segfuse::ExitCode;

constexpr const char* kOutOfMemory = "out of memory; use smaller batches or fewer threads";

std::atomic<bool> memory_refused{false};

void on_refused_memory() {
  memory_refused = true;
  throw std::bad_alloc();
}

/// Where an exception cannot come up (in a library without exceptions), memory that runs out is
/// still not taken for a fault of ours.
[[noreturn]] void on_terminate() {
  std::fprintf(
      stderr, "segfuse: %s\n",
      memory_refused ? kOutOfMemory : "unexpected: the process ended because of an exception");
  std::_Exit(static_cast<int>(memory_refused ? ExitCode::kDevice : ExitCode::kInternal));
}

int run_command(int argc, char** argv, segfuse::cli::Common& common) {
  try {
    const int status = segfuse::cli::run(argc, argv, common);
    segfuse::cli::flush_output();
    return status;
  } catch (const segfuse::EndedByRank& error) {
    return static_cast<int>(error.exit_code());
  } catch (const segfuse::Error& error) {
    return segfuse::cli::fail(common, error.exit_code(), error.what());
  } catch (const std::bad_alloc&) {
    throw;
  } catch (const std::filesystem::filesystem_error& error) {
    return segfuse::cli::fail(
        common, ExitCode::kData,
        fmt::format("{}: {}", error.path1().string(), error.code().message()));
  } catch (const std::system_error& error) {
    if (std::ferror(stdout) != 0)
      return segfuse::cli::fail(
          common, ExitCode::kDevice,
          fmt::format("cannot write to standard output: {}", error.code().message()));
    return segfuse::cli::fail(common, ExitCode::kDevice,
                              fmt::format("the system refuses: {}", error.code().message()));
  } catch (const std::exception& error) {
    return segfuse::cli::fail(common, ExitCode::kInternal,
                              std::string("unexpected: ") + error.what());
  }
}

/// There may be no memory for saying so either.
int out_of_memory(const segfuse::cli::Common& common) {
  try {
    return segfuse::cli::fail(common, ExitCode::kDevice, kOutOfMemory);
  } catch (const std::bad_alloc&) {
    std::fprintf(stderr, "segfuse: %s\n", kOutOfMemory);
    return static_cast<int>(ExitCode::kDevice);
  }
}

}  // namespace

int main(int argc, char** argv) {
  segfuse::cli::Common common;
  // Writing then fails with EFBIG, and the sentence for that is printed.
  std::signal(SIGXFSZ, SIG_IGN);
  std::set_new_handler(on_refused_memory);
  std::set_terminate(on_terminate);
  try {
    return run_command(argc, argv, common);
  } catch (const std::bad_alloc&) {
    return out_of_memory(common);
  }
}
