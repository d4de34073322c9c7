// What the verifier says of kernels that were written by hand: right ones, and those that leave
// elements of an output alone or write them again.

#include <gtest/gtest.h>

#include <functional>

#include "compiler/loop/kernel.h"
#include "ir/fusion.h"
#include "segfuse/error.h"

namespace segfuse::compiler::loop {
namespace {

using ir::Extent;

/// Refusals print the kernel.
void name_symbols(Kernel& kernel, const ir::Fusion& fusion) {
  kernel.symbols.clear();
  for (std::uint32_t i = 0; i < fusion.storage().symbols.size(); ++i)
    kernel.symbols.push_back(fusion.to_string(Extent(ir::SymbolId{i})));
}

/// A kernel with one output and one store.
class Written {
 public:
  Written() { kernel.name = "k"; }

  VarId outer(const Extent& count) {
    kernel.outer_count = count;
    return kernel.outer = kernel.indices.add_var("p", count);
  }
  Index at(VarId var) { return kernel.indices.of(var); }

  struct Around {
    VarId var;
    Index begin, end;
  };
  /// Whether it follows that each of `elements` is written once.
  bool follows(const Index& index, const Extent& elements, const std::vector<Around>& loops,
               const std::vector<Within>& when = {}) {
    return all_follow({index}, elements, loops, when);
  }
  /// The same of several stores beside each other.
  bool all_follow(const std::vector<Index>& stores, const Extent& elements,
                  const std::vector<Around>& loops, const std::vector<Within>& when = {}) {
    kernel.buffers = {{KernelBuffer::Kind::kOutput, "b0", DType::kF32, elements}};
    kernel.values = {DType::kF32};
    std::vector<Statement> body{{Constant{ValueId{0}, 1}}};
    for (const Index& index : stores) body.push_back({Store{BufferId{0}, index, ValueId{0}, when}});
    for (std::size_t i = loops.size(); i-- > 0;) {
      For loop{For::Kind::kSerial, loops[i].var, loops[i].begin, loops[i].end, std::move(body)};
      body.clear();
      body.push_back({std::move(loop)});
    }
    kernel.body = std::move(body);
    name_symbols(kernel, fusion);
    verify(kernel);
    const SizeFacts facts{[&](const Extent& a, const Extent& b) { return fusion.equal(a, b); },
                          [&](const Extent& size, std::int64_t by) {
                            return fusion.canonical(fusion.floordiv(size + Extent(by - 1), by));
                          }};
    try {
      verify_writes(kernel, facts);
    } catch (const InternalError&) {
      return false;
    }
    return true;
  }

  Extent tiles(const Extent& size, std::int64_t by) {
    return fusion.canonical(fusion.floordiv(size + Extent(by - 1), by));
  }

