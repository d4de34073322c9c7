#pragma once
// Errors that reach a user. Each says whose fault it is and carries one clear sentence: the thing,
// what was found, what was expected, what to do.

#include <cstddef>
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

/// Throws the UsageError of an object of a class that was moved from.
[[noreturn]] void refuse_moved_from(const char* name);

/// The name of a class, in a type.
template <std::size_t N>
struct ClassName {
  char text[N] = {};
  consteval ClassName(const char (&name)[N]) {  // NOLINT(google-explicit-constructor)
    for (std::size_t i = 0; i < N; ++i) text[i] = name[i];
  }
};

/// A std::unique_ptr or std::shared_ptr to the state of an object, which is null once the object
/// was moved from: any use of that object is a UsageError, except assignment and destruction.
template <class Pointer, ClassName kName>
class StatePointer : public Pointer {
 public:
  StatePointer() = default;
  StatePointer(Pointer state) : Pointer(std::move(state)) {}  // NOLINT
  auto& operator*() const { return *checked(); }
  auto* operator->() const { return checked().get(); }
  const Pointer& checked() const {
    if (this->get() == nullptr) refuse_moved_from(kName.text);
    return *this;
  }
};

}  // namespace segfuse
