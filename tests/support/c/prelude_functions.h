#pragma once
// Every elementwise function of the C prelude, as loops that tests can call.

#include <bit>
#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "compiler/codegen/cpu/prelude.h"
#include "ir/op.h"

namespace segfuse::test {

struct PreludeFunction {
  std::string op;
  std::string type;    ///< of operands: f32, f64, i32, i64, bool
  std::string result;  ///< the same, or bool
  int operands = 1;

  std::string name() const { return op + "_" + type; }
};

/// y[i] = f(a[i], b[i]); n is a multiple of 16.
using PreludeLoop = void(const void* a, const void* b, void* y, std::int64_t n);

inline std::string element_of(const std::string& type) {
  if (type == "f32") return "float";
  if (type == "f64") return "double";
  if (type == "bool") return "uint8_t";
  if (type == "f16" || type == "bf16") return "uint16_t";
  return type == "i32" ? "int32_t" : "int64_t";
}

/// The functions of ops.def, for every type that their rules admit.
inline std::vector<PreludeFunction> prelude_functions() {
  using enum ir::DTypeRule;
  std::vector<PreludeFunction> all;
  const auto add = [&](const char* op, ir::DTypeRule rule, int operands) {
    const bool test = rule == kCompare || rule == kTest;
    for (const char* type : {"f32", "f64", "i32", "i64", "bool"}) {
      const bool real = type[0] == 'f';
      const bool boolean = type[0] == 'b';
      if ((rule == kFloat || rule == kTest) && !real) continue;
      if (rule == kNumeric && boolean) continue;
      if (rule == kLogical && !boolean) continue;
      if (rule == kInteger && (real || boolean)) continue;
      all.push_back({op, type, test ? "bool" : type, operands});
    }
  };
#define SEGFUSE_UNARY(name, rule, domain, accuracy, extremes, instructions, formula, gradient) \
  add(#name, rule, 1);
#define SEGFUSE_BINARY(name, rule, domain, accuracy, extremes, instructions, formula, gradient_a, \
                       gradient_b)                                                                \
  add(#name, rule, 2);
#include "segfuse/ops.def"
  return all;
}

/// The C text of a loop called run_NAME.
inline std::string prelude_loop(const PreludeFunction& f) {
  const std::string from = element_of(f.type);
  std::string arguments = "sf_load_" + f.type + "((const " + from + " *)a + i)";
  if (f.operands == 2) arguments += ", sf_load_" + f.type + "((const " + from + " *)b + i)";
  return "void run_" + f.name() + "(const void *a, const void *b, void *y, int64_t n) {\n" +
         "  (void)b;\n  for (int64_t i = 0; i < n; i += SF_LANES)\n    sf_store_" + f.result +
         "((" + element_of(f.result) + " *)y + i, sf_" + f.name() + "(" + arguments + "));\n}\n";
}

inline std::string with_prelude(const std::string& text) {
  return compiler::cpu::prelude_for(text) + text;
}

/// Distance in units of the last place of `exact` as a T; infinite for a wrong zero, NaN or sign.
template <class T, class Wide>
double ulps(T found, Wide exact) {
  constexpr double kWrong = HUGE_VAL;
  if (std::isnan(exact) || std::isnan(found))
    return std::isnan(exact) && std::isnan(found) ? 0 : kWrong;
  const T rounded = static_cast<T>(exact);
  if (exact == 0) return found == 0 && std::signbit(found) == std::signbit(exact) ? 0 : kWrong;
  if (std::isinf(rounded)) return found == rounded ? 0 : kWrong;
  constexpr int kDigits = std::numeric_limits<T>::digits;
  constexpr int kMin = std::numeric_limits<T>::min_exponent - 1;
  Wide unit;
  if constexpr (std::is_same_v<Wide, double>) {  // by bits: there are 2^32 of them
    const int exponent = static_cast<int>(std::bit_cast<std::uint64_t>(exact) >> 52 & 0x7FF) - 1023;
    const auto biased = static_cast<std::uint64_t>(std::max(exponent, kMin) - kDigits + 1 + 1023);
    unit = std::bit_cast<double>(biased << 52);
  } else {
    unit = std::scalbn(Wide{1}, std::max(std::ilogb(exact), kMin) - (kDigits - 1));
  }
  return static_cast<double>(std::abs(static_cast<Wide>(found) - exact) / unit);
}

}  // namespace segfuse::test
