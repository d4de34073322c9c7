#pragma once
// Memory that only grows, for what is needed again and again.

#include <cstddef>
#include <cstdlib>
#include <memory>
#include <new>
#include <utility>

namespace segfuse::engine {

class GrowingMemory {
 public:
  /// At least that many bytes, at a multiple of a page; what was there is lost when it grows.
  std::byte* at_least(std::size_t bytes) {
    if (bytes > size_) {
      memory_.reset();
      size_ = 0;
      const std::size_t rounded = (bytes + kPage - 1) / kPage * kPage;
      memory_.reset(static_cast<std::byte*>(std::aligned_alloc(kPage, rounded)));
      if (!memory_) throw std::bad_alloc();
      size_ = rounded;
    }
    return memory_.get();
  }
  std::size_t size() const { return size_; }

 private:
  static constexpr std::size_t kPage = 4096;
  struct Free {
    void operator()(std::byte* p) const { std::free(p); }
  };
  std::unique_ptr<std::byte, Free> memory_;
  std::size_t size_ = 0;
};

/// An object of this thread for one use, freed with the thread. Handlers of std::atexit run after
/// the main thread has freed its objects; they get a new one, which is kept.
template <class Object, class Use>
Object& of_thread() {
  thread_local Object* object = nullptr;
  struct Free {
    ~Free() { delete std::exchange(object, nullptr); }
  };
  if (object == nullptr) {
    object = new Object();
    thread_local Free free;
    static_cast<void>(free);
  }
  return *object;
}

}  // namespace segfuse::engine
