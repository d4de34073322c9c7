// What a heap tells of itself: statistics, snapshots, history, and why there was no memory.

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <utility>

#include "base/mutex.h"
#include "runtime/memory/heap_state.h"
#include "segfuse/error.h"

namespace segfuse::runtime {

namespace {

std::string in_words(std::size_t bytes) {
  constexpr std::array kUnits = {"bytes", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  auto amount = static_cast<double>(bytes);
  std::size_t unit = 0;
  for (; amount >= 1024 && unit + 1 < kUnits.size(); ++unit) amount /= 1024;
  if (unit == 0) return fmt::format("{} {}", bytes, kUnits[0]);
  return fmt::format("{:.{}f} {}", amount, amount < 10 ? 2 : 1, kUnits[unit]);
}

}  // namespace

void Heap::State::remember(HeapEvent::Kind kind, Block& block, std::uint32_t stream, bool cached) {
  HeapEvent event;
  event.kind = kind;
  event.arena = block.arena;
  event.offset = static_cast<std::uint64_t>(block.address - reserved[block.arena]);
  event.bytes = block.bytes;
  event.stream = stream;
  event.cached = cached;
  if (kind == HeapEvent::Kind::kAllocate) {
    const MutexLock lock(history_mutex);
    block.serial = ++serials;
  }
  if (kind == HeapEvent::Kind::kAllocate || kind == HeapEvent::Kind::kFree) {
    event.serial = block.serial;
    event.requested = block.requested;
    event.label = block.label;
  }
  remember(std::move(event));
}

void Heap::State::remember(HeapEvent event) {
  const MutexLock lock(history_mutex);
  event.nanoseconds = static_cast<std::uint64_t>(
      std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now() - begin)
          .count());
  history.push_back(std::move(event));
  while (history.size() > history_size) history.pop_front();
}

void Heap::keep_history(std::size_t events) {
  const MutexLock lock(state_->history_mutex);
  state_->history_size = events;
  while (state_->history.size() > events) state_->history.pop_front();
  state_->history_on.store(events > 0);
}

std::vector<HeapEvent> Heap::history() const {
  const MutexLock lock(state_->history_mutex);
  return {state_->history.begin(), state_->history.end()};
}

HeapStatistics Heap::statistics() const { return snapshot().statistics; }

void Heap::reset_peaks() {
  const MutexLock lock(state_->mutex);
  state_->counts.peak_mapped_bytes = state_->mapped();
  state_->counts.peak_taken_bytes = state_->taken();
}

HeapSnapshot Heap::snapshot() const {
  State& state = *state_;
  // Asked before the heap's lock is taken: a stream that retires takes them the other way round.
  std::map<std::uint32_t, std::string> names;
  for (const StreamId stream : state.timeline.streams(state.device))
    names[stream.index] = state.timeline.name(stream);
  const MutexLock lock(state.mutex);
  for (Magazine& magazine : state.magazines) magazine.lock.lock();
  HeapSnapshot result;
  result.device = state.device.name();
  result.hard_limit = state.options.hard_limit;
  result.soft_limit = state.soft_limit(0);
  HeapStatistics& statistics = result.statistics;
  statistics = state.counts;
  statistics.mapped_bytes = state.mapped();
  for (const Magazine& magazine : state.magazines) {
    statistics.cached_bytes += magazine.bytes;
    statistics.cached_blocks += magazine.blocks;
    statistics.magazine_hits += magazine.hits;
    statistics.allocations += magazine.hits;
  }
  const auto name_of = [&](std::uint32_t stream) {
    const auto found = names.find(stream);
    return found == names.end() ? fmt::format("stream {}", stream) : found->second;
  };
  for (const auto& arena : state.arenas) {
    for (const Block* block = arena->first(); block != nullptr; block = block->after) {
      if (block->state == BlockState::kUnmapped) continue;
      HeapSnapshot::Entry entry;
      entry.offset = static_cast<std::uint64_t>(block->address - state.reserved[block->arena]);
      entry.bytes = block->bytes;
      entry.arena = block->arena;
      entry.state = block->state;
      if (block->state == BlockState::kLive) {
        entry.requested = block->requested;
        entry.label = block->label;
        statistics.live_bytes += block->bytes;
        statistics.requested_bytes += block->requested;
        ++statistics.live_blocks;
      }
      if (block->state == BlockState::kLive || block->state == BlockState::kCached)
        entry.stream = name_of(block->home);
      if (block->state == BlockState::kFree) {
        statistics.free_bytes += block->bytes;
        for (const StreamTick use : block->uses.entries())
          if (!state.timeline.over(use)) entry.uses.emplace_back(name_of(use.stream()), use.tick());
      }
      result.entries.push_back(std::move(entry));
    }
  }
  for (Magazine& magazine : state.magazines) magazine.lock.unlock();
  return result;
}

void Heap::verify() const {
  State& state = *state_;
  const MutexLock lock(state.mutex);
  for (const auto& arena : state.arenas) arena->verify();
  for (Magazine& magazine : state.magazines) {
    const std::lock_guard magazine_lock(magazine.lock);
    std::size_t bytes = 0;
    std::size_t blocks = 0;
    const auto stream = static_cast<std::uint32_t>(&magazine - state.magazines.data());
    for (std::size_t i = 0; i < kClasses; ++i) {
      for (const Block* block = magazine.head[i]; block != nullptr; block = block->next_cached) {
        bytes += block->bytes;
        ++blocks;
        if (block->state != BlockState::kCached || !block->uses.only(stream) ||
            block->home != stream || block->references.load() != 0)
          throw InternalError(
              fmt::format("heap: a block of {} bytes in the magazine of stream {} is not its own",
                          block->bytes, stream));
      }
    }
    if (bytes != magazine.bytes || blocks != magazine.blocks)
      throw InternalError(fmt::format("heap: magazine {} holds {} bytes, its count says {}", stream,
                                      bytes, magazine.bytes));
  }
}

// The report names three kinds of memory that is free and still does not help: in pieces between
// what is held (hard), in the remains of granules and of rounding (soft), and waiting for streams.
std::string Heap::State::out_of_memory(const Request& request, std::size_t bytes,
                                       const Frontier* awaited) {
  std::size_t pending = 0;
  std::size_t live = 0;
  std::size_t asked = 0;
  std::map<std::string_view, std::pair<std::size_t, std::size_t>> holders;
  for (const auto& arena : arenas) {
    for (const Block* block = arena->first(); block != nullptr; block = block->after) {
      if (block->state == BlockState::kFree && !timeline.over(block->uses)) pending += block->bytes;
      if (block->state != BlockState::kLive) continue;
      live += block->bytes;
      asked += block->requested;
      auto& [held, count] = holders[block->label];
      held += block->bytes;
      ++count;
    }
  }
  const std::size_t largest = std::max(arenas[0]->largest_run(), arenas[1]->largest_run());
  const std::size_t free = arenas[0]->free_bytes() + arenas[1]->free_bytes();
  std::string text = fmt::format(
      "out of device memory: {} for {} on {} (stream {}), but {} of at most {} are held ({} in "
      "use, "
      "{} free, in pieces of at most {})",
      in_words(request.bytes), request.label.empty() ? "a buffer" : request.label, device.name(),
      timeline.name(request.stream), in_words(mapped()), in_words(options.hard_limit),
      in_words(live), in_words(free), in_words(largest));
  std::vector<std::pair<std::string_view, std::pair<std::size_t, std::size_t>>> order(
      holders.begin(), holders.end());
  std::ranges::stable_sort(order, [](const auto& a, const auto& b) { return a.second > b.second; });
  for (std::size_t i = 0; i < order.size() && i < 5; ++i) {
    const auto& [label, held] = order[i];
    text +=
        fmt::format("\n  {:>10}  {} ({} buffer{})", in_words(held.first),
                    label.empty() ? "(no label)" : label, held.second, held.second == 1 ? "" : "s");
  }
  text += fmt::format(
      "\n  lost: {} to rounding, {} between what is held, {} free but used by work "
      "that the host has not seen to end",
      in_words(live - asked), in_words(free - std::min(free, largest)), in_words(pending));
  if (awaited != nullptr) {
    text += "\n  waiting would help: for";
    for (const StreamTick use : awaited->entries())
      text += fmt::format(" work {} of stream {}", use.tick(), use.stream());
  }
  const DeviceMemory memory = device.memory();
  if (memory.free < bytes && mapped() < options.hard_limit)
    text += fmt::format("\n  the device has {} of {} left; others hold the rest",
                        in_words(memory.free), in_words(memory.total));
  ++counts.out_of_memory;
  if (remembers()) {
    Block asked_for;
    asked_for.bytes = bytes;
    asked_for.address = reserved[0];
    remember(HeapEvent::Kind::kOutOfMemory, asked_for, request.stream.index);
  }
  return text;
}

}  // namespace segfuse::runtime
