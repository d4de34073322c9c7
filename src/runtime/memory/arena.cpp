#include "runtime/memory/arena.h"

#include <fmt/core.h>

#include <algorithm>

#include "base/sizes.h"
#include "segfuse/error.h"

namespace segfuse::runtime {

namespace {

constexpr std::size_t kQuiet = kMaxStreams;
constexpr std::size_t kMixed = kMaxStreams + 1;
constexpr std::size_t kIndices = kMaxStreams + 2;

bool by_size_and_address(const std::pair<std::size_t, Block*>& a,
                         const std::pair<std::size_t, Block*>& b) {
  if (a.first != b.first) return a.first < b.first;
  return (a.second == nullptr ? nullptr : a.second->address) <
         (b.second == nullptr ? nullptr : b.second->address);
}

// Memory that fewer streams may use is kept apart: joined, all of it would have to wait for all of
// them, and a stream would not find what only it has used.
bool joinable(const Frontier& a, const Frontier& b) {
  return a.size() == b.size() && (a.within(b) || b.within(a));
}

bool is_free(const Block* block) { return block != nullptr && block->state == BlockState::kFree; }

}  // namespace

Arena::Arena(Heap* heap, std::uint8_t number, std::byte* address, std::size_t bytes,
             std::size_t granule)
    : heap_(heap), number_(number), address_(address), bytes_(bytes), granule_(granule) {
  for (std::size_t i = 0; i < kIndices; ++i) indices_.emplace_back(by_size_and_address);
  first_ = new_block();
  first_->address = address;
  first_->bytes = bytes;
}

Arena::~Arena() = default;

Block* Arena::new_block() {
  Block* block = nullptr;
  if (!unused_.empty()) {
    block = unused_.back();
    unused_.pop_back();
  } else {
    block = &blocks_.emplace_back();
  }
  block->heap = heap_;
  block->arena = number_;
  block->state = BlockState::kUnmapped;
  block->before = block->after = nullptr;
  block->uses.clear();
  block->write = {};
  return block;
}

void Arena::drop_block(Block* block) { unused_.push_back(block); }

std::size_t Arena::index_of(const Frontier& uses) const {
  if (uses.empty()) return kQuiet;
  return uses.size() == 1 ? uses.entries()[0].stream() : kMixed;
}

void Arena::insert(Block* block) {
  block->state = BlockState::kFree;
  free_ += block->bytes;
  indices_[index_of(block->uses)].emplace(block->bytes, block);
}

void Arena::remove(Block* block) {
  indices_[index_of(block->uses)].erase({block->bytes, block});
  free_ -= block->bytes;
}

// Cuts off what lies behind the first `bytes`; both parts keep the state and the uses. Neither is
// in an index.
Block* Arena::split(Block* block, std::size_t bytes) {
  Block* const rest = new_block();
  rest->address = block->address + bytes;
  rest->bytes = block->bytes - bytes;
  rest->state = BlockState{block->state};
  rest->uses = block->uses;
  rest->before = block;
  rest->after = block->after;
  if (rest->after != nullptr) rest->after->before = rest;
  block->after = rest;
  block->bytes = bytes;
  return rest;
}

// The block grows by its next neighbour, which ends then. Neither is in an index.
Block* Arena::absorb_next(Block* block) {
  Block* const next = block->after;
  block->bytes += next->bytes;
  block->uses.join(next->uses);
  block->after = next->after;
  if (block->after != nullptr) block->after->before = block;
  drop_block(next);
  return block;
}

// Joins a block that is in no index with its free neighbours as far as uses are comparable, and
// puts it into its index.
Block* Arena::join_free(Block* block) {
  // Each join may make the other neighbour joinable.
  for (bool joined = true; joined;) {
    joined = false;
    if (is_free(block->after) && joinable(block->uses, block->after->uses)) {
      remove(block->after);
      absorb_next(block);
      joined = true;
    }
    if (is_free(block->before) && joinable(block->uses, block->before->uses)) {
      block = block->before;
      remove(block);
      absorb_next(block);
      joined = true;
    }
  }
  insert(block);
  return block;
}

const Block* Arena::best_fit(std::size_t bytes, const Covered& covered, std::uint32_t own) const {
  const std::pair<std::size_t, Block*>* best = nullptr;
  const auto look = [&](const Index& index) {
    if (index.empty()) return;
    for (auto at = index.lower_bound({bytes, nullptr}); at != index.end(); ++at) {
      if (best != nullptr && !by_size_and_address(*at, *best)) return;
      if (!covered(at->second->uses)) continue;
      best = &*at;
      return;
    }
  };
  look(indices_[own]);
  look(indices_[kQuiet]);
  if (best == nullptr)
    for (const Index& index : indices_) look(index);
  return best == nullptr ? nullptr : best->second;
}

std::optional<Arena::Run> Arena::find(std::size_t bytes, const Covered& covered,
                                      std::uint32_t own) const {
  if (const Block* block = best_fit(bytes, covered, own))
    return Run{const_cast<Block*>(block), block->bytes, 0};
  if (free_ < bytes) return std::nullopt;
  std::optional<Run> best;
  Run run;
  for (Block* block = first_; block != nullptr; block = block->after) {
    if (!is_free(block) || !covered(block->uses)) {
      run = {};
      continue;
    }
    if (run.first == nullptr) run.first = block;
    run.bytes += block->bytes;
    if (run.bytes < bytes) continue;
    // The shortest run that ends here.
    while (run.bytes - run.first->bytes >= bytes) {
      run.bytes -= run.first->bytes;
      run.first = run.first->after;
    }
    if (!best || run.bytes < best->bytes) best = run;
  }
  return best;
}

std::optional<Arena::Run> Arena::find_waiting(std::size_t bytes, const Uncovered& uncovered) const {
  if (free_ < bytes) return std::nullopt;
  std::optional<Run> best;
  for (Block* first = first_; first != nullptr; first = first->after) {
    if (!is_free(first)) continue;
    Run run{first, 0, 0};
    Frontier uses;
    for (const Block* block = first; is_free(block) && run.bytes < bytes; block = block->after) {
      run.bytes += block->bytes;
      uses.join(block->uses);
    }
    if (run.bytes < bytes) continue;
    run.waits = uncovered(uses);
    if (run.waits == kNever) continue;
    if (!best || std::pair(run.waits, run.bytes) < std::pair(best->waits, best->bytes)) best = run;
  }
  return best;
}

Block* Arena::take(const Run& run, std::size_t bytes) {
  Block* const block = run.first;
  remove(block);
  while (block->bytes < bytes) {
    Block* const next = block->after;
    remove(next);
    const std::size_t missing = bytes - block->bytes;
    if (next->bytes > missing) insert(split(next, missing));
    absorb_next(block);
  }
  if (block->bytes > bytes) insert(split(block, bytes));
  block->state = BlockState::kLive;
  return block;
}

void Arena::give(Block* block) {
  block->write = {};
  join_free(block);
}

std::optional<Arena::Growth> Arena::find_growth(std::size_t bytes, const Covered& covered) const {
  std::optional<Growth> best;
  for (Block* gap = first_; gap != nullptr; gap = gap->after) {
    if (gap->state != BlockState::kUnmapped) continue;
    Growth growth{gap, 0, 0};
    for (const Block* free = gap->before; is_free(free) && covered(free->uses); free = free->before)
      growth.usable += free->bytes;
    // A larger run would have been found.
    growth.usable = std::min(growth.usable, bytes);
    growth.bytes = round_up(bytes - growth.usable, granule_);
    if (growth.bytes == 0 || growth.bytes > gap->bytes) continue;
    if (!best || growth.bytes < best->bytes) best = growth;
  }
  return best;
}

Block* Arena::begin_map(const Growth& growth) {
  Block* const block = growth.gap;
  if (block->bytes > growth.bytes) split(block, growth.bytes);
  block->state = BlockState::kChanging;
  mapped_ += block->bytes;
  return block;
}

void Arena::finish_map(Block* block) { join_free(block); }

void Arena::finish_unmap(Block* block) {
  mapped_ -= block->bytes;
  block->state = BlockState::kUnmapped;
  block->uses.clear();
  const auto unmapped = [](const Block* b) {
    return b != nullptr && b->state == BlockState::kUnmapped;
  };
  if (unmapped(block->after)) absorb_next(block);
  if (unmapped(block->before)) absorb_next(block->before);
}

std::vector<Block*> Arena::begin_unmap(std::size_t bytes, const Covered& done) {
  std::vector<Block*> taken;
  Block* last = first_;
  while (last->after != nullptr) last = last->after;
  std::size_t left = bytes;
  for (Block* end = last; end != nullptr && left > 0;) {
    if (!is_free(end) || !done(end->uses)) {
      end = end->before;
      continue;
    }
    Block* begin = end;
    while (is_free(begin->before) && done(begin->before->uses)) begin = begin->before;
    Block* const before = begin->before;
    const auto offset = static_cast<std::size_t>(begin->address - address_);
    const auto stop = static_cast<std::size_t>(end->address - address_) + end->bytes;
    std::size_t from = round_up(offset, granule_);
    const std::size_t to = stop / granule_ * granule_;
    if (from < to) {
      if (left < to - from) from = to - round_up(left, granule_);
      // The run becomes one block, of which the whole granules in the middle go.
      for (Block* b = begin;; b = b->after) {
        remove(b);
        if (b == end) break;
      }
      Block* const joined = begin;
      while (joined->address + joined->bytes < address_ + stop) absorb_next(joined);
      joined->uses.clear();  // all is over
      Block* const above = stop > to ? split(joined, to - offset) : nullptr;
      Block* const middle = from > offset ? split(joined, from - offset) : joined;
      middle->state = BlockState::kChanging;
      if (above != nullptr) join_free(above);
      if (middle != joined) join_free(joined);
      taken.push_back(middle);
      left -= std::min(left, middle->bytes);
    }
    end = before;
  }
  return taken;
}

std::size_t Arena::largest_run() const {
  std::size_t largest = 0;
  std::size_t run = 0;
  for (const Block* block = first_; block != nullptr; block = block->after) {
    run = is_free(block) ? run + block->bytes : 0;
    largest = std::max(largest, run);
  }
  return largest;
}

bool Arena::contains(const void* address) const {
  const auto* const at = static_cast<const std::byte*>(address);
  return at >= address_ && at < address_ + bytes_;
}

void Arena::verify() const {
  const auto require = [](bool holds, const char* what, const Block* block) {
    if (!holds)
      throw InternalError(fmt::format("arena: {} (block at {}, {} bytes)", what,
                                      static_cast<const void*>(block->address), block->bytes));
  };
  std::size_t mapped = 0;
  std::size_t free = 0;
  std::size_t indexed = 0;
  const std::byte* at = address_;
  const Block* before = nullptr;
  for (const Block* block = first_; block != nullptr; before = block, block = block->after) {
    require(block->address == at && block->bytes > 0, "blocks do not tile the reservation", block);
    require(block->before == before, "a block does not know the one before it", block);
    const bool has_memory = block->state != BlockState::kUnmapped;
    if (before != nullptr && has_memory != (before->state != BlockState::kUnmapped))
      require((at - address_) % static_cast<std::ptrdiff_t>(granule_) == 0,
              "memory does not end at a granule", block);
    if (before != nullptr && !has_memory)
      require(before->state != BlockState::kUnmapped, "unmapped neighbours are not joined", block);
    if (is_free(block)) {
      free += block->bytes;
      require(indices_[index_of(block->uses)].contains({block->bytes, const_cast<Block*>(block)}),
              "a free block is not in the index of its uses", block);
      if (is_free(before))
        require(!joinable(block->uses, before->uses), "free neighbours are not joined", block);
    }
    if (has_memory) mapped += block->bytes;
    at += block->bytes;
  }
  for (const Index& index : indices_) indexed += index.size();
  std::size_t free_blocks = 0;
  for (const Block* block = first_; block != nullptr; block = block->after)
    free_blocks += is_free(block) ? 1 : 0;
  require(at == address_ + bytes_, "blocks end before the reservation", first_);
  require(indexed == free_blocks, "an index holds a block that is not free", first_);
  require(mapped == mapped_ && free == free_, "totals differ from a recount", first_);
}

}  // namespace segfuse::runtime
