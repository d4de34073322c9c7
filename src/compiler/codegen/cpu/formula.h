#pragma once
// C for operations that the prelude has no vector form of, from their formulas in ops.def.

#include <string>
#include <string_view>

namespace segfuse::compiler::cpu {

/// A formula of ops.def over vectors: "a / (T(1) + std::abs(a))" in f32 is
/// "sf_div_f32(a, sf_add_f32(sf_all_f32(1), sf_abs_f32(a)))". `type`: f32, f64, i32 or i64.
/// InternalError for what is no such formula.
std::string vector_formula(std::string_view formula, std::string_view type);

}  // namespace segfuse::compiler::cpu
