#include "engine/exec/pointwise.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "engine/exec/growing_memory.h"
#include "engine/exec/move.h"

namespace segfuse::engine {
namespace {

constexpr std::size_t kScratchBytes = 128 << 10;
constexpr std::size_t kWantedScratch = 24 << 10;
constexpr std::int64_t kLargestBlock = 1024;
constexpr std::int64_t kSmallestBlock = 64;
constexpr std::int64_t kLongRow = 128;  // from here on blocks follow rows

template <class T>
void gather_elements(const Nest& nest, std::size_t k, const std::byte* base, std::int64_t begin,
                     std::int64_t n, T* to) {
  const T* from = reinterpret_cast<const T*>(base);
  const std::size_t last = nest.sizes.size() - 1;
  const std::int64_t row = nest.sizes[last];
  const std::int64_t stride = nest.strides[k][last];
  Odometer at(nest, last, begin / row, k);
  std::int64_t column = begin % row;
  for (std::int64_t done = 0; done < n; at.next(), column = 0) {
    const std::int64_t count = std::min(n - done, row - column);
    const T* source = from + at.offset(0) + column * stride;
    if (stride == 0) {
      std::fill_n(to + done, count, *source);
    } else if (stride == 1) {
      std::copy_n(source, count, to + done);
    } else {
      for (std::int64_t i = 0; i < count; ++i) to[done + i] = source[i * stride];
    }
    done += count;
  }
}

void gather(const Nest& nest, std::size_t k, const std::byte* base, std::size_t size,
            std::int64_t begin, std::int64_t n, std::byte* to) {
  if (size == 1) gather_elements(nest, k, base, begin, n, reinterpret_cast<std::uint8_t*>(to));
  if (size == 4) gather_elements(nest, k, base, begin, n, reinterpret_cast<std::uint32_t*>(to));
  if (size == 8) gather_elements(nest, k, base, begin, n, reinterpret_cast<std::uint64_t*>(to));
}

}  // namespace

/// Where everything is while one task runs.
struct PointwiseProgram::Cursor {
  struct Place {
    std::byte* data = nullptr;  ///< of the current block
    std::int64_t stride = 0;
    std::byte* base = nullptr;  ///< of the whole view
  };
  std::vector<Place> loads;
  std::vector<std::byte*> stores;
  std::byte* scratch = nullptr;
  const std::int64_t* seeds = nullptr;
};

PointwiseProgram::Operand PointwiseProgram::load(Ref ref) {
  loads_.push_back({std::move(ref), Access::kContiguous, 0, 0});
  return {Operand::Kind::kLoad, static_cast<std::uint32_t>(loads_.size() - 1)};
}

PointwiseProgram::Operand PointwiseProgram::store(Ref ref) {
  stores_.push_back(std::move(ref));
  return {Operand::Kind::kStore, static_cast<std::uint32_t>(stores_.size() - 1)};
}

PointwiseProgram::Operand PointwiseProgram::temporary(DType dtype) {
  width_ = std::max(width_, size_of(dtype));
  temporaries_.push_back({});
  return {Operand::Kind::kTemporary, static_cast<std::uint32_t>(temporaries_.size() - 1)};
}

void PointwiseProgram::emit(Loop loop, Operand out, std::initializer_list<Operand> in) {
  Instruction instruction{loop, out, {}, 0, 0};
  std::copy(in.begin(), in.end(), instruction.in);
  instructions_.push_back(instruction);
}

void PointwiseProgram::emit_random(Operand out, Ref seed, std::int64_t stream) {
  instructions_.push_back({nullptr, out, {}, seeds_.size(), stream});
  seeds_.push_back(std::move(seed));
}

void PointwiseProgram::finish() {
  size_ = num_elements(shape_);
  std::vector<Shape> strides;
  for (Load& load : loads_) {
    const Layout& layout = load.ref.layout;
    const bool scalar = std::all_of(layout.strides.begin(), layout.strides.end(),
                                    [](std::int64_t stride) { return stride == 0; });
    load.access = scalar                  ? Access::kScalar
                  : is_contiguous(layout) ? Access::kContiguous
                                          : Access::kStrided;
    if (load.access != Access::kStrided) continue;
    load.stride = strides.size();
    strides.push_back(layout.strides);
    width_ = std::max(width_, size_of(load.ref.dtype));
  }
  nest_ = collapse(shape_, strides);
  row_ = nest_.sizes.empty() ? 1 : nest_.sizes.back();
  by_rows_ = !strides.empty() && row_ >= kLongRow;
  assign_slots();
  const std::size_t bytes = std::max<std::size_t>(1, slots_ * width_);
  const auto fitting = static_cast<std::int64_t>(kWantedScratch / bytes) / 64 * 64;
  block_ = std::clamp(fitting, kSmallestBlock, kLargestBlock);
  SEGFUSE_CHECK(static_cast<std::size_t>(block_) * bytes <= kScratchBytes, "{} slots", slots_);
  if (by_rows_ && block_ < row_) {  // blocks of equal size
    const std::int64_t blocks = (row_ + block_ - 1) / block_;
    block_ = std::min(block_, ((row_ + blocks - 1) / blocks + 15) / 16 * 16);
  }
}

/// A slot is free again after the last instruction that reads it. A value that is written twice
/// (computed, then rounded in place) keeps its first slot: a later one may be an operand's.
void PointwiseProgram::assign_slots() {
  std::vector<std::size_t> last_use(temporaries_.size(), 0);
  std::vector<bool> placed(temporaries_.size(), false);
  for (std::size_t i = 0; i < instructions_.size(); ++i)
    for (const Operand& in : instructions_[i].in)
      if (in.kind == Operand::Kind::kTemporary) last_use[in.index] = i;
  std::vector<std::size_t> free;
  for (std::size_t i = 0; i < instructions_.size(); ++i) {
    const Operand& out = instructions_[i].out;
    if (out.kind == Operand::Kind::kTemporary && !placed[out.index]) {
      placed[out.index] = true;
      if (free.empty()) free.push_back(slots_++);
      temporaries_[out.index].slot = free.back();
      free.pop_back();
    }
    for (std::size_t t = 0; t < temporaries_.size(); ++t)
      if (last_use[t] == i && std::any_of(std::begin(instructions_[i].in),
                                          std::end(instructions_[i].in), [&](const Operand& in) {
                                            return in.kind == Operand::Kind::kTemporary &&
                                                   in.index == t;
                                          }))
        free.push_back(temporaries_[t].slot);
  }
  for (Load& load : loads_)
    if (load.access == Access::kStrided) load.slot = slots_++;
}

void PointwiseProgram::run(Run& context) const {
  if (size_ == 0) return;
  std::vector<std::int64_t> seeds;
  for (const Ref& seed : seeds_) {
    const Array array = context.array(seed);
    seeds.push_back(array.as<std::int64_t>()[0]);
    seeds.push_back(array.as<std::int64_t>()[seed.layout.strides[0]]);
  }
  const auto cost = static_cast<std::int64_t>(1 + instructions_.size() / 4);
  std::int64_t grain = std::max<std::int64_t>(kTaskElements / cost, 2 * kLargestBlock);
  if (by_rows_) grain = (grain + row_ - 1) / row_ * row_;
  context.pool.for_ranges(size_, grain, [&](std::int64_t begin, std::int64_t end) {
    run_range(context, seeds, begin, end);
  });
}

void PointwiseProgram::run_range(Run& context, const std::vector<std::int64_t>& seeds,
                                 std::int64_t begin, std::int64_t end) const {
  auto& scratch = of_thread<GrowingMemory, struct BlockScratch>();  // a stack may be small
  Cursor cursor;
  cursor.scratch = scratch.at_least(kScratchBytes);
  cursor.seeds = seeds.data();
  cursor.loads.resize(loads_.size());
  cursor.stores.resize(stores_.size());
  for (std::size_t i = 0; i < loads_.size(); ++i)
    cursor.loads[i].base = context.array(loads_[i].ref).data;
  std::vector<std::byte*> results;
  for (const Ref& ref : stores_) results.push_back(context.array(ref).data);
  for (std::int64_t first = begin; first < end;) {
    std::int64_t n = std::min(block_, end - first);
    if (by_rows_) n = std::min(n, row_ - first % row_);
    for (std::size_t i = 0; i < loads_.size(); ++i) locate(cursor, i, first, n);
    for (std::size_t i = 0; i < stores_.size(); ++i)
      cursor.stores[i] = results[i] + first * static_cast<std::int64_t>(size_of(stores_[i].dtype));
    run_block(cursor, first, n);
    first += n;
  }
}

void PointwiseProgram::locate(Cursor& cursor, std::size_t load, std::int64_t begin,
                              std::int64_t n) const {
  const Load& source = loads_[load];
  Cursor::Place& place = cursor.loads[load];
  const std::size_t size = size_of(source.ref.dtype);
  const auto step = static_cast<std::int64_t>(size);
  if (source.access == Access::kScalar) {
    place.data = place.base;
    place.stride = 0;
    return;
  }
  place.stride = 1;
  if (source.access == Access::kContiguous) {
    place.data = place.base + begin * step;
    return;
  }
  const std::size_t last = nest_.sizes.size() - 1;
  const std::int64_t stride = nest_.strides[source.stride][last];
  if (by_rows_ && (stride == 0 || stride == 1)) {
    std::int64_t offset = begin % row_ * stride;
    std::int64_t rest = begin / row_;
    for (std::size_t axis = last; axis-- > 0; rest /= nest_.sizes[axis])
      offset += rest % nest_.sizes[axis] * nest_.strides[source.stride][axis];
    place.data = place.base + offset * step;
    place.stride = stride;
    return;
  }
  place.data = cursor.scratch + source.slot * static_cast<std::size_t>(block_) * width_;
  gather(nest_, source.stride, place.base, size, begin, n, place.data);
}

void PointwiseProgram::run_block(Cursor& cursor, std::int64_t begin, std::int64_t n) const {
  auto scratch = [&](std::uint32_t temporary) {
    return cursor.scratch +
           temporaries_[temporary].slot * static_cast<std::size_t>(block_) * width_;
  };
  for (const Instruction& instruction : instructions_) {
    std::byte* out = instruction.out.kind == Operand::Kind::kStore
                         ? cursor.stores[instruction.out.index]
                         : scratch(instruction.out.index);
    if (instruction.loop == nullptr) {
      random_uniform(cursor.seeds + 2 * instruction.seed, instruction.stream, begin, n,
                     reinterpret_cast<float*>(out));
      continue;
    }
    LoopOperands operands;
    for (std::size_t i = 0; i < 3; ++i) {
      const Operand& in = instruction.in[i];
      operands.stride[i] = 1;
      switch (in.kind) {
        case Operand::Kind::kNone: break;
        case Operand::Kind::kTemporary: operands.data[i] = scratch(in.index); break;
        case Operand::Kind::kStore: operands.data[i] = cursor.stores[in.index]; break;
        case Operand::Kind::kLoad:
          operands.data[i] = cursor.loads[in.index].data;
          operands.stride[i] = cursor.loads[in.index].stride;
          break;
      }
    }
    instruction.loop(out, operands, n);
  }
}

}  // namespace segfuse::engine
