// The prelude's pieces, loads, stores, conversions and random numbers.

#include "compiler/codegen/cpu/prelude.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <bit>
#include <cstring>
#include <numeric>

#include "base/half.h"
#include "base/rng.h"
#include "ir/random.h"
#include "support/c/compiled_c.h"
#include "support/c/prelude_functions.h"

namespace segfuse::test {
namespace {

using compiler::cpu::prelude_for;
using compiler::cpu::prelude_pieces;

constexpr std::int64_t kLanes = 16;

std::string joined(const std::vector<std::string>& names) {
  std::string text;
  for (const std::string& name : names) text += name + " ";
  return text;
}

TEST(Prelude, EveryPieceCompilesWithWhatItUses) {
  ASSERT_GT(prelude_pieces().size(), 40U);
  for (const auto& piece : prelude_pieces()) {
    const std::string text = prelude_for(joined(piece.names)) + "typedef int sf_end;\n";
    EXPECT_EQ(compiler_complaints(text, "-Wall -Wextra -Werror"), "") << joined(piece.names);
    EXPECT_EQ(compiler_complaints(text, "-Wall -Wextra -Werror -DSF_SCALAR"), "");
  }
}

TEST(Prelude, EveryPieceDefinesWhatItSays) {
  for (const auto& piece : prelude_pieces()) {
    const std::string text = prelude_for(joined(piece.names));
    std::string uses;
    for (const std::string& name : piece.names)
      if (name.starts_with("sf_") && name != "sf_base")
        uses += "const void *use_" + name + "(void) { return (const void *)" + name + "; }\n";
    EXPECT_EQ(compiler_complaints(text + uses, ""), "") << joined(piece.names);
  }
}

TEST(Prelude, TextsHoldOnlyWhatTheyUse) {
  const std::string text = prelude_for("sf_store_f32(p, sf_exp_f32(sf_load_f32(p)))");
  EXPECT_NE(text.find("sf_clamp_f32"), std::string::npos);
  EXPECT_EQ(text.find("sf_log_f32"), std::string::npos);
  EXPECT_EQ(text.find("_f16"), std::string::npos);
  EXPECT_LT(text.size(), 14000U);
}

/// Memory whose end is the end of what may be touched.
class Fenced {
 public:
  explicit Fenced(std::size_t pages = 1)
      : page_(static_cast<std::size_t>(sysconf(_SC_PAGESIZE))), inside_(pages * page_) {
    base_ = static_cast<std::uint8_t*>(
        mmap(nullptr, inside_ + 2 * page_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    if (base_ == MAP_FAILED || mprotect(base_ + page_, inside_, PROT_READ | PROT_WRITE) != 0)
      throw std::runtime_error("no memory with fences");
  }
  ~Fenced() { munmap(base_, inside_ + 2 * page_); }
  Fenced(const Fenced&) = delete;
  Fenced& operator=(const Fenced&) = delete;
  std::uint8_t* first() const { return base_ + page_; }
  std::uint8_t* end() const { return base_ + page_ + inside_; }

 private:
  std::size_t page_;
  std::size_t inside_;
  std::uint8_t* base_ = nullptr;
};

/// Both matrices end where memory ends; what lies between the rows of the result, and before them,
/// stays as it was.
template <class Element>
void expect_transposed(const CompiledC& library, const std::string& name) {
  using Transpose =
      void(void*, std::int64_t, const void*, std::int64_t, std::int64_t, std::int64_t);
  Transpose* const transpose = library.get<Transpose>("turn_" + name);
  const Fenced from(4), to(4);
  constexpr std::int64_t kSizes[] = {0, 1, 2, 3, 4, 5, 7, 8, 15, 16, 17, 31, 33, 40};
  constexpr auto kFill = static_cast<Element>(0xA5A5A5A5A5A5A5A5U);
  for (const std::int64_t height : kSizes)
    for (const std::int64_t width : kSizes)
      for (const std::int64_t gap : {0, 3}) {
        const std::int64_t to_step = width + gap, from_step = height + gap;
        const std::int64_t read = width == 0 ? 0 : (width - 1) * from_step + height;
        const std::int64_t written = height == 0 ? 0 : (height - 1) * to_step + width;
        Element* const a = reinterpret_cast<Element*>(from.end()) - read;
        Element* const y = reinterpret_cast<Element*>(to.end()) - written;
        std::iota(a, a + read, Element{1});
        std::fill(reinterpret_cast<Element*>(to.first()), y + written, kFill);
        transpose(y, to_step, a, from_step, height, width);
        bool good = y[-1] == kFill;
        for (std::int64_t i = 0; i < height; ++i)
          for (std::int64_t j = 0; j < (i + 1 < height ? to_step : width); ++j)
            good = good && y[i * to_step + j] == (j < width ? a[j * from_step + i] : kFill);
        ASSERT_TRUE(good) << name << " " << height << " x " << width << " gap " << gap;
      }
}

TEST(Prelude, TranspositionsTouchWhatTheySay) {
  std::string text;
  for (const char* name : {"b8", "b16", "b32", "b64"})
    text += fmt::format(
        "void turn_{}(void *to, int64_t to_step, const void *from, int64_t from_step,\n"
        "  int64_t height, int64_t width) {{\n"
        "  sf_transpose_{}(to, to_step, from, from_step, height, width);\n}}\n",
        name, name);
  for (const char* flags : {"-O2", "-O2 -march=native", "-O1 -DSF_SCALAR"}) {
    const CompiledC library(with_prelude(text), flags);
    expect_transposed<std::uint8_t>(library, "b8");
    expect_transposed<std::uint16_t>(library, "b16");
    expect_transposed<std::uint32_t>(library, "b32");
    expect_transposed<std::uint64_t>(library, "b64");
  }
}

/// C text: copies n elements by each way there is.
std::string copies_of(const std::string& type) {
  const std::string e = element_of(type);
  const std::string head = "(const " + e + " *a, " + e + " *y, int64_t n) {\n";
  return "void full_" + type + head + "  (void)n;\n  sf_store_" + type + "(y, sf_load_" + type +
         "(a));\n}\nvoid tail_" + type + head + "  sf_store_" + type + "_n(y, sf_load_" + type +
         "_n(a, n), n);\n}\nvoid strided_" + type + head + "  sf_store_" + type +
         "_strided(y, sf_load_" + type + "_strided(a, 3, n), 2, n);\n}\nvoid indexed_" + type +
         head + "  const sf_i64 at = sf_lanes_i64(2) * 5;\n  sf_store_" + type + "_at(y, sf_load_" +
         type + "_at(a, at, n), at, n);\n}\n";
}

class Memory : public ::testing::TestWithParam<std::string> {};

TEST_P(Memory, LoadsAndStoresTouchWhatTheySay) {
  const std::string type = GetParam();
  const CompiledC library(with_prelude(copies_of(type)));
  using Copy = void(const void*, void*, std::int64_t);
  const std::size_t size = type == "bool"         ? 1
                           : type.ends_with("16") ? 2
                           : type.ends_with("64") ? 8
                                                  : 4;
  const Fenced from, to;
  const auto at = [size](std::uint8_t* p, std::int64_t i) {
    return p + i * static_cast<std::int64_t>(size);
  };
  const auto expect_copy = [&](std::uint8_t* a, std::uint8_t* y, std::int64_t step_a,
                               std::int64_t step_y, std::int64_t n, const char* what) {
    for (std::int64_t i = 0; i < n; ++i)
      EXPECT_EQ(std::memcmp(at(a, i * step_a), at(y, i * step_y), size), 0)
          << what << " of " << type << ", " << n << " elements, element " << i;
  };
  for (std::uint8_t* p = from.first(); p < from.end(); ++p) *p = (p - from.first()) % 7 == 3;
  for (std::int64_t n = 0; n <= kLanes; ++n) {
    std::memset(to.first(), 0xFF, static_cast<std::size_t>(to.end() - to.first()));
    std::uint8_t* const a = at(from.end(), -n);
    std::uint8_t* const y = at(to.end(), -n);
    library.get<Copy>("tail_" + type)(a, y, n);
    expect_copy(a, y, 1, 1, n, "tail");
    EXPECT_EQ(y[-1], 0xFF);
    std::uint8_t* const a3 = at(from.end(), n == 0 ? 0 : -3 * (n - 1) - 1);
    std::uint8_t* const y2 = at(to.end(), n == 0 ? 0 : -2 * (n - 1) - 1);
    library.get<Copy>("strided_" + type)(a3, y2, n);
    expect_copy(a3, y2, 3, 2, n, "strided");
    library.get<Copy>("indexed_" + type)(at(from.end(), -5 * n - 6), at(to.end(), -5 * n - 6), n);
    expect_copy(at(from.end(), -5 * n + 4), at(to.end(), -5 * n + 4), 5, 5, n, "indexed");
  }
  library.get<Copy>("full_" + type)(at(from.end(), -kLanes), at(to.end(), -kLanes), kLanes);
  expect_copy(at(from.end(), -kLanes), at(to.end(), -kLanes), 1, 1, kLanes, "full");
}

INSTANTIATE_TEST_SUITE_P(Types, Memory,
                         ::testing::Values("f32", "f64", "i32", "i64", "f16", "bf16", "bool"),
                         [](const auto& one) { return one.param; });

/// C text of y[i] = f(a[i]), memory types `from` and `to`.
std::string conversion(const std::string& name, const std::string& from, const std::string& to,
                       const std::string& function) {
  return "void " + name + "(const " + element_of(from) + " *a, " + element_of(to) +
         " *y, int64_t n) {\n  for (int64_t i = 0; i < n; i += SF_LANES)\n    sf_store_" + to +
         "(y + i, " + function + "(sf_load_" + from + "(a + i)));\n}\n";
}

template <class From, class To>
std::vector<To> converted(const CompiledC& library, const std::string& name,
                          std::vector<From> values) {
  const std::size_t count = values.size();
  values.resize((count + 15) / 16 * 16);
  std::vector<To> y(values.size());
  library.get<void(const From*, To*, std::int64_t)>(name)(values.data(), y.data(),
                                                          static_cast<std::int64_t>(y.size()));
  y.resize(count);
  return y;
}

TEST(Prelude, SixteenBitFloatsAreThoseOfTheBase) {
  const CompiledC library(with_prelude(
      conversion("from_f16", "f16", "f32", "") + conversion("from_bf16", "bf16", "f32", "") +
      conversion("to_f16", "f32", "f16", "") + conversion("to_bf16", "f32", "bf16", "") +
      conversion("round_f16", "f32", "f32", "sf_round_f16") +
      conversion("round_bf16", "f32", "f32", "sf_round_bf16")));
  std::vector<std::uint16_t> all(65536);
  std::iota(all.begin(), all.end(), std::uint16_t{0});
  const auto wide = converted<std::uint16_t, float>(library, "from_f16", all);
  const auto brain = converted<std::uint16_t, float>(library, "from_bf16", all);
  std::vector<float> x;
  for (std::size_t i = 0; i < all.size(); ++i) {
    const float half = half_to_float(all[i]);
    EXPECT_TRUE(std::isnan(half)
                    ? std::isnan(wide[i])
                    : std::bit_cast<std::uint32_t>(half) == std::bit_cast<std::uint32_t>(wide[i]));
    EXPECT_EQ(std::bit_cast<std::uint32_t>(brain[i]), std::uint32_t{all[i]} << 16);
    const float middle = std::bit_cast<float>(std::bit_cast<std::uint32_t>(wide[i]) + 0x1000U);
    for (const float near :
         {wide[i], middle, std::nextafter(middle, 9e9F), std::nextafter(middle, -9e9F)})
      x.push_back(near);
  }
  for (std::uint64_t bits = 0; bits < 1ULL << 32; bits += 8191)
    x.push_back(std::bit_cast<float>(static_cast<std::uint32_t>(bits)));
  const auto narrow = converted<float, std::uint16_t>(library, "to_f16", x);
  const auto narrow_brain = converted<float, std::uint16_t>(library, "to_bf16", x);
  const auto rounded = converted<float, float>(library, "round_f16", x);
  const auto rounded_brain = converted<float, float>(library, "round_bf16", x);
  for (std::size_t i = 0; i < x.size(); ++i) {
    ASSERT_EQ(narrow[i], float_to_half(x[i])) << x[i];
    ASSERT_EQ(narrow_brain[i], float_to_bfloat16(x[i])) << x[i];
    if (std::isnan(x[i])) continue;
    ASSERT_EQ(rounded[i], half_to_float(narrow[i]));
    ASSERT_EQ(rounded_brain[i], bfloat16_to_float(narrow_brain[i]));
  }
}

template <class Float>
std::vector<Float> cast_operands() {
  using Limits = std::numeric_limits<Float>;
  std::vector<Float> x = {0,
                          -0.0F,
                          0.5F,
                          -0.5F,
                          1,
                          -1.5F,
                          2147483520.F,
                          2147483648.F,
                          -2147483648.F,
                          -2147483904.F,
                          9.223372e18F,
                          -9.223372e18F,
                          9.3e18F,
                          -9.3e18F};
  for (const Float v :
       {Limits::infinity(), Limits::quiet_NaN(), Limits::max(), Limits::denorm_min()}) {
    x.push_back(v);
    x.push_back(-v);
  }
  Rng rng(7);
  for (int i = 0; i < 3000; ++i)
    x.push_back(static_cast<Float>((rng.uniform() - 0.5) * std::exp2(i % 70)));
  return x;
}

template <class From>
void check_casts_from_floats(const std::string& from) {
  std::string text;
  for (const std::string to : {"i32", "i64", "bool", "f32", "f64"})
    if (to != from) text += conversion("to_" + to, from, to, "sf_" + to + "_from_" + from);
  const CompiledC library(with_prelude(text));
  const std::vector<From> x = cast_operands<From>();
  const auto i32 = converted<From, std::int32_t>(library, "to_i32", x);
  const auto i64 = converted<From, std::int64_t>(library, "to_i64", x);
  const auto boolean = converted<From, std::uint8_t>(library, "to_bool", x);
  for (std::size_t i = 0; i < x.size(); ++i) {
    EXPECT_EQ(i32[i], saturate_cast<std::int32_t>(static_cast<double>(x[i]))) << x[i];
    EXPECT_EQ(i64[i], saturate_cast<std::int64_t>(static_cast<double>(x[i]))) << x[i];
    EXPECT_EQ(boolean[i], x[i] != 0) << x[i];
  }
  using Other = std::conditional_t<std::is_same_v<From, float>, double, float>;
  const auto other = converted<From, Other>(library, from == "f32" ? "to_f64" : "to_f32", x);
  for (std::size_t i = 0; i < x.size(); ++i)
    EXPECT_TRUE(std::isnan(x[i]) || other[i] == static_cast<Other>(x[i])) << x[i];
}

template <class From>
void check_casts_from_integers(const std::string& from) {
  std::string text;
  for (const std::string to : {"i32", "i64", "bool", "f32", "f64"})
    if (to != from) text += conversion("to_" + to, from, to, "sf_" + to + "_from_" + from);
  const CompiledC library(with_prelude(text));
  std::vector<From> x = {0, 1};
  Rng rng(8);
  if (from != "bool")
    for (int i = 0; i < 2000; ++i)
      x.push_back(static_cast<From>((std::uint64_t{rng.bits()} << 32 | rng.bits()) >> (i % 60)));
  const auto f32 = converted<From, float>(library, "to_f32", x);
  const auto f64 = converted<From, double>(library, "to_f64", x);
  for (std::size_t i = 0; i < x.size(); ++i) {
    EXPECT_EQ(f32[i], static_cast<float>(x[i]));
    EXPECT_EQ(f64[i], static_cast<double>(x[i]));
  }
  if (from != "i32") {
    const auto i32 = converted<From, std::int32_t>(library, "to_i32", x);
    for (std::size_t i = 0; i < x.size(); ++i) EXPECT_EQ(i32[i], static_cast<std::int32_t>(x[i]));
  }
  if (from != "i64") {
    const auto i64 = converted<From, std::int64_t>(library, "to_i64", x);
    for (std::size_t i = 0; i < x.size(); ++i) EXPECT_EQ(i64[i], x[i]);
  }
  if (from != "bool") {
    const auto boolean = converted<From, std::uint8_t>(library, "to_bool", x);
    for (std::size_t i = 0; i < x.size(); ++i) EXPECT_EQ(boolean[i], x[i] != 0);
  }
}

TEST(Prelude, CastsAreThoseOfTheInterpreter) {
  check_casts_from_floats<float>("f32");
  check_casts_from_floats<double>("f64");
  check_casts_from_integers<std::int32_t>("i32");
  check_casts_from_integers<std::int64_t>("i64");
  check_casts_from_integers<std::uint8_t>("bool");
}

TEST(Prelude, RandomNumbersAreThoseOfTheInterpreter) {
  const CompiledC library(with_prelude(
      "void draw(int64_t key, int64_t sequence, int64_t stream, int64_t first, float *y) {\n"
      "  for (int64_t i = 0; i < 64; i += SF_LANES)\n    sf_store_f32(y + i, "
      "sf_random_uniform(key, sequence, stream, sf_lanes_i64(first + i)));\n}\n"));
  using Draw = void(std::int64_t, std::int64_t, std::int64_t, std::int64_t, float*);
  for (const std::int64_t first :
       {std::int64_t{0}, std::int64_t{5}, (std::int64_t{1} << 34) - 30}) {
    float y[64];
    library.get<Draw>("draw")(-12345678901234, 77, 3, first, y);
    for (std::int64_t i = 0; i < 64; ++i)
      EXPECT_EQ(y[i],
                ir::random_element(-12345678901234, 77, 3, static_cast<std::uint64_t>(first + i)));
  }
}

}  // namespace
}  // namespace segfuse::test
