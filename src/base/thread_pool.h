#pragma once
// A fixed set of workers for data-parallel loops.

#include <cstdint>
#include <functional>
#include <memory>

namespace segfuse {

class ThreadPool {
 public:
  /// `threads` workers in all, the caller included; 0 takes the number of cores this process may
  /// use. Where the system starts no more threads (a limit of processes or memory) there are fewer,
  /// and a warning says so: results do not depend on their number.
  explicit ThreadPool(int threads = 0);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int size() const noexcept;

  /// Calls body(task) once for each task in [0, tasks), spread over the workers, and waits for all.
  /// The tasks must be independent: the same division into tasks on any number of threads is what
  /// makes results the same bits. A call from inside a task runs in place. The first exception by
  /// task number is rethrown after all tasks have ended.
  void run(std::int64_t tasks, const std::function<void(std::int64_t task)>& body);

  /// Splits [0, count) into ranges of at most `grain` and calls body(begin, end) for each. The
  /// split depends on count and grain alone.
  void for_ranges(std::int64_t count, std::int64_t grain,
                  const std::function<void(std::int64_t begin, std::int64_t end)>& body);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// Cores that this process may run on.
int available_cores();

}  // namespace segfuse
