#pragma once
// Data-parallel loops over worker threads that the whole process shares.

#include <cstdint>
#include <functional>
#include <memory>

namespace segfuse {

/// How many threads a loop may use. All pools draw on the same workers: as many as the largest of
/// them needs, started when it is made and ended with the last pool.
class ThreadPool {
 public:
  /// Loops run on at most `threads` threads, the caller included; 0 takes the number of cores this
  /// process may use. Where the system starts no more threads (a limit of processes or memory)
  /// there are fewer, and a warning says so: results do not depend on their number.
  explicit ThreadPool(int threads = 0);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int size() const noexcept;
  /// Changes the number of threads. Not while a loop runs.
  void resize(int threads);

  /// Calls body(task) once for each task in [0, tasks), spread over the workers, and waits for all.
  /// The tasks must be independent: the same division into tasks on any number of threads is what
  /// makes results the same bits. A call from inside a task runs in place. Any thread may call;
  /// loops that run at the same time share the workers. The first exception by task number is
  /// rethrown after all tasks have ended. A child made by fork runs loops in place.
  void run(std::int64_t tasks, const std::function<void(std::int64_t task)>& body);

  /// Splits [0, count) into ranges of at most `grain` and calls body(begin, end) for each. The
  /// split depends on count and grain alone.
  void for_ranges(std::int64_t count, std::int64_t grain,
                  const std::function<void(std::int64_t begin, std::int64_t end)>& body);

 private:
  class Workers;
  std::shared_ptr<Workers> workers_;
  int size_ = 1;
};

/// Cores that this process may run on.
int available_cores();

}  // namespace segfuse
