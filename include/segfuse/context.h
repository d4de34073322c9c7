#pragma once
// A handle to what calls share: options, worker threads, compiled code and open devices. One
// table says name, type, default, meaning and environment variable of each option.

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "segfuse/tensor.h"

namespace segfuse {

using OptionValue = std::variant<bool, std::int64_t, double, std::string, NeverHeld>;

/// A row of the table. The type of `fallback` is the option's type; `choices` are the only allowed
/// values of a string if there are any; `least` and `most` bound a number.
struct OptionInfo {
  std::string name;         ///< "check-numerics"; '_' is taken for '-' when a name is looked up
  std::string environment;  ///< "SEGFUSE_CHECK_NUMERICS"
  OptionValue fallback;
  std::string doc;
  std::vector<std::string> choices = {};
  double least = 0;
  double most = 0;
  /// Of a string that may be given without a value, as "--check-numerics": what that means. Words
  /// for true mean it too, words for false the first choice.
  std::string bare = {};
};

/// All options, in the order in which help shows them.
std::span<const OptionInfo> option_table();

/// A name that the compiler checks, with its type.
template <class T>
struct OptionKey {
  std::string_view name;
};

namespace options {
inline constexpr OptionKey<std::int64_t> kThreads{"threads"};
inline constexpr OptionKey<std::string> kLog{"log"};
inline constexpr OptionKey<bool> kQuiet{"quiet"};
inline constexpr OptionKey<std::string> kCheckNumerics{"check-numerics"};
inline constexpr OptionKey<std::string> kBackend{"backend"};
inline constexpr OptionKey<std::string> kDevice{"device"};
inline constexpr OptionKey<bool> kCheckStreams{"check-streams"};
inline constexpr OptionKey<std::string> kCacheDir{"cache-dir"};
inline constexpr OptionKey<std::int64_t> kCacheSize{"cache-size"};
}  // namespace options

/// A value for every option. A plain value: pass it on, copy it, change the copy.
class Options {
 public:
  /// The defaults of the table; the environment is not read.
  Options();
  /// The defaults, overridden by environment variables. Throws UsageError for a value that does not
  /// fit, and for a variable SEGFUSE_X that no option has but that is a slip of one.
  static Options from_environment();

  template <class T>
  const T& get(OptionKey<T> key) const {
    return std::get<T>(value(key.name));
  }
  template <class T>
  void set(OptionKey<T> key, T value) {
    assign(key.name, OptionValue(std::move(value)));
  }
  /// Parses `text` by the option's type: true|false|1|0|yes|no|on|off, a number, a string. Throws
  /// UsageError for an unknown name (with the nearest one) or a value that does not fit; the
  /// message begins with `origin` if given, else with the option's name.
  void set_text(std::string_view name, std::string_view text, std::string_view origin = {});
  /// The value as set_text takes it.
  std::string text(std::string_view name) const;
  /// Throws UsageError for an unknown name.
  const OptionValue& value(std::string_view name) const;

 private:
  void assign(std::string_view name, OptionValue value);
  std::vector<OptionValue> values_;  // by row of the table
};

/// A handle; copies share the context. It is immutable, so any thread may use it. All functions
/// that take threads, a device, a back end or the folder of compiled code take them from the
/// context that they are given.
class Context {
 public:
  /// The defaults of the option table; the environment is not read. All of these are one context.
  Context() = default;
  explicit Context(Options options);

  /// The context of the environment and, in the command, its arguments; for main(). Made from the
  /// environment at its first use. The library itself never uses it.
  static Context process_default();
  /// Replaces it, and sets the log level to that of the options.
  static void set_process_default(Options options);

  const Options& options() const;
  /// A new context with one option changed.
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

  /// The implementation, for the library itself.
  struct State;
  State& state() const;

 private:
  std::shared_ptr<State> state_;  // null: the defaults
};

}  // namespace segfuse
