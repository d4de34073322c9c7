#include "base/thread_pool.h"

#include <pthread.h>
#include <sched.h>

#include <algorithm>
#include <atomic>
#include <exception>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "base/code/float_mode.h"
#include "base/console/log.h"
#include "base/mutex.h"

namespace segfuse {
namespace {

thread_local bool inside_task = false;

/// One parallel loop. Threads that take part take task numbers from `next`.
struct Job {
  const std::function<void(std::int64_t)>* body = nullptr;
  std::int64_t tasks = 0;
  std::atomic<std::int64_t> next{0};
  int places = 0;  ///< for workers; guarded by the workers' mutex, as is `busy`
  int busy = 0;    ///< workers that take part
  Mutex mutex;
  std::int64_t failed_task SEGFUSE_GUARDED_BY(mutex) = -1;
  std::exception_ptr failure SEGFUSE_GUARDED_BY(mutex);

  void work() {
    const FloatMode mode(Denormals::kKept);
    const bool outer = std::exchange(inside_task, true);
    for (std::int64_t task = next.fetch_add(1); task < tasks; task = next.fetch_add(1)) {
      try {
        (*body)(task);
      } catch (...) {
        const MutexLock lock(mutex);
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

/// The worker threads of a process. They take part in the loops that have places for them, the
/// oldest first.
class ThreadPool::Workers {
 public:
  ~Workers() {
    {
      const MutexLock lock(mutex_);
      stop_ = true;
    }
    wake_.notify_all();
    for (std::thread& thread : threads_) thread.join();
  }

  /// Those of this process; made when there are none.
  static std::shared_ptr<Workers> shared() {
    static Mutex mutex;
    static auto& all = *new std::weak_ptr<Workers>();
    static const int registered =
        pthread_atfork([]() SEGFUSE_LOCKS_UNCHECKED { mutex.lock(); },
                       []() SEGFUSE_LOCKS_UNCHECKED { mutex.unlock(); },
                       []() SEGFUSE_LOCKS_UNCHECKED {
                         // The parent's threads do not exist here, and nobody can wait for them.
                         if (std::shared_ptr<Workers> parents = all.lock())
                           new std::shared_ptr<Workers>(std::move(parents));
                         all.reset();
                         ++forks;
                         mutex.unlock();
                       });
    static_cast<void>(registered);
    const MutexLock lock(mutex);
    std::shared_ptr<Workers> workers = all.lock();
    if (!workers) all = workers = std::make_shared<Workers>();
    return workers;
  }

  /// Whether they are those of a parent of this process.
  bool inherited() const { return born_ != forks; }

  /// Starts threads until there are `count`; how many there are then.
  int at_least(int count) {
    const MutexLock lock(mutex_);
    if (count <= static_cast<int>(threads_.size())) return count;
    try {
      threads_.reserve(static_cast<std::size_t>(count));
      while (static_cast<int>(threads_.size()) < count) threads_.emplace_back([this] { serve(); });
    } catch (const std::system_error& error) {
      log(LogLevel::kWarning,
          "the system started only {} of {} threads ({}); work continues with these",
          threads_.size() + 1, count + 1, error.code().message());
    }
    return static_cast<int>(threads_.size());
  }

  void run(Job& job, int most) {
    job.places = static_cast<int>(std::min<std::int64_t>(most, job.tasks - 1));
    int missing = job.places;
    {
      const MutexLock lock(mutex_);
      jobs_.push_back(&job);
      if (missing >= static_cast<int>(threads_.size())) missing = -1;
    }
    if (missing < 0) wake_.notify_all();
    for (; missing > 0; --missing) wake_.notify_one();
    job.work();
    MutexLock lock(mutex_);
    std::erase(jobs_, &job);  // a worker that wakes late finds nothing
    while (job.busy != 0) done_.wait(lock);
  }

 private:
  void serve() {
    MutexLock lock(mutex_);
    while (true) {
      Job* job = nullptr;
      while (!stop_ && (job = next_job()) == nullptr) wake_.wait(lock);
      if (stop_) return;
      --job->places;
      ++job->busy;
      lock.unlock();
      job->work();
      lock.lock();
      if (--job->busy == 0) done_.notify_all();
    }
  }

  Job* next_job() const SEGFUSE_REQUIRES(mutex_) {
    for (Job* job : jobs_)
      if (job->places > 0 && job->next < job->tasks) return job;
    return nullptr;
  }

  static inline std::atomic<int> forks = 0;
  const int born_ = forks;
  Mutex mutex_;  // of all below
  ConditionVariable wake_;
  ConditionVariable done_;
  std::vector<std::thread> threads_ SEGFUSE_GUARDED_BY(mutex_);
  std::vector<Job*> jobs_ SEGFUSE_GUARDED_BY(mutex_);  // that run, the oldest first
  bool stop_ SEGFUSE_GUARDED_BY(mutex_) = false;
};

int available_cores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof set, &set) == 0) return std::max(1, CPU_COUNT(&set));
  return std::max(1U, std::thread::hardware_concurrency());
}

ThreadPool::ThreadPool(int threads) { resize(threads); }
ThreadPool::~ThreadPool() = default;

int ThreadPool::size() const noexcept { return size_; }

void ThreadPool::resize(int threads) {
  const int wanted = threads > 0 ? threads : available_cores();
  if (wanted > 1 && (!workers_ || workers_->inherited())) workers_ = Workers::shared();
  size_ = wanted > 1 ? workers_->at_least(wanted - 1) + 1 : 1;
}

void ThreadPool::run(std::int64_t tasks, const std::function<void(std::int64_t)>& body) {
  if (tasks <= 0) return;
  Job job;
  job.body = &body;
  job.tasks = tasks;
  if (inside_task || tasks == 1 || size_ == 1 || workers_->inherited()) {
    job.work();
  } else {
    workers_->run(job, size_ - 1);
  }
  const MutexLock lock(job.mutex);
  if (job.failure) std::rethrow_exception(job.failure);
}

void ThreadPool::for_ranges(std::int64_t count, std::int64_t grain,
                            const std::function<void(std::int64_t, std::int64_t)>& body) {
  grain = std::max<std::int64_t>(grain, 1);
  run((count + grain - 1) / grain,
      [&](std::int64_t task) { body(task * grain, std::min(count, (task + 1) * grain)); });
}

}  // namespace segfuse
