// Random edits of Fusions and random bytes in texts: every invariant holds after every step.

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>

#include "base/os/file.h"
#include "base/rng.h"
#include "ir/rules/verify.h"
#include "ir/text.h"
#include "samples.h"
#include "support/slow_build.h"
#include "support/source_dir.h"
#include "support/structure.h"

namespace segfuse::ir {
namespace {

constexpr std::uint64_t kSteps = SEGFUSE_SLOW_BUILD ? 4000 : 100000;
constexpr std::uint64_t kMutations = SEGFUSE_SLOW_BUILD ? 1500 : 20000;

/// The environment variable as a number: longer runs and other keys by hand.
std::uint64_t number_from(const char* variable, std::uint64_t otherwise) {
  const char* text = std::getenv(variable);
  return text ? std::strtoull(text, nullptr, 10) : otherwise;
}

/// One Fusion under random edits, legal or not.
class Editor {
 public:
  explicit Editor(std::uint64_t key) : rng_(key) { restart(); }

  void step() {
    if (fusion_.exprs().size() > 16 || fusion_.storage().symbols.size() > 16) restart();
    const bool compare = draw(16) == 0;
    const std::string before = compare ? print(fusion_) : "";
    try {
      edit();
    } catch (const UsageError&) {
      ++refused;
      if (compare && !building_) {  // a Builder may have added a part before it was refused
        ASSERT_EQ(print(fusion_), before) << "a refused edit changed the Fusion";
      }
    }
    verify(fusion_);
    if (!compare) return;
    const std::string text = print(fusion_);
    const Fusion again = parse(text);
    verify(again);
    ASSERT_EQ(print(again), text);
    ASSERT_EQ(structural_hash(again), structural_hash(fusion_)) << text;
    ASSERT_TRUE(structurally_equal(again, fusion_)) << text;
  }

  std::uint64_t refused = 0;

 private:
  std::size_t draw(std::size_t bound) { return static_cast<std::size_t>(rng_.below(bound)); }
  void restart() {
    fusion_ = Fusion("fuzz");
    for (const char* name : {"A", "B", "C"}) (void)fusion_.symbol(name);
    for (int i = 0; i < 3; ++i)
      fusion_.add_input("x" + std::to_string(i), DType::kF32,
                        {SymbolId{static_cast<std::uint32_t>(draw(3))},
                         Extent(static_cast<std::int64_t>(draw(4)))});
  }
  ValId any() {
    const std::vector<ValId> all = fusion_.vals();
    return all.empty() ? ValId{3} : all[draw(all.size())];
  }
  Extent extent() {
    const auto& symbols = fusion_.storage().symbols;
    Extent result = static_cast<std::int64_t>(draw(4));
    if (!symbols.empty() && draw(3) > 0)
      result = Extent(SymbolId{static_cast<std::uint32_t>(draw(symbols.size()))});
    if (draw(6) == 0) result = result * extent() - static_cast<std::int64_t>(draw(3));
    if (draw(8) == 0) result = fusion_.floordiv(result, 1 + static_cast<std::int64_t>(draw(4)));
    return result;
  }
  Extents shape_of(ValId id) { return fusion_.canonical(fusion_.val(id).shape); }
  std::int64_t axis(ValId id) {
    return static_cast<std::int64_t>(draw(fusion_.val(id).shape.size() + 1));
  }

  void edit();
  void build();
  void move_around();

