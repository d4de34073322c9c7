#pragma once
// A library opened at run time.

#include <filesystem>
#include <initializer_list>
#include <span>
#include <string>
#include <vector>

#include "segfuse/error.h"

namespace segfuse {

/// Stays open until the process ends. False if it could not be opened; error() says why.
class SharedLibrary {
 public:
  /// The first of the names that opens.
  static SharedLibrary open_first(std::initializer_list<std::string> names);
  static SharedLibrary open_first(std::span<const std::string> names);
  /// The same for a large one: its functions are bound as they are first called.
  static SharedLibrary open_first_lazily(std::span<const std::string> names);
  explicit operator bool() const noexcept { return handle_ != nullptr; }
  const std::string& error() const noexcept { return error_; }
  const std::string& name() const noexcept { return name_; }

  /// Sets `function` to the symbol. Throws DeviceError if the library lacks it.
  template <class Function>
  void load(const char* symbol, Function& function) const {
    function = reinterpret_cast<Function>(find(symbol));
  }

 private:
  static SharedLibrary open(std::span<const std::string> names, int how);
  void* find(const char* symbol) const;
  void* handle_ = nullptr;
  std::string name_;
  std::string error_;
};

/// Where a library of ours may lie that the code around the object at `address` opens, the best
/// place first: beside it (a build, the Python module), in ../lib (what is installed), above it
/// (the command inside the Python package).
std::vector<std::filesystem::path> places_of_module(const void* address, const char* name);

}  // namespace segfuse
