#include "support/device_language.h"

#include <algorithm>
#include <stdexcept>

namespace segfuse::testing {

BlockRunner& runner() {
  static BlockRunner only;
  return only;
}

void BlockRunner::enter() {
  BlockRunner& self = runner();
  self.body_();
  self.fibers_[self.current_].state = State::kDone;
  --self.alive_of_warp_[self.current_ / 32];
  self.yield();
}

void BlockRunner::yield() { swapcontext(&fibers_[current_].context, &scheduler_); }

/// A function of its own: getcontext returns once more when the fiber starts.
void BlockRunner::prepare(Fiber& fiber) {
  constexpr std::size_t kStackBytes = 256 * 1024;
  fiber.stack.resize(kStackBytes);
  fiber.state = State::kReady;
  fiber.exchanges = 0;
  getcontext(&fiber.context);
  fiber.context.uc_stack.ss_sp = fiber.stack.data();
  fiber.context.uc_stack.ss_size = fiber.stack.size();
  fiber.context.uc_link = &scheduler_;
  makecontext(&fiber.context, &BlockRunner::enter, 0);
}

void BlockRunner::run(Index3 grid, Index3 size, std::size_t shared_bytes,
                      const std::function<void()>& body) {
  body_ = body;
  grid_size = grid;
  block_size = size;
  threads_ = size.x * size.y * size.z;
  if (fibers_.size() < threads_) fibers_.resize(threads_);
  // Shared memory holds what the last block left, as on a device.
  dynamic_shared.assign(shared_bytes / sizeof(double) + 1, 777e77);
  for (auto& given : given_) given.assign(threads_ + 32, 0);
  for (unsigned i = 0; i < grid.x * grid.y * grid.z; ++i) {
    block = {i % grid.x, i / grid.x % grid.y, i / grid.x / grid.y};
    alive_of_warp_.assign((threads_ + 31) / 32, 0);
    all_ = true;
    for (unsigned t = 0; t < threads_; ++t) {
      prepare(fibers_[t]);
      ++alive_of_warp_[t / 32];
    }
    for (bool any = true; any;) {
      any = false;
      for (unsigned t = 0; t < threads_; ++t) {
        if (fibers_[t].state != State::kReady) continue;
        any = true;
        current_ = t;
        thread = {t % size.x, t / size.x % size.y, t / size.x / size.y};
        swapcontext(&scheduler_, &fibers_[t].context);
      }
      release_waiting();
      for (unsigned t = 0; t < threads_; ++t) any |= fibers_[t].state == State::kReady;
    }
    for (unsigned t = 0; t < threads_; ++t)
      if (fibers_[t].state != State::kDone)
        throw std::logic_error("a device thread waits for others that never come");
  }
}

void BlockRunner::release_waiting() {
  bool whole_block = true;
  for (unsigned w = 0; w * 32 < threads_; ++w) {
    const unsigned end = std::min(threads_, w * 32 + 32);
    bool whole_warp = true;
    for (unsigned t = w * 32; t < end; ++t) {
      whole_warp &= fibers_[t].state == State::kAtWarp || fibers_[t].state == State::kDone;
      whole_block &= fibers_[t].state == State::kAtBlock || fibers_[t].state == State::kDone;
    }
    for (unsigned t = w * 32; t < end && whole_warp; ++t)
      if (fibers_[t].state == State::kAtWarp) fibers_[t].state = State::kReady;
  }
  if (!whole_block) return;
  all_result_ = all_;
  all_ = true;
  for (unsigned t = 0; t < threads_; ++t)
    if (fibers_[t].state == State::kAtBlock) fibers_[t].state = State::kReady;
}

bool BlockRunner::wait_block(bool value) {
  all_ &= value;
  fibers_[current_].state = State::kAtBlock;
  yield();
  return all_result_;
}

const std::uint64_t* BlockRunner::exchange(std::uint64_t bits) {
  Fiber& fiber = fibers_[current_];
  std::vector<std::uint64_t>& given = given_[fiber.exchanges++ % 2];
  const unsigned warp = current_ / 32 * 32;
  given[current_] = bits;
  fiber.state = State::kAtWarp;
  yield();
  return given.data() + warp;
}

}  // namespace segfuse::testing
