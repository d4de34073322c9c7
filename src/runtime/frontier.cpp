#include "runtime/frontier.h"

#include <algorithm>

namespace segfuse::runtime {

Tick Frontier::tick(std::uint32_t stream) const {
  for (const StreamTick entry : entries())
    if (entry.stream() == stream) return entry.tick();
  return 0;
}

void Frontier::raise(StreamTick use) {
  if (!use.happened()) return;
  StreamTick* const data = more_.empty() ? few_.data() : more_.data();
  StreamTick* const end = data + size_;
  StreamTick* const at =
      std::find_if(data, end, [&](StreamTick entry) { return entry.stream() >= use.stream(); });
  if (at != end && at->stream() == use.stream()) {
    *at = std::max(*at, use);
    return;
  }
  const auto place = at - data;
  if (size_ < kFew) {
    std::copy_backward(at, end, end + 1);
    *at = use;
  } else {
    if (more_.empty()) more_.assign(few_.begin(), few_.end());
    more_.insert(more_.begin() + place, use);
  }
  ++size_;
}

void Frontier::join(const Frontier& other) {
  for (const StreamTick entry : other.entries()) raise(entry);
}

bool Frontier::within(const Frontier& other) const {
  return std::ranges::all_of(
      entries(), [&](StreamTick entry) { return entry.tick() <= other.tick(entry.stream()); });
}

void Frontier::shrink(std::size_t size) {
  if (!more_.empty()) {
    more_.resize(size);
    if (size <= kFew) {
      std::ranges::copy(more_, few_.begin());
      more_.clear();
    }
  }
  size_ = static_cast<std::uint32_t>(size);
}

bool operator==(const Frontier& a, const Frontier& b) {
  return std::ranges::equal(a.entries(), b.entries());
}

}  // namespace segfuse::runtime
