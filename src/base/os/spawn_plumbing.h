#pragma once
// The descriptors of one child: what it gets as 0, 1, 2 and beside them, and our ends of pipes.

#include <spawn.h>
#include <unistd.h>

#include <array>
#include <utility>
#include <vector>

#include "segfuse/spawn.h"

namespace segfuse::spawn {

/// Owns a descriptor.
class [[nodiscard]] Handle {
 public:
  explicit Handle(int number = -1) noexcept : number_(number) {}
  Handle(Handle&& other) noexcept : number_(std::exchange(other.number_, -1)) {}
  Handle& operator=(Handle&& other) noexcept {
    std::swap(number_, other.number_);
    return *this;
  }
  ~Handle() { close(); }
  int get() const noexcept { return number_; }
  explicit operator bool() const noexcept { return number_ >= 0; }
  void close() noexcept {
    if (number_ >= 0) ::close(std::exchange(number_, -1));
  }

 private:
  int number_;
};

/// Where preparing a child failed; becomes the result.
struct Failure {
  Stage stage;
  int error_number;
  std::string detail;
};

/// Everything is open before the child exists. Throws Failure.
class Plumbing {
 public:
  explicit Plumbing(const Request& request);

  struct Given {
    Handle handle;  ///< above every number that the child sees, closed by exec
    int child = -1;
  };
  const std::vector<Given>& given() const { return given_; }
  /// The least number that the child does not see.
  int first_closed() const { return first_closed_; }
  int directory() const { return directory_.get(); }

  /// After the start: only our own ends stay.
  void keep_ours();
  /// Our ends of what is captured, non-blocking; of stdout, of stderr.
  std::array<Handle, 2>& captured() { return captured_; }

 private:
  void give(int source, int child, Stage stage, const std::string& detail);
  void give(Handle source, int child, Stage stage, const std::string& detail);
  void give_own(int child, Stage stage);
  void open_input(const Input& in);
  template <class Out>
  void open_output(const Out& out, int child, Stage stage);
  Handle open_file(const File& file, bool write, Stage stage);
  Handle make_pipe(int child, Stage stage);

  std::vector<Given> given_;
  int first_closed_ = 3;
  Handle directory_;
  std::array<Handle, 2> captured_;
};

/// Calls for posix_spawn that glibc may lack: it has the first since 2.29, the second since 2.34.
/// Tests take them away.
struct LibraryCalls {
  using Call = int (*)(posix_spawn_file_actions_t*, int);
  Call change_directory;
  Call close_from;
};
LibraryCalls& library_calls();

/// The child closes every descriptor from `first` on. Without the library's call these are the ones
/// that are open now, as /proc has them. Returns an error number.
int add_close_from(posix_spawn_file_actions_t* actions, int first);

}  // namespace segfuse::spawn