  ir::Fusion fusion;
  Kernel kernel;
  Extent n = fusion.symbol("N");
  Extent s = fusion.symbol("S");
};

TEST(VerifyWrites, RowsAndColumns) {
  Written w;
  Indices& i = w.kernel.indices;
  const Index row = w.at(w.outer(w.n));
  const VarId j = i.add_var("j", w.s);
  const std::vector<Written::Around> loops{{j, 0, Index(w.s)}};
  const Index there = i.add(i.multiply(row, w.s), w.at(j));
  EXPECT_TRUE(w.follows(there, w.n * w.s, loops));
  EXPECT_TRUE(w.follows(i.add(i.multiply(w.at(j), w.n), row), w.n * w.s, loops)) << "turned";
  EXPECT_FALSE(w.follows(there, w.n * w.s * Extent(2), loops)) << "half of them";
  EXPECT_FALSE(w.follows(there, w.n * w.s + Extent(1), loops)) << "all but one";
  EXPECT_FALSE(w.follows(i.add(there, Index(1)), w.n * w.s, loops)) << "one beside";
  EXPECT_FALSE(w.follows(row, w.n, loops)) << "again and again";
  EXPECT_TRUE(w.follows(row, w.n, loops, {{w.at(j), 1}})) << "by the first";
  EXPECT_FALSE(w.follows(there, w.n * w.s, loops, {{w.at(j), 1}})) << "only the first of a row";
  EXPECT_FALSE(w.follows(i.add(row, w.at(j)), w.n, loops)) << "on each other";
}

TEST(VerifyWrites, PartsBesideEachOther) {
  Written w;
  Indices& i = w.kernel.indices;
  const Index row = w.at(w.outer(w.n));
  const VarId j = i.add_var("j", w.s);
  const std::vector<Written::Around> loops{{j, 0, Index(w.s)}};
  // Three parts of a row, one behind the other.
  const Extent three = w.s * Extent(3);
  const Index there = i.add(i.multiply(row, three), w.at(j));
  auto from = [&](const Index& at, const Extent& begin) { return i.add(at, Index(begin)); };
  const Index second = from(there, w.s);
  const Index third = from(there, w.s * Extent(2));
  EXPECT_TRUE(w.all_follow({there, second, third}, w.n * three, loops));
  EXPECT_TRUE(w.all_follow({third, there, second}, w.n * three, loops)) << "in any order";
  EXPECT_FALSE(w.all_follow({there, second}, w.n * three, loops)) << "the last is missing";
  EXPECT_FALSE(w.all_follow({there, second, second}, w.n * three, loops)) << "one is there twice";
  EXPECT_FALSE(w.all_follow({there, second, from(third, 1)}, w.n * three, loops)) << "one beside";
  EXPECT_FALSE(w.all_follow({there, third}, w.n * three, loops)) << "a gap";
  EXPECT_FALSE(w.all_follow({there, from(there, 1), from(there, 2)}, w.n * three, loops))
      << "on each other";
  // And interleaved.
  const Index apart = i.add(i.multiply(row, three), i.multiply(w.at(j), 3));
  EXPECT_TRUE(w.all_follow({apart, from(apart, 1), from(apart, 2)}, w.n * three, loops));
  EXPECT_FALSE(w.all_follow({apart, from(apart, w.s), third}, w.n * three, loops)) << "mixed";
}

TEST(VerifyWrites, AResultWithoutElementsHasNothingToProve) {
  Written w;
  Indices& i = w.kernel.indices;
  const Index row = w.at(w.outer(w.n));
  const VarId j = i.add_var("j", w.s);
  EXPECT_TRUE(w.follows(i.add(row, w.at(j)), w.n * Extent(0), {{j, 0, Index(w.s)}}));
}

TEST(VerifyWrites, ADiagonalIsNotAll) {
  Written w;
  Indices& i = w.kernel.indices;
  const Index row = w.at(w.outer(8));
  const VarId j = i.add_var("j", w.s);
  const Index diagonal = i.add(i.multiply(row, w.s * w.s), i.multiply(w.at(j), w.s + Extent(1)));
  EXPECT_FALSE(w.follows(diagonal, Extent(8) * w.s * w.s, {{j, 0, Index(w.s)}}));
}

TEST(VerifyWrites, PartsOfTheOuterVariable) {
  Written w;
  Indices& i = w.kernel.indices;
  const Extent wide = w.s + Extent(2);
  const Index p = w.at(w.outer((w.n + Extent(1)) * wide * Extent(5)));
  const Index last = i.modulo(p, 5);
  const Index middle = i.modulo(i.divide(p, 5), wide);
  const Index first = i.divide(i.divide(p, 5), wide);
  const Extent all = w.kernel.outer_count;
  const auto at = [&](const Index& a, const Extent& size_b, const Index& b, const Extent& size_c,
                      const Index& c) {
    return i.add(i.multiply(i.add(i.multiply(a, size_b), b), size_c), c);
  };
  EXPECT_TRUE(w.follows(at(first, wide, middle, 5, last), all, {}));
  EXPECT_TRUE(w.follows(at(last, w.n + Extent(1), first, wide, middle), all, {}));
  EXPECT_FALSE(w.follows(at(last, w.n, first, wide, middle), all, {}));
  EXPECT_FALSE(w.follows(at(last, wide, middle, w.n + Extent(1), middle), all, {}));
}

TEST(VerifyWrites, Tiles) {
  for (const std::int64_t counted : {4, 3}) {
    Written w;
    Indices& i = w.kernel.indices;
    const Extent tiles = w.tiles(w.n, counted);
    const Index p = w.at(w.outer(w.s * tiles));
    const Index tile = i.multiply(i.modulo(p, tiles), 4);
    const Index row = i.divide(p, tiles);
    const VarId j = i.add_var("j", w.n);
    const Index there = i.add(i.multiply(row, w.n), w.at(j));
    const Index end = i.minimum(i.add(tile, Index(4)), Index(w.n));
    EXPECT_EQ(w.follows(there, w.s * w.n, {{j, tile, end}}), counted == 4);
    EXPECT_FALSE(w.follows(i.add(there, i.modulo(p, tiles)), w.s * w.n, {{j, tile, end}}));
    EXPECT_FALSE(w.follows(there, w.s * w.n, {{j, tile, i.add(tile, Index(4))}}));
    // The same by a condition.
    const VarId e = i.add_var("e", 4);
    const Index place = i.add(tile, w.at(e));
    const Index by_condition = i.add(i.multiply(row, w.n), place);
    EXPECT_EQ(w.follows(by_condition, w.s * w.n, {{e, 0, 4}}, {{place, w.n}}), counted == 4);
    EXPECT_FALSE(w.follows(by_condition, w.s * w.n, {{e, 0, 4}}));
  }
}

TEST(VerifyWrites, TransposedPartsOfRows) {
  for (const std::int64_t width : {4, 5}) {
    Written w;
    Indices& i = w.kernel.indices;
    const Extent tiles = w.tiles(w.n, 4);
    const Index p = w.at(w.outer(tiles));
    const Index begin = i.multiply(p, 4);
    const Index count = i.subtract(i.minimum(i.add(begin, Index(4)), Index(w.n)), begin);
    w.kernel.buffers = {{KernelBuffer::Kind::kOutput, "b0", DType::kF32, w.n * Extent(5)},
                        {KernelBuffer::Kind::kRow, "o0", DType::kF32, 20}};
    w.kernel.body = {
        {Transpose{BufferId{0}, i.multiply(p, 20), 5, BufferId{1}, 0, 4, count, width}}};
    const SizeFacts facts{[&](const Extent& a, const Extent& b) { return w.fusion.equal(a, b); },
                          [&](const Extent& size, std::int64_t by) { return w.tiles(size, by); }};
    name_symbols(w.kernel, w.fusion);
    verify(w.kernel);
    if (width == 5) {
      EXPECT_NO_THROW(verify_writes(w.kernel, facts));
    } else {
      EXPECT_THROW(verify_writes(w.kernel, facts), InternalError);
    }
  }
}

TEST(VerifyWrites, AnOutputThatNothingWrites) {
  Written w;
  w.outer(w.n);
  w.kernel.buffers = {{KernelBuffer::Kind::kOutput, "b0", DType::kF32, w.n}};
  name_symbols(w.kernel, w.fusion);
  EXPECT_THROW(verify_writes(w.kernel, {}), InternalError);
}

}  // namespace
}  // namespace segfuse::compiler::loop
