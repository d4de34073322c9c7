#include "segfuse/context.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "base/code/code_store.h"
#include "base/console/log.h"
#include "base/context/pool.h"
#include "base/context/state.h"

namespace segfuse {
namespace {

struct ProcessContext {
  Mutex mutex;
  std::optional<Context> context SEGFUSE_GUARDED_BY(mutex);
};

ProcessContext& of_process() {
  // Never destroyed: what it holds may be in use when the process ends.
  static auto* const state = new ProcessContext;
  return *state;
}

/// The choices of the option are in the order of the levels.
LogLevel level_of(const Options& options) {
  const std::string& name = options.get(options::kLog);
  const auto row = std::ranges::find(option_table(), options::kLog.name, &OptionInfo::name);
  return static_cast<LogLevel>(std::ranges::find(row->choices, name) - row->choices.begin());
}

}  // namespace

Context::State::State(Options given)
    : options(std::move(given)),
      code(std::make_shared<const CodeStore>(code_folder(options), CodeStoreOptions(options))) {}

ThreadPool& Context::State::pool() {
  const MutexLock lock(mutex);
  if (!threads)
    threads = std::make_unique<ThreadPool>(static_cast<int>(options.get(options::kThreads)));
  return *threads;
}

Context::Context(Options options) : state_(std::make_shared<State>(std::move(options))) {}

Context Context::process_default() {
  ProcessContext& process = of_process();
  const MutexLock lock(process.mutex);
  if (!process.context) process.context = Context(Options::from_environment());
  return *process.context;
}

void Context::set_process_default(Options options) {
  set_log_level(level_of(options));
  Context made(std::move(options));
  ProcessContext& process = of_process();
  const MutexLock lock(process.mutex);
  process.context = std::move(made);
}

const Options& Context::options() const { return state().options; }
int Context::threads() const {
  const auto wanted = static_cast<int>(options().get(options::kThreads));
  return wanted > 0 ? wanted : available_cores();
}

ThreadPool& pool_of(const Context& context) { return context.state().pool(); }

Context::State& Context::state() const {
  if (state_) return *state_;
  static State& plain = *new State(Options());
  return plain;
}

}  // namespace segfuse
