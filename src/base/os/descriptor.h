#pragma once

#include <unistd.h>

#include <utility>

namespace segfuse {

/// Closes on destruction; -1 is none.
class Descriptor {
 public:
  explicit Descriptor(int value = -1) noexcept : value_(value) {}
  ~Descriptor() {
    if (value_ >= 0) ::close(value_);
  }
  Descriptor(Descriptor&& other) noexcept : value_(std::exchange(other.value_, -1)) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    std::swap(value_, other.value_);
    return *this;
  }
  int get() const noexcept { return value_; }
  /// The caller that takes it closes it.
  int release() noexcept { return std::exchange(value_, -1); }

 private:
  int value_;
};

}  // namespace segfuse
