// The command line tool. No logic of its own: options in, library call, result out.

#include <fmt/core.h>

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

/// Where an exception cannot come up (in a library without exceptions), memory that runs out is
/// still told apart from a fault of ours.
[[noreturn]] void on_terminate() {
  ExitCode code = ExitCode::kInternal;
  const char* what = "unexpected: the process had to end";
  try {
    if (const std::exception_ptr error = std::current_exception()) std::rethrow_exception(error);
  } catch (const std::bad_alloc&) {
    code = ExitCode::kDevice;
    what = kOutOfMemory;
  } catch (...) {
  }
  std::fprintf(stderr, "segfuse: %s\n", what);
  std::_Exit(static_cast<int>(code));
}

}  // namespace

int main(int argc, char** argv) {
  segfuse::cli::Common common;
  // Writing then fails with EFBIG, and the sentence for that is printed.
  std::signal(SIGXFSZ, SIG_IGN);
  std::set_terminate(on_terminate);
  try {
    const int status = segfuse::cli::run(argc, argv, common);
    segfuse::cli::flush_output();
    return status;
  } catch (const segfuse::Error& error) {
    return segfuse::cli::fail(common, error.exit_code(), error.what());
  } catch (const std::bad_alloc&) {
    return segfuse::cli::fail(common, ExitCode::kDevice, kOutOfMemory);
  } catch (const std::filesystem::filesystem_error& error) {
    return segfuse::cli::fail(
        common, ExitCode::kData,
        fmt::format("{}: {}", error.path1().string(), error.code().message()));
  } catch (const std::system_error& error) {
    if (std::ferror(stdout) != 0)
      return segfuse::cli::fail(
          common, ExitCode::kData,
          fmt::format("cannot write to standard output: {}", error.code().message()));
    return segfuse::cli::fail(common, ExitCode::kDevice,
                              fmt::format("the system refuses: {}", error.code().message()));
  } catch (const std::exception& error) {
    return segfuse::cli::fail(common, ExitCode::kInternal,
                              std::string("unexpected: ") + error.what());
  }
}
