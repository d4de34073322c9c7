#undef _FORTIFY_SOURCE  // its longjmp refuses to change stacks
#include "support/emulator/device_language.h"

#include <setjmp.h>

#include <algorithm>
#include <stdexcept>

namespace segfuse::testing {

BlockRunner& runner() {
  static BlockRunner only;
  return only;
}

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
// The sanitizers follow these calls from one stack to another.
void BlockRunner::change(Context& from, Context& to) { swapcontext(&from.made, &to.made); }
void BlockRunner::begin(Context& from, Context& to) { swapcontext(&from.made, &to.made); }
#else
// A jump instead of swapcontext, which sets the mask of signals by a system call each time.
void BlockRunner::change(Context& from, Context& to) {
  if (_setjmp(from.jump) == 0) _longjmp(to.jump, 1);
}
void BlockRunner::begin(Context& from, Context& to) {
  if (_setjmp(from.jump) == 0) setcontext(&to.made);
}
#endif

void BlockRunner::yield() { change(running_->fibers[current_].context, scheduler_); }

/// What a fiber does: it waits for a thread, runs it, and waits for one of another block.
void BlockRunner::enter() {
  BlockRunner& self = runner();
  for (;;) {
    self.yield();
    self.body_();
    self.running_->fibers[self.current_].state = State::kDone;
    --self.running_->alive_of_warp[self.current_ / 32];
  }
}

/// The fiber then waits for a thread.
void BlockRunner::prepare(Fiber& fiber) {
  constexpr std::size_t kStackBytes = 256 * 1024;
  if (fiber.stack == nullptr) fiber.stack = std::make_unique_for_overwrite<char[]>(kStackBytes);
  ucontext_t& made = fiber.context.made;
  getcontext(&made);
  made.uc_stack.ss_sp = fiber.stack.get();
  made.uc_stack.ss_size = kStackBytes;
  made.uc_link = nullptr;
  makecontext(&made, &BlockRunner::enter, 0);
  begin(scheduler_, fiber.context);
}

void BlockRunner::start(Block& x, Index3 index, std::size_t shared_bytes) {
  x.index = index;
  if (x.fibers.size() < threads_) x.fibers = std::vector<Fiber>(threads_);  // contexts do not move
  for (auto& given : x.given) given.assign(threads_ + 32, 0);
  // Shared memory holds what the last block left, as on a device.
  if (x.dynamic_shared.size() != shared_bytes / sizeof(double) + 1)
    x.dynamic_shared.assign(shared_bytes / sizeof(double) + 1, 777e77);
  x.alive_of_warp.assign((threads_ + 31) / 32, 0);
  x.all = true;
  for (unsigned t = 0; t < threads_; ++t) {
    Fiber& fiber = x.fibers[t];
    running_ = &x;
    current_ = t;
    if (fiber.state != State::kDone) prepare(fiber);  // new, or left in the middle by a failure
    fiber.state = State::kReady;
    fiber.exchanges = 0;
    ++x.alive_of_warp[t / 32];
  }
}

void BlockRunner::run(Index3 grid, Index3 size, std::size_t shared_bytes, std::size_t at_once,
                      const std::function<void()>& body) {
  body_ = body;
  grid_size = grid;
  block_size = size;
  threads_ = size.x * size.y * size.z;
  const std::size_t blocks = std::size_t{grid.x} * grid.y * grid.z;
  while (blocks_.size() < at_once) blocks_.push_back(std::make_unique<Block>());
  for (std::size_t i = 0; i < at_once; ++i) blocks_[i]->dynamic_shared.clear();
  for (std::size_t i = 0; i < blocks; ++i) {
    const auto n = static_cast<unsigned>(i);
    start(*blocks_[i % at_once], {n % grid.x, n / grid.x % grid.y, n / grid.x / grid.y},
          shared_bytes);
    if ((i + 1) % at_once == 0) run_blocks(at_once);
  }
}

/// Runs every thread of a warp that can go on; whether one did more than wait for another block.
bool BlockRunner::advance_warp(Block& x, unsigned warp) {
  const unsigned end = std::min(threads_, warp * 32 + 32);
  bool went = false;
  for (unsigned t = warp * 32; t < end; ++t) {
    if (x.fibers[t].state != State::kReady) continue;
    current_ = t;
    thread = {t % block_size.x, t / block_size.x % block_size.y, t / block_size.x / block_size.y};
    paused_ = false;
    change(scheduler_, x.fibers[t].context);
    went |= !paused_;
  }
  bool whole = true;
  for (unsigned t = warp * 32; t < end; ++t) {
    const State state = x.fibers[t].state;
    whole &= state == State::kAtWarp || state == State::kDone;
  }
  for (unsigned t = warp * 32; t < end && whole; ++t)
    if (x.fibers[t].state == State::kAtWarp) x.fibers[t].state = State::kReady;
  return went;
}

/// Runs the warps of a block, each as far as barriers let it go before the next one, the first
/// ahead in one block and the last in the next: what they do not wait for shows. False if no thread
/// can go on.
bool BlockRunner::advance(Block& x) {
  const auto ready = [&] {
    return std::any_of(x.fibers.begin(), x.fibers.begin() + threads_,
                       [](const Fiber& fiber) { return fiber.state == State::kReady; });
  };
  const bool any = ready();
  running_ = &x;
  block = x.index;
  const unsigned warps = (threads_ + 31) / 32;
  for (unsigned i = 0; i < warps; ++i)
    while (advance_warp(x, x.index.x % 2 == 0 ? i : warps - 1 - i)) progress_ = true;
  release_block(x);
  return any || ready();
}

void BlockRunner::run_blocks(std::size_t count) {
  constexpr int kPatience = 4;  // rounds in which every thread waits for another block
  int idle = 0;
  for (bool any = true; any && idle < kPatience; idle = progress_ ? 0 : idle + 1) {
    any = progress_ = false;
    for (std::size_t i = 0; i < count; ++i) any |= advance(*blocks_[i]);
    any |= release_cluster(count);
  }
  for (std::size_t i = 0; i < count; ++i)
    for (unsigned t = 0; t < threads_; ++t)
      if (blocks_[i]->fibers[t].state != State::kDone)
        throw std::logic_error("a device thread waits for others that never come");
}

void BlockRunner::release_block(Block& x) {
  for (unsigned t = 0; t < threads_; ++t) {
    const State state = x.fibers[t].state;
    if (state != State::kAtBlock && state != State::kDone) return;
  }
  x.all_result = x.all;
  x.all = true;
  for (unsigned t = 0; t < threads_; ++t)
    if (x.fibers[t].state == State::kAtBlock) x.fibers[t].state = State::kReady;
}

/// False if no thread waits for the cluster, or some do not yet.
bool BlockRunner::release_cluster(std::size_t count) {
  bool any = false;
  for (std::size_t i = 0; i < count; ++i)
    for (unsigned t = 0; t < threads_; ++t) {
      const State state = blocks_[i]->fibers[t].state;
      if (state != State::kAtCluster && state != State::kDone) return false;
      any |= state == State::kAtCluster;
    }
  for (std::size_t i = 0; i < count; ++i)
    for (unsigned t = 0; t < threads_; ++t)
      if (blocks_[i]->fibers[t].state == State::kAtCluster)
        blocks_[i]->fibers[t].state = State::kReady;
  progress_ |= any;
  return any;
}

void BlockRunner::wait_cluster() {
  running_->fibers[current_].state = State::kAtCluster;
  yield();
}

bool BlockRunner::wait_block(bool value) {
  running_->all &= value;
  running_->fibers[current_].state = State::kAtBlock;
  yield();
  return running_->all_result;
}

void BlockRunner::pause() {
  paused_ = true;
  yield();
}

const std::uint64_t* BlockRunner::exchange(std::uint64_t bits) {
  Fiber& fiber = running_->fibers[current_];
  std::vector<std::uint64_t>& given = running_->given[fiber.exchanges++ % 2];
  const unsigned warp = current_ / 32 * 32;
  given[current_] = bits;
  fiber.state = State::kAtWarp;
  yield();
  return given.data() + warp;
}

}  // namespace segfuse::testing
