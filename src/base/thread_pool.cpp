#include "base/thread_pool.h"

#include <sched.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "base/log.h"

namespace segfuse {
namespace {

thread_local bool inside_task = false;

/// One parallel loop. Workers take task numbers from `next`.
struct Job {
  const std::function<void(std::int64_t)>* body = nullptr;
  std::int64_t tasks = 0;
  std::atomic<std::int64_t> next{0};
  std::mutex mutex;
  std::int64_t failed_task = -1;
  std::exception_ptr failure;

  void work() {
    const bool outer = std::exchange(inside_task, true);
    for (std::int64_t task = next.fetch_add(1); task < tasks; task = next.fetch_add(1)) {
      try {
        (*body)(task);
      } catch (...) {
        const std::lock_guard lock(mutex);
        if (!failure || task < failed_task) {
          failed_task = task;
          failure = std::current_exception();
        }
      }
    }
    inside_task = outer;
  }
};

}  // namespace

struct ThreadPool::State {
  std::vector<std::thread> workers;
  std::mutex run_mutex;  // one loop at a time
  std::mutex mutex;      // guards all below
  std::condition_variable wake;
  std::condition_variable done;
  Job* job = nullptr;
  std::uint64_t generation = 0;
  int busy = 0;
  bool stop = false;

  ~State() {
    {
      const std::lock_guard lock(mutex);
      stop = true;
    }
    wake.notify_all();
    for (std::thread& worker : workers) worker.join();
  }

  void serve() {
    std::uint64_t seen = 0;
    std::unique_lock lock(mutex);
    while (true) {
      wake.wait(lock, [&] { return stop || generation != seen; });
      if (stop) return;
      seen = generation;
      if (job == nullptr) continue;
      Job* current = job;
      ++busy;
      lock.unlock();
      current->work();
      lock.lock();
      if (--busy == 0) done.notify_all();
    }
  }
};

int available_cores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof set, &set) == 0) return std::max(1, CPU_COUNT(&set));
  return std::max(1U, std::thread::hardware_concurrency());
}

ThreadPool::ThreadPool(int threads) : state_(std::make_unique<State>()) {
  const int count = threads > 0 ? threads : available_cores();
  State* state = state_.get();
  state->workers.reserve(static_cast<std::size_t>(count) - 1);
  try {
    for (int i = 1; i < count; ++i) state->workers.emplace_back([state] { state->serve(); });
  } catch (const std::system_error& error) {
    log(LogLevel::kWarning, "the system starts {} of {} threads ({}); the work goes on with these",
        size(), count, error.code().message());
  }
}

ThreadPool::~ThreadPool() = default;

int ThreadPool::size() const noexcept { return static_cast<int>(state_->workers.size()) + 1; }

void ThreadPool::run(std::int64_t tasks, const std::function<void(std::int64_t)>& body) {
  if (tasks <= 0) return;
  Job job;
  job.body = &body;
  job.tasks = tasks;
  if (inside_task || tasks == 1 || state_->workers.empty()) {
    job.work();
  } else {
    const std::lock_guard run_lock(state_->run_mutex);
    {
      const std::lock_guard lock(state_->mutex);
      state_->job = &job;
      ++state_->generation;
    }
    state_->wake.notify_all();
    job.work();
    std::unique_lock lock(state_->mutex);
    state_->job = nullptr;  // a worker that wakes late finds nothing
    state_->done.wait(lock, [&] { return state_->busy == 0; });
  }
  if (job.failure) std::rethrow_exception(job.failure);
}

void ThreadPool::for_ranges(std::int64_t count, std::int64_t grain,
                            const std::function<void(std::int64_t, std::int64_t)>& body) {
  grain = std::max<std::int64_t>(grain, 1);
  run((count + grain - 1) / grain,
      [&](std::int64_t task) { body(task * grain, std::min(count, (task + 1) * grain)); });
}

}  // namespace segfuse
