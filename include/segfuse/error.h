#pragma once
// Errors that reach a user. Each says whose fault it is and carries one clear sentence: the thing,
// what was found, what was expected, what to do.

#include <stdexcept>
#include <string>

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
  explicit UsageError(const std::string& message) : Error(ExitCode::kUsage, message) {}
};

/// Registered memory was used in a forked child, where it does not exist.
class ForkedChildError : public UsageError {
 public:
  using UsageError::UsageError;
};

/// An input file or its content is wrong; the message names the file and the line or byte offset.
class DataError : public Error {
 public:
  explicit DataError(const std::string& message) : Error(ExitCode::kData, message) {}

 protected:
  using Error::Error;
};

/// A device or a driver failed (also: out of device memory).
class DeviceError : public Error {
 public:
  explicit DeviceError(const std::string& message) : Error(ExitCode::kDevice, message) {}
};

/// Another rank or the transport failed.
class CommError : public Error {
 public:
  explicit CommError(const std::string& message) : Error(ExitCode::kDevice, message) {}

 protected:
  using Error::Error;
};

/// Another rank ended the work of all, with this exit code, and says why itself.
class EndedByRank : public CommError {
 public:
  EndedByRank(ExitCode code, const std::string& message) : CommError(code, message) {}
};

/// The user asked to stop (Ctrl-C); state was saved where the message says.
class Interrupted : public Error {
 public:
  explicit Interrupted(const std::string& message) : Error(ExitCode::kInterrupted, message) {}
};

/// A fault of ours: an invariant does not hold.
class InternalError : public Error {
 public:
  explicit InternalError(const std::string& message) : Error(ExitCode::kInternal, message) {}
};

}  // namespace segfuse
