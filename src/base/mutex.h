#pragma once
// A mutex whose rules clang checks (tools/check_locks): which members it guards, and which
// functions are called with it held. Those of the standard library say nothing to the analysis.
// Other compilers see nothing of the attributes.

#include <condition_variable>
#include <mutex>

#if defined(__clang__)
#define SEGFUSE_LOCKS(attribute) __attribute__((attribute))
#else
#define SEGFUSE_LOCKS(attribute)
#endif
/// For a member: access it only with the mutex held.
#define SEGFUSE_GUARDED_BY(mutex) SEGFUSE_LOCKS(guarded_by(mutex))
/// For a function or a lambda: its caller holds the mutex.
#define SEGFUSE_REQUIRES(mutex) SEGFUSE_LOCKS(requires_capability(mutex))
/// For a function that the analysis cannot follow; a comment says why it is correct.
#define SEGFUSE_LOCKS_UNCHECKED SEGFUSE_LOCKS(no_thread_safety_analysis)

namespace segfuse {

class SEGFUSE_LOCKS(capability("mutex")) Mutex {
 public:
  void lock() SEGFUSE_LOCKS(acquire_capability()) { mutex_.lock(); }
  void unlock() SEGFUSE_LOCKS(release_capability()) { mutex_.unlock(); }
  bool try_lock() SEGFUSE_LOCKS(try_acquire_capability(true)) { return mutex_.try_lock(); }

 private:
  friend class MutexLock;
  std::mutex mutex_;
};

/// Holds a mutex to the end of its scope, apart from where it is let go in between.
class [[nodiscard]] SEGFUSE_LOCKS(scoped_lockable) MutexLock {
 public:
  explicit MutexLock(Mutex& mutex) SEGFUSE_LOCKS(acquire_capability(mutex)) : lock_(mutex.mutex_) {}
  ~MutexLock() SEGFUSE_LOCKS(release_capability()) = default;
  MutexLock(const MutexLock&) = delete;
  MutexLock& operator=(const MutexLock&) = delete;
  void lock() SEGFUSE_LOCKS(acquire_capability()) { lock_.lock(); }
  void unlock() SEGFUSE_LOCKS(release_capability()) { lock_.unlock(); }

 private:
  friend class ConditionVariable;
  std::unique_lock<std::mutex> lock_;
};

/// Waits in a loop, `while (!there) condition.wait(lock);`, so that the analysis sees under which
/// lock the condition is read.
class ConditionVariable {
 public:
  void wait(MutexLock& lock) { condition_.wait(lock.lock_); }
  void notify_one() noexcept { condition_.notify_one(); }
  void notify_all() noexcept { condition_.notify_all(); }

 private:
  std::condition_variable condition_;
};

}  // namespace segfuse
