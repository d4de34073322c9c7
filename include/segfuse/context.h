#pragma once
// What calls share: options, worker threads, compiled code and open devices, in one handle.

#include <memory>
#include <utility>

#include "segfuse/options.h"

namespace segfuse {

/// A shared handle: copies are the same context. Nothing in it changes once it is made, so any
/// thread may use it. All functions that take threads, a device, a back end or the folder of
/// compiled code take them from the context that they are given.
class Context {
 public:
  /// The defaults of the option table; the environment is not read. All of these are one context.
  Context() = default;
  explicit Context(Options options);

  /// The one that a command makes of its environment and arguments, for main() and what main()
  /// calls: made of the environment when it is first asked for. The library itself never asks.
  static Context process_default();
  /// Replaces it, and sets the log level to that of the options.
  static void set_process_default(Options options);

  const Options& options() const;
  /// A context of its own with the same options but one.
  template <class T>
  Context with(OptionKey<T> key, T value) const {
    Options changed = options();
    changed.set(key, std::move(value));
    return Context(std::move(changed));
  }
  /// Threads that a call may use: the option `threads`, or the cores this process may run on.
  int threads() const;

  /// Whether they are the same context.
  bool operator==(const Context&) const = default;

  /// What is inside, for the library itself.
  struct State;
  State& state() const;

 private:
  std::shared_ptr<State> state_;  // null: the defaults
};

}  // namespace segfuse