  Rng rng_;
  Fusion fusion_;
  bool building_ = false;
};

void Editor::build() {
  Builder b(fusion_);
  const ValId a = any();
  const ValId c = any();
  switch (draw(16)) {
    case 0: b.exp(a); break;
    case 1: b.add(a, c); break;
    case 2: b.mul(a, a); break;
    case 3: b.welford(a, {axis(a)}, draw(2) == 0); break;
    case 4: b.sum(a, {axis(a)}); break;
    case 5: b.constant(static_cast<double>(draw(4)), draw(4) ? DType::kF32 : DType::kI32); break;
    case 6: b.concat({a, c, a}, axis(a)); break;
    case 7: b.unfold(a, axis(a), 2, 1 + static_cast<std::int64_t>(draw(3)), 1); break;
    case 8: {
      Extent count = 1;
      for (const Extent& e : shape_of(a)) count = count * e;
      b.reshape(a, {draw(2) ? count : extent()});
      break;
    }
    case 9: b.broadcast_to(a, {extent(), extent(), extent()}); break;
    case 10: b.pad_axis(a, axis(a), extent(), extent()); break;
    case 11: b.matmul(a, c, draw(2) == 0, draw(2) == 0); break;
    case 12: b.slice_axis(a, axis(a), 0, extent()); break;
    case 13: b.unsqueeze(a, axis(a)); break;
    case 14: b.where(b.ge(a, c), a, c); break;
    default: b.extent(extent()); break;
  }
}

void Editor::move_around() {
  switch (draw(5)) {
    case 0: fusion_.compact(); break;
    case 1: {
      Fusion copy = fusion_;
      copy.add_output(any());
      fusion_ = copy;
      break;
    }
    case 2: {
      Fusion other = std::move(fusion_);
      verify(fusion_);
      fusion_ = std::move(other);
      break;
    }
    case 3: {
      Fusion other("other");
      other.constant(1, DType::kF32);
      swap(other, fusion_);
      verify(fusion_);
      other.swap(fusion_);
      break;
    }
    default: fusion_ = parse(print(fusion_)); break;
  }
}

void Editor::edit() {
  const std::size_t kind = draw(20);
  building_ = kind < 8;
  if (building_) return build();
  switch (kind) {
    case 8: (void)fusion_.add_expr(draw(2) ? Op::add : Op::gather, {any(), any()}, {}); return;
    case 9: return fusion_.add_output(any(), "y");
    case 10: return fusion_.remove_output(draw(4));
    case 11: {
      const std::vector<ExprId> all = fusion_.exprs();
      if (!all.empty()) fusion_.erase(all[draw(all.size())]);
      return;
    }
    case 12: (void)fusion_.erase_with_users(any()); return;
    case 13:
    case 14: return fusion_.replace_uses(any(), any());
    case 15: return fusion_.add_alias(any(), any());
    case 16: (void)fusion_.unify(extent(), extent()); return;
    case 17: fusion_.add_input("x" + std::to_string(draw(9)), DType::kF32, {extent()}); return;
    case 18: return fusion_.remove_input(any());
    default: return move_around();
  }
}

TEST(EditFuzz, EveryStepLeavesAWholeFusion) {
  Editor editor(number_from("SEGFUSE_FUZZ_KEY", 2024));
  const std::uint64_t steps = number_from("SEGFUSE_FUZZ_STEPS", kSteps);
  for (std::uint64_t i = 0; i < steps; ++i) {
    ASSERT_NO_THROW(editor.step()) << "step " << i;
    if (HasFatalFailure()) FAIL() << "step " << i;
  }
  EXPECT_GT(editor.refused, steps / 20);
  EXPECT_LT(editor.refused, steps / 2);
}

// --- texts

std::vector<std::string> seeds() {
  std::vector<std::string> texts{print(sample())};
  std::vector<std::filesystem::path> paths;
  for (const auto& entry :
       std::filesystem::directory_iterator(SEGFUSE_SOURCE_DIR "/tests/golden/ir"))
    paths.push_back(entry.path());
  std::sort(paths.begin(), paths.end());
  for (const auto& path : paths) texts.push_back(read_file(path));
  return texts;
}

std::string mutated(std::string text, const std::vector<std::string>& all, Rng& rng) {
  const auto place = [&] { return static_cast<std::size_t>(rng.below(text.size() + 1)); };
  constexpr std::string_view kPieces[] = {"floordiv(", "9223372036854775807",
                                          "-",         "%0",
                                          "[",         "]",
                                          "inf",       "nan",
                                          "1e308",     "\"",
                                          "\\",        "#",
                                          "symbols",   "*T",
                                          "{",         "}",
                                          ",",         "f16",
                                          "i64",       "-1",
                                          "0"};
  for (std::uint64_t edits = 1 + rng.below(4); edits > 0; --edits) {
    const std::size_t at = place();
    const std::size_t length = std::min<std::size_t>(text.size() - at, rng.below(12));
    switch (rng.below(6)) {
      case 0: text.erase(at, length); break;
      case 1: text.insert(at, text.substr(place(), 1 + rng.below(40))); break;
      case 2: text.insert(at, 1, static_cast<char>(rng.below(256))); break;
      case 3: text.replace(at, length, kPieces[rng.below(std::size(kPieces))]); break;
      case 4:
        if (at < text.size()) text[at] = static_cast<char>(text[at] ^ (1 << rng.below(8)));
        break;
      default: {
        const std::string& other = all[rng.below(all.size())];
        const std::size_t from = rng.below(other.size() + 1);
        text.replace(at, length, other.substr(from, rng.below(60)));
      }
    }
  }
  return text;
}

TEST(TextFuzz, AnyBytesAreAFusionOrADataError) {
  const std::vector<std::string> all = seeds();
  Rng rng(number_from("SEGFUSE_FUZZ_KEY", 11));
  const std::uint64_t steps = number_from("SEGFUSE_FUZZ_STEPS", kMutations);
  std::uint64_t accepted = 0;
  for (std::uint64_t i = 0; i < steps; ++i) {
    const std::string text = mutated(all[rng.below(all.size())], all, rng);
    try {
      const Fusion f = parse(text);
      ++accepted;
      verify(f);
      const std::string printed = print(f);
      ASSERT_EQ(print(parse(printed)), printed) << text;
    } catch (const DataError& error) {
      ASSERT_EQ(std::string(error.what()).rfind("<text>:", 0), 0U) << error.what();
    } catch (const std::exception& error) {
      FAIL() << error.what() << "\n" << text;
    }
  }
  EXPECT_GT(accepted, steps / 100);
}

}  // namespace
}  // namespace segfuse::ir
