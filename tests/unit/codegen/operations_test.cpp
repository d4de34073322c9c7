// Every elementwise operation: its formula in the table, and the same bits on all instruction sets.

#include <gtest/gtest.h>

#include <bit>
#include <cstring>
#include <set>

#include "base/rng.h"
#include "compiler/codegen/cpu/formula.h"
#include "compiler/op_facts.h"
#include "segfuse/error.h"
#include "support/c/compiled_c.h"
#include "support/c/prelude_functions.h"

namespace segfuse::test {
namespace {

__extension__ using Int128 = __int128;

template <class T>
constexpr bool admits(ir::DTypeRule rule) {
  const bool real = std::is_floating_point_v<T>;
  const bool boolean = std::is_same_v<T, bool>;
  switch (rule) {
    case ir::DTypeRule::kFloat:
    case ir::DTypeRule::kTest: return real;
    case ir::DTypeRule::kLogical: return boolean;
    case ir::DTypeRule::kNumeric: return !boolean;
    case ir::DTypeRule::kInteger: return !boolean && !real;
    default: return true;
  }
}

/// The table's formula over T: floats as they are, integers wide enough not to overflow.
template <class T>
T formula(const std::string& op, T a, T b) {
  static_cast<void>(b);
#define SEGFUSE_UNARY(name, rule, domain, accuracy, extremes, instructions, formula, gradient) \
  if constexpr (admits<T>(ir::DTypeRule::rule)) {                                              \
    if (op == #name) return static_cast<T>(formula);                                           \
  }
#define SEGFUSE_BINARY(name, rule, domain, accuracy, extremes, instructions, formula, gradient_a, \
                       gradient_b)                                                                \
  SEGFUSE_UNARY(name, rule, domain, accuracy, extremes, instructions, formula, gradient_a)
#include "segfuse/ops.def"
  throw std::runtime_error(op + " has no formula");
}

/// Whether there is one right answer.
bool is_exact(const PreludeFunction& f) {
  const bool real = f.type[0] == 'f';
  return !real || compiler::rounds_once(ir::op_from_name(f.op).value());
}

template <class T>
bool same(T a, T b) {
  if constexpr (std::is_floating_point_v<T>)
    if (std::isnan(a) || std::isnan(b)) return std::isnan(a) && std::isnan(b);
  return std::memcmp(&a, &b, sizeof a) == 0;
}

template <class T>
struct Operands {
  std::vector<T> a, b;
};

template <class T>
std::vector<T> interesting() {
  using Limits = std::numeric_limits<T>;
  if constexpr (std::is_same_v<T, bool>) {
    return {false, true};
  } else if constexpr (std::is_integral_v<T>) {
    return {0, 1, -1, 2, 3, 7, Limits::max(), Limits::min(), Limits::min() + 1, Limits::max() / 2};
  } else {
    std::vector<T> all = {0,   0.25F, 0.5F,   0.7F,   1,          1.5F,    2.5F,       3,    87,
                          100, 104,   708.5F, 745.2F, 8388607.5F, 8388608, 16777217.F, 1e30F};
    for (const T v : {Limits::infinity(), Limits::quiet_NaN(), Limits::denorm_min(), Limits::min(),
                      Limits::max(), 1 / Limits::epsilon(), 1 / Limits::epsilon() - T(0.5)})
      all.push_back(v);
    for (std::size_t i = 0, positive = all.size(); i < positive; ++i) all.push_back(-all[i]);
    return all;
  }
}

/// All pairs of interesting values, and random ones of all magnitudes and near 1.
template <class T>
Operands<T> operands(int random) {
  Operands<T> all;
  for (const T a : interesting<T>())
    for (const T b : interesting<T>()) {
      all.a.push_back(a);
      all.b.push_back(b);
    }
  Rng rng(9);
  const auto draw = [&](int i) {
    const std::uint64_t bits = std::uint64_t{rng.bits()} << 32 | rng.bits();
    T value{};
    if constexpr (std::is_floating_point_v<T>) {
      if (i % 2 == 0) return static_cast<T>(16 * (rng.uniform() - 0.5));
    }
    if constexpr (!std::is_same_v<T, bool>) std::memcpy(&value, &bits, sizeof value);
    return value;
  };
  for (int i = 0; i < random; ++i) {
    all.a.push_back(draw(i));
    all.b.push_back(draw(i));
  }
  while (all.a.size() % 16 != 0) {
    all.a.push_back(T{});
    all.b.push_back(T{});
  }
  return all;
}

template <class T>
using Stored = std::conditional_t<std::is_same_v<T, bool>, std::uint8_t, T>;

/// The bytes of f over the operands.
template <class T>
std::vector<std::uint8_t> results(const CompiledC& library, const PreludeFunction& f,
                                  const Operands<T>& all) {
  const std::vector<Stored<T>> a(all.a.begin(), all.a.end());
  const std::vector<Stored<T>> b(all.b.begin(), all.b.end());
  std::vector<std::uint8_t> y(a.size() * (f.result == "bool" ? 1 : sizeof(T)));
  library.get<PreludeLoop>("run_" + f.name())(a.data(), b.data(), y.data(),
                                              static_cast<std::int64_t>(a.size()));
  return y;
}

template <class T>
T element(const std::vector<std::uint8_t>& bytes, std::size_t i) {
  T value;
  std::memcpy(&value, bytes.data() + i * sizeof(T), sizeof(T));
  return value;
}

template <class T>
T expected(const std::string& op, T a, T b) {
  if constexpr (std::is_integral_v<T> && !std::is_same_v<T, bool>) {
    return static_cast<T>(formula<Int128>(op, a, b));
  } else {
    return formula<T>(op, a, b);
  }
}

template <class T>
void check_formulas(const CompiledC& library, const PreludeFunction& f, const Operands<T>& all) {
  const auto found = results(library, f, all);
  for (std::size_t i = 0; i < all.a.size(); ++i) {
    const T want = expected<T>(f.op, all.a[i], all.b[i]);
    if (f.result == "bool") {
      ASSERT_EQ(found[i], static_cast<std::uint8_t>(want))
          << f.name() << " " << all.a[i] << " " << all.b[i];
    } else if constexpr (!std::is_same_v<T, bool>) {
      ASSERT_TRUE(same(element<T>(found, i), want))
          << f.name() << "(" << all.a[i] << ", " << all.b[i] << ") is " << element<T>(found, i)
          << ", not " << want;
    }
  }
}

template <class T>
void check_same_bits(const CompiledC& first, const CompiledC& other, const std::string& flags,
                     const PreludeFunction& f, const Operands<T>& all) {
  const auto a = results(first, f, all);
  const auto b = results(other, f, all);
  for (std::size_t i = 0; i < all.a.size(); ++i) {
    const bool equal = f.result == "bool"
                           ? a[i] == b[i]
                           : same(element<Stored<T>>(a, i), element<Stored<T>>(b, i));
    ASSERT_TRUE(equal) << f.name() << "(" << all.a[i] << ", " << all.b[i] << ") with " << flags;
  }
}

/// Calls visit(function, operands) with the operands of the function's type.
template <class Visit>
void for_each_function(int random, const Visit& visit) {
  const auto f32 = operands<float>(random);
  const auto f64 = operands<double>(random);
  const auto i32 = operands<std::int32_t>(random);
  const auto i64 = operands<std::int64_t>(random);
  const auto boolean = operands<bool>(0);
  for (const PreludeFunction& f : prelude_functions()) {
    if (f.type == "f32") visit(f, f32);
    if (f.type == "f64") visit(f, f64);
    if (f.type == "i32") visit(f, i32);
    if (f.type == "i64") visit(f, i64);
    if (f.type == "bool") visit(f, boolean);
  }
}

std::string all_loops() {
  std::string text;
  for (const PreludeFunction& f : prelude_functions()) text += prelude_loop(f);
  return with_prelude(text);
}

TEST(Operations, MeanWhatTheTableSays) {
  const CompiledC library(all_loops(), "-O1");
  int checked = 0;
  for_each_function(3000, [&](const PreludeFunction& f, const auto& all) {
    if (!is_exact(f)) return;
    check_formulas(library, f, all);
    ++checked;
  });
  EXPECT_GT(checked, 80);
}

/// The vector forms that a row without one in the prelude would get.
TEST(Operations, MadeFromTheirFormulasMeanTheSame) {
  std::string text;
  std::vector<PreludeFunction> made;
  const auto add = [&](const char* op, const char* formula) {
    for (const PreludeFunction& f : prelude_functions()) {
      if (f.op != op || f.type[0] != 'f' || f.result == "bool" || !is_exact(f)) continue;
      const std::string own = "sf_" + f.name() + "(";
      std::string value = compiler::cpu::vector_formula(formula, f.type);
      if (value.find(own) != std::string::npos && f.op != "neg") continue;  // sqrt is std::sqrt
      std::string loop = prelude_loop(f);
      const std::size_t call = loop.find(own);
      loop.replace(call, own.size(), "made_" + f.name() + "(");
      text += "static inline sf_" + f.type + " made_" + f.name() + "(sf_" + f.type + " a" +
              (f.operands == 2 ? ", sf_" + f.type + " b" : "") + ") { return " + value + "; }\n" +
              loop;
      made.push_back(f);
    }
  };
#define SEGFUSE_UNARY(name, rule, domain, accuracy, extremes, instructions, formula, gradient) \
  add(#name, #formula);
#define SEGFUSE_BINARY(name, rule, domain, accuracy, extremes, instructions, formula, gradient_a, \
                       gradient_b)                                                                \
  add(#name, #formula);
#include "segfuse/ops.def"
  const CompiledC library(with_prelude(text), "-O1");
  EXPECT_GE(made.size(), 14U);
  const auto f32 = operands<float>(1000);
  const auto f64 = operands<double>(1000);
  for (const PreludeFunction& f : made) {
    if (f.type == "f32") check_formulas(library, f, f32);
    if (f.type == "f64") check_formulas(library, f, f64);
  }
}

TEST(Operations, FormulasBecomeCallsOfThePrelude) {
  using compiler::cpu::vector_formula;
  EXPECT_EQ(vector_formula("a / (T(1) + std::abs(a))", "f32"),
            "sf_div_f32(a, sf_add_f32(sf_all_f32(1), sf_abs_f32(a)))");
  EXPECT_EQ(vector_formula("a - b - a * b", "i64"),
            "sf_sub_i64(sf_sub_i64(a, b), sf_mul_i64(a, b))");
  EXPECT_EQ(vector_formula("a > T(0) || a != a ? a : -T(0.5)", "f64"),
            "sf_select_f64(sf_logical_or_bool(sf_gt_f64(a, sf_all_f64(0)), sf_ne_f64(a, a)), a, "
            "sf_neg_f64(sf_all_f64(0.5)))");
  EXPECT_EQ(vector_formula("std::max(a, b) + std::nearbyint(a)", "f32"),
            "sf_add_f32(sf_maximum_f32(a, b), sf_round_f32(a))");
  for (const char* formula : {"a +", "c", "a ? b", "(a", "T(x)", "std::exp a", "a b", ""})
    EXPECT_THROW(vector_formula(formula, "f32"), InternalError) << formula;
}

TEST(Operations, HaveTheSameBitsOnEveryInstructionSetAndWithoutVectors) {
  const std::string text = all_loops();
  const CompiledC first(text, "-O1");
  std::vector<std::string> others = {"-O1 -DSF_SCALAR", "-O3 -march=native"};
  for (const std::string& flags : machine_flags())
    if (!flags.empty()) others.push_back("-O2 -ffp-contract=fast " + flags);
  for (const std::string& flags : others) {
    const CompiledC other(text, flags);
    for_each_function(20000, [&](const PreludeFunction& f, const auto& all) {
      check_same_bits(first, other, flags, f, all);
    });
  }
}

}  // namespace
}  // namespace segfuse::test
