#include "runtime/memory/heap.h"

#include <fmt/core.h>

#include <algorithm>
#include <exception>
#include <limits>
#include <utility>

#include "base/mutex.h"
#include "base/sizes.h"
#include "runtime/memory/heap_state.h"

namespace segfuse::runtime {

namespace {

constexpr std::size_t kGrowthStep = std::size_t{2} << 20;

}  // namespace

Heap::State::State(Heap* of, Device& on, Timeline& times, HeapOptions with)
    : heap(of), device(on), timeline(times), options(with) {
  const std::size_t granule = device.granule();
  step = round_up(kGrowthStep, granule);
  const std::size_t total = device.memory().total;
  if (options.hard_limit == 0) options.hard_limit = total;
  reserved_bytes = round_up(std::max(total, step) * options.reserve_factor, granule);
  for (std::size_t i = 0; i < 2; ++i) reserved[i] = device.reserve(reserved_bytes);
  for (std::size_t i = 0; i < 2; ++i)
    arenas[i] = std::make_unique<Arena>(heap, static_cast<std::uint8_t>(i), reserved[i],
                                        reserved_bytes, granule);
}

Heap::Heap(Device& device, Timeline& timeline, HeapOptions options)
    : state_(std::make_unique<State>(this, device, timeline, options)) {
  timeline.on_retire(this, [state = state_.get()](StreamId stream) {
    const MutexLock lock(state->mutex);
    state->flush(state->magazines[stream.index]);
  });
}

Heap::~Heap() {
  state_->timeline.forget(this);
  try {
    for (const StreamId stream : state_->timeline.streams(state_->device))
      state_->timeline.synchronize(stream);
    trim();
  } catch (const std::exception&) {
    // The device has failed, and its memory with it.
  }
  for (std::byte* const reservation : state_->reserved)
    state_->device.unreserve(reservation, state_->reserved_bytes);
}

Device& Heap::device() const { return state_->device; }
Timeline& Heap::timeline() const { return state_->timeline; }

Buffer Heap::allocate(std::size_t bytes, StreamId stream, std::string_view label) {
  State& state = *state_;
  if (&state.timeline.device(stream) != &state.device)
    throw UsageError(fmt::format(
        "allocate: {} is a stream of {}, the heap is of {}; give a stream of its device",
        state.timeline.name(stream), state.timeline.device(stream).name(), state.device.name()));
  if (Buffer cached = allocate_cached(bytes, stream, label)) return cached;
  const std::size_t rounded = rounded_bytes(bytes);
  Block* const block = state.obtain(rounded, {bytes, stream, label});
  {
    const MutexLock lock(state.mutex);
    block->home = stream.index;
    block->size_class =
        static_cast<std::uint8_t>(rounded <= kSmallBytes ? size_class(rounded) : kClasses);
    block->requested = bytes;
    block->label = label;
  }
  return hand_out(block, stream, false);
}

Buffer Heap::allocate_cached(std::size_t bytes, StreamId stream, std::string_view label) {
  const std::size_t rounded = rounded_bytes(bytes);
  if (rounded > kSmallBytes) return {};
  Block* block = nullptr;
  {
    Magazine& magazine = state_->magazines[stream.index];
    const std::lock_guard lock(magazine.lock);
    block = magazine.pop(size_class(rounded));
    if (block == nullptr) return {};
    block->requested = bytes;
    block->label = label;
  }
  return hand_out(block, stream, true);
}

Buffer Heap::hand_out(Block* block, StreamId stream, bool cached) {
  block->references.store(1, std::memory_order_relaxed);
  if (state_->remembers())
    state_->remember(HeapEvent::Kind::kAllocate, *block, stream.index, cached);
  return Buffer(block);
}

// Called when the last handle is dropped; nobody else knows the block.
void Heap::release(Block* block) noexcept {
  State& state = *state_;
  const auto forget = [&](bool cached) {
    if (state.remembers()) state.remember(HeapEvent::Kind::kFree, *block, block->home, cached);
    block->serial = 0;
  };
  if (!block->uses.only(block->home)) {
    try {
      state.timeline.settle(block->uses, block->home);
    } catch (const std::exception&) {
      // No event could be recorded now. One will be when somebody has to wait for these uses.
    }
  }
  block->write = {};
  if (block->size_class < kClasses && block->uses.only(block->home)) {
    Magazine& magazine = state.magazines[block->home];
    const std::lock_guard lock(magazine.lock);
    if (magazine.bytes + block->bytes <= state.options.magazine_bytes) {
      forget(true);
      magazine.push(block);
      return;
    }
  }
  const MutexLock lock(state.mutex);
  forget(false);
  state.arenas[block->arena]->give(block);
}

std::size_t Heap::State::mapped() const {
  return arenas[0]->mapped_bytes() + arenas[1]->mapped_bytes();
}

std::size_t Heap::State::taken() const {
  return mapped() - arenas[0]->free_bytes() - arenas[1]->free_bytes();
}

std::size_t Heap::State::soft_limit(std::size_t more) const {
  if (options.soft_limit != 0) return std::min(options.soft_limit, options.hard_limit);
  const std::size_t wanted = taken() + more;
  return std::min(wanted + wanted / 4 + 4 * step, options.hard_limit);
}

bool Heap::State::flush(Magazine& magazine) {
  std::vector<Block*> blocks;
  {
    const std::lock_guard lock(magazine.lock);
    if (remembers() && magazine.blocks > 0) {
      HeapEvent event;
      event.kind = HeapEvent::Kind::kFlush;
      event.stream = static_cast<std::uint32_t>(&magazine - magazines.data());
      event.bytes = magazine.bytes;
      remember(std::move(event));
    }
    blocks = magazine.empty();
  }
  for (Block* const block : blocks) arenas[block->arena]->give(block);
  return !blocks.empty();
}

bool Heap::State::flush_all() {
  bool any = false;
  for (Magazine& magazine : magazines) any = flush(magazine) || any;
  return any;
}

Block* Heap::State::take(Arena& arena, const Arena::Run& run, std::size_t bytes) {
  Block* const block = arena.take(run, bytes);
  counts.peak_taken_bytes = std::max(counts.peak_taken_bytes, taken());
  ++counts.allocations;
  return block;
}

// What to map so that `bytes` can be handed out, if the limit allows; more than is needed where it
// allows that too.
std::optional<Arena::Growth> Heap::State::growth(Arena& arena, std::size_t bytes, StreamId stream,
                                                 std::size_t limit) const {
  auto growth = arena.find_growth(
      bytes, [&](const Frontier& uses) { return timeline.covered(stream, uses); });
  const std::size_t held = mapped();
  if (!growth || held + growth->bytes > limit) return std::nullopt;
  if (held + step <= limit && growth->gap->bytes >= step)
    growth->bytes = std::max(growth->bytes, step);
  return growth;
}

bool Heap::State::map(Arena& arena, const Arena::Growth& growth) {
  Block* const block = arena.begin_map(growth);
  mutex.unlock();
  try {
    device.map(block->address, block->bytes);
  } catch (const NoMemory&) {
    mutex.lock();
    arena.finish_unmap(block);
    return false;
  } catch (...) {
    mutex.lock();
    arena.finish_unmap(block);
    throw;
  }
  mutex.lock();
  counts.peak_mapped_bytes = std::max(counts.peak_mapped_bytes, mapped());
  ++counts.grown;
  if (remembers()) remember(HeapEvent::Kind::kMap, *block, 0);
  arena.finish_map(block);
  return true;
}

std::size_t Heap::State::unmap_idle(std::size_t bytes) {
  std::size_t released = 0;
  // Large blocks' memory first: there is more of it in a piece.
  for (const auto& arena : {arenas[1].get(), arenas[0].get()}) {
    if (released >= bytes) break;
    const std::vector<Block*> idle = arena->begin_unmap(
        bytes - released, [&](const Frontier& uses) { return timeline.over(uses); });
    std::exception_ptr failure;
    for (Block* const block : idle) {
      mutex.unlock();
      try {
        if (!failure) device.unmap(block->address, block->bytes);
      } catch (...) {
        failure = std::current_exception();
      }
      mutex.lock();
      if (failure) {
        arena->finish_map(block);  // it still has its memory
        continue;
      }
      released += block->bytes;
      ++counts.released;
      if (remembers()) remember(HeapEvent::Kind::kUnmap, *block, 0);
      arena->finish_unmap(block);
    }
    if (failure) std::rethrow_exception(failure);
  }
  return released;
}

// Memory that nothing uses is taken from where it is of no use. Not before a quarter more is held
// than was ever in use: otherwise memory would go to and fro in each step of a training.
bool Heap::State::move_idle(std::size_t bytes) {
  const std::size_t most = counts.peak_taken_bytes;
  if (mapped() + bytes <= most + most / 4 + 4 * step) return false;
  if (options.may_ask) {
    mutex.unlock();
    try {
      timeline.ask(device);
    } catch (...) {
      mutex.lock();
      throw;
    }
    mutex.lock();
  }
  return unmap_idle(bytes) > 0;
}

Frontier Heap::State::worth_waiting_for(std::size_t bytes) const {
  struct Candidate {
    int uses = 0;
    std::size_t bytes = 0;
    Frontier frontier;
  };
  std::vector<Candidate> candidates;
  for (const auto& arena : arenas) {
    for (const Block* block = arena->first(); block != nullptr;) {
      if (block->state != BlockState::kFree) {
        block = block->after;
        continue;
      }
      const std::byte* const lowest = block->address;
      const std::byte* end = lowest;
      Candidate candidate;
      for (; block != nullptr && block->state == BlockState::kFree; block = block->after) {
        end = block->address + block->bytes;
        candidate.frontier.join(block->uses);
      }
      const std::byte* const base = reserved[arena == arenas[0] ? 0 : 1];
      const std::size_t granule = arena->granule();
      const std::size_t from = round_up(static_cast<std::size_t>(lowest - base), granule);
      const std::size_t to = static_cast<std::size_t>(end - base) / granule * granule;
      if (from >= to) continue;
      candidate.bytes = to - from;
      candidate.frontier.drop_if([&](StreamTick use) { return timeline.over(use); });
      if (std::ranges::any_of(candidate.frontier.entries(),
                              [&](StreamTick use) { return timeline.sealed(use.stream()); }))
        continue;
      candidate.uses = static_cast<int>(candidate.frontier.size());
      candidates.push_back(std::move(candidate));
    }
  }
  std::ranges::stable_sort(candidates, [](const Candidate& a, const Candidate& b) {
    return std::pair(a.uses, b.bytes) < std::pair(b.uses, a.bytes);
  });
  Frontier uses;
  std::size_t found = 0;
  for (const Candidate& candidate : candidates) {
    if (found >= bytes) break;
    found += candidate.bytes;
    uses.join(candidate.frontier);
  }
  if (found < bytes) uses.clear();
  return uses;
}

Block* Heap::State::obtain(std::size_t bytes, const Request& request) {
  const StreamId stream = request.stream;
  Arena& own = arena_for(bytes);
  Arena& other = other_arena(bytes);
  const auto covered = [&](const Frontier& uses) { return timeline.covered(stream, uses); };
  const auto uncovered = [&](const Frontier& uses) {
    int waits = 0;
    for (const StreamTick use : uses.entries()) {
      if (timeline.covered(stream, use)) continue;
      if (timeline.sealed(stream.index) || timeline.sealed(use.stream())) return Arena::kNever;
      ++waits;
    }
    return waits;
  };
  // Taken with the waits that are missing, which are device calls and made without the lock.
  const auto take_waiting = [&](Arena& arena, const Arena::Run& run) SEGFUSE_REQUIRES(mutex) {
    Block* const block = take(arena, run, bytes);
    int waits = 0;
    mutex.unlock();
    try {
      waits = timeline.order_after(stream, block->uses);
    } catch (...) {
      mutex.lock();
      arena.give(block);
      throw;
    }
    mutex.lock();
    counts.added_waits += static_cast<std::uint64_t>(waits);
    return block;
  };

  MutexLock lock(mutex);
  const std::size_t needed = round_up(std::min(bytes, reserved_bytes), own.granule());
  const bool possible = bytes <= reserved_bytes && needed <= options.hard_limit;
  bool device_full = false;  // the device refused memory below our limit
  while (possible) {
    if (const auto run = own.find(bytes, covered, stream.index)) return take(own, *run, bytes);
    if (flush_all())
      if (const auto run = own.find(bytes, covered, stream.index)) return take(own, *run, bytes);
    if (!device_full) {
      if (const auto more = growth(own, bytes, stream, soft_limit(bytes))) {
        device_full = !map(own, *more);
        continue;
      }
    }
    if (const auto run = own.find_waiting(bytes, uncovered)) return take_waiting(own, *run);
    if (!device_full) {
      const auto wanted = growth(own, bytes, stream, options.hard_limit);
      if (wanted && move_idle(wanted->bytes)) continue;
      // The lock was let go.
      if (const auto more = growth(own, bytes, stream, options.hard_limit)) {
        device_full = !map(own, *more);
        continue;
      }
    }
    // Memory that is mapped has to go elsewhere.
    const std::size_t held = mapped();
    const std::size_t room = options.hard_limit > held ? options.hard_limit - held : 0;
    const std::size_t excess = device_full ? needed : needed - std::min(needed, room);
    if (excess > 0 && unmap_idle(excess) > 0) {
      device_full = false;
      continue;
    }
    if (const auto run = other.find_waiting(bytes, uncovered)) return take_waiting(other, *run);
    const Frontier awaited = worth_waiting_for(excess);
    if (awaited.empty()) break;
    if (!options.may_wait) throw OutOfDeviceMemory(out_of_memory(request, bytes, &awaited));
    lock.unlock();
    timeline.synchronize(awaited);
    lock.lock();
    ++counts.host_waits;
  }
  throw OutOfDeviceMemory(out_of_memory(request, bytes, nullptr));
}

void Heap::trim() {
  MutexLock lock(state_->mutex);
  state_->flush_all();
  state_->unmap_idle(std::numeric_limits<std::size_t>::max());
}

void Heap::set_limits(std::size_t soft_limit, std::size_t hard_limit) {
  const MutexLock lock(state_->mutex);
  state_->options.soft_limit = soft_limit;
  state_->options.hard_limit = hard_limit == 0 ? state_->device.memory().total : hard_limit;
}

void Heap::set_may_ask(bool may_ask) {
  const MutexLock lock(state_->mutex);
  state_->options.may_ask = may_ask;
}

std::size_t Heap::hard_limit() const {
  const MutexLock lock(state_->mutex);
  return state_->options.hard_limit;
}

}  // namespace segfuse::runtime
