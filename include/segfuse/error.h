#pragma once
// Errors that reach a user. Each says whose fault it is and carries one clear sentence: the thing,
// what was found, what was expected, what to do.

#include <fmt/core.h>

#include <stdexcept>
#include <string>
#include <utility>

namespace segfuse {

/// Exit codes of the command line tool, one per kind of fault.
enum class ExitCode : int {
  kOk = 0,
  kUsage = 2,
  kData = 3,
  kDevice = 4,
  kInternal = 70,
  kInterrupted = 130
};

/// Base of every error thrown by segfuse.
class Error : public std::runtime_error {
 public:
  Error(ExitCode code, const std::string& message) : std::runtime_error(message), code_(code) {}
  ExitCode exit_code() const noexcept { return code_; }

 private:
  ExitCode code_;
};

/// The caller passed something that cannot work: an option, a shape, a program.
class UsageError : public Error {
 public:
  template <class... Args>
  explicit UsageError(fmt::format_string<Args...> format, Args&&... args)
      : Error(ExitCode::kUsage, fmt::format(format, std::forward<Args>(args)...)) {}
};

/// Registered memory was used in a forked child, where it does not exist.
class ForkedChildError : public UsageError {
 public:
  using UsageError::UsageError;
};

/// An input file or its content is wrong; the message names the file and the line or byte offset.
class DataError : public Error {
 public:
  template <class... Args>
  explicit DataError(fmt::format_string<Args...> format, Args&&... args)
      : Error(ExitCode::kData, fmt::format(format, std::forward<Args>(args)...)) {}
};

/// A device or a driver failed (also: out of device memory).
class DeviceError : public Error {
 public:
  template <class... Args>
  explicit DeviceError(fmt::format_string<Args...> format, Args&&... args)
      : Error(ExitCode::kDevice, fmt::format(format, std::forward<Args>(args)...)) {}
};

/// Another rank or the transport failed.
class CommError : public Error {
 public:
  template <class... Args>
  explicit CommError(fmt::format_string<Args...> format, Args&&... args)
      : Error(ExitCode::kDevice, fmt::format(format, std::forward<Args>(args)...)) {}
};

/// The user asked to stop (Ctrl-C); state was saved where the message says.
class Interrupted : public Error {
 public:
  template <class... Args>
  explicit Interrupted(fmt::format_string<Args...> format, Args&&... args)
      : Error(ExitCode::kInterrupted, fmt::format(format, std::forward<Args>(args)...)) {}
};

/// A fault of ours: an invariant does not hold.
class InternalError : public Error {
 public:
  template <class... Args>
  explicit InternalError(fmt::format_string<Args...> format, Args&&... args)
      : Error(ExitCode::kInternal, fmt::format(format, std::forward<Args>(args)...)) {}
};

}  // namespace segfuse
