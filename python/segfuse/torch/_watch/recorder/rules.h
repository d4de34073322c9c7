// Bounds of results out of bounds of operands: what an operation cannot exceed, whatever it reads.
//
// A rule returns a bound of the result's exact magnitudes, or UNKNOWN if the result has to be read.
// It must hold for every finite operand within its bound and on every device, and no number that a
// kernel may compute on the way may be beyond 8e37. Rounding of a few steps is added by the caller;
// sums add theirs with `added`. An operation that can make a NaN or an infinity of
// small operands (division, roots, logarithms, norms) returns UNKNOWN.
//
// An operation that is not here may write what it reads: its operands are forgotten. An operator of
// the table reads its operands only, and writes what its schema says.

#pragma once

#include <recorder/seen.h>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

namespace recorder {

using Rule = double (*)(Seen&);

struct Row {
  const char* operators;  // without aten::, each also in place
  Rule rule;
};

namespace rules {

inline double none(Seen&) { return 0; }
inline double one(Seen&) { return 1; }
inline double read(Seen&) { return UNKNOWN; }
inline double same(Seen& x) { return x.ret == 0 ? x.of(0) : UNKNOWN; }
inline double second(Seen& x) { return x.of(1); }
inline double larger(Seen& x) { return std::max(x.of(0), x.of(1)); }
inline double last_two(Seen& x) { return std::max(x.of(1), x.of(2)); }
inline double first_and_third(Seen& x) { return std::max(x.of(0), x.of(2)); }
inline double first_and_fourth(Seen& x) { return std::max(x.of(0), x.of(3)); }
inline double any_of_three(Seen& x) { return std::max(x.of(0), last_two(x)); }

// The memory of the host that a copy to a device reads can change before it does.
inline double copied(Seen& x, size_t source) {
  const IValue& from = x.arguments[source];
  const bool crosses =
      from.isTensor() && from.toTensor().defined() && from.toTensor().device() != x.result.device();
  return crosses || from.isTensorList() ? UNKNOWN : x.of(source);
}
inline double cast(Seen& x) { return copied(x, 0); }
inline double copy(Seen& x) { return copied(x, 1); }
inline double copy_of_list(Seen& x) { return x.of(1); }

// a b
inline double product(Seen& x) { return x.of(0) * x.of(1); }
// a + alpha b, b + alpha a
inline double sum_of_two(Seen& x) { return x.plus(x.of(0), x.of(2), x.of(1)); }
inline double sum_from_right(Seen& x) { return x.plus(x.of(1), x.of(2), x.of(0)); }
inline double sum_without_scale(Seen& x) { return x.of(0) + x.of(1); }
// a + value b c
inline double plus_product(Seen& x) {
  const double b = x.of(1), scale = x.of(3);
  return x.within(scale * b) < UNKNOWN ? x.plus(x.of(0), scale, b * x.of(2)) : UNKNOWN;
}
// a + w (b - a) lies between a and b for 0 <= w <= 1
inline double between(Seen& x) {
  const double w = x.number(2);
  if (!(w >= 0 && w <= 1)) return UNKNOWN;
  const double a = x.of(0), b = x.of(1);
  return x.plus(std::max(a, b), 0, a + b);
}
// a / c for a number c; a kernel may multiply with 1 / c, or round c to the result's type
inline double quotient(Seen& x) {
  const double c = std::abs(x.number(1));
  const double least = x.result.scalar_type() == at::kHalf ? 1e-4 : 1e-30;
  return c >= least && c <= x.limit ? x.of(0) / c : UNKNOWN;
}
// a^n
inline double power(Seen& x) {
  const double n = x.number(1);
  if (!(n >= 1 && n <= 8 && n == std::floor(n))) return UNKNOWN;
  return std::pow(x.of(0), n);
}
inline double exponential(Seen& x) { return 2 * std::exp(x.of(0)); }

// Sums of K products.
inline double products(const Seen& x, double terms, double a, double b) {
  return x.added(terms, a * b);
}
inline double dot(Seen& x) {
  const Tensor& a = x.tensor(0);
  return products(x, double(a.size(-1)), x.of(0), x.of(1));
}
// beta c + alpha a b; c is not read if beta is 0
inline double dot_plus(Seen& x) {
  const double sum = products(x, double(x.tensor(1).size(-1)), x.of(1), x.of(2));
  if (!(x.within(x.of(4) * std::max(x.of(1), x.of(2))) < UNKNOWN)) return UNKNOWN;
  return x.plus(x.within(x.of(3) * x.of(0)), x.of(4), sum);
}
// Algorithms that transform tiles (Winograd, Fourier) compute larger numbers on the way.
inline double convolution(Seen& x) {
  const Tensor& weight = x.tensor(1);
  const double outputs = double(weight.size(x.arguments[6].toBool() ? 1 : 0));
  const double sum = products(x, double(weight.numel()) / outputs, x.of(0), x.of(1));
  return x.within(65536 * (sum + x.of(2))) < UNKNOWN ? sum + x.of(2) : UNKNOWN;
}

inline double sum(Seen& x) { return x.added(x.terms(0), x.of(0)); }
// On the CPU the sum is rounded to the result's type before it is divided.
inline double mean(Seen& x) {
  const double n = x.terms(0);
  return n >= 1 ? x.added(n, x.of(0)) / n : UNKNOWN;
}
inline double running_sum(Seen& x) { return x.added(x.size(0, x.arguments[1].toInt()), x.of(0)); }
inline double rows_added(Seen& x) {  // of embedding: each index adds a row
  return x.added(double(x.tensor(1).numel()), x.of(0));
}
inline double scattered_sum(Seen& x) {
  return x.plus(x.of(0), 1, x.added(double(x.tensor(2).numel()), x.of(3)));
}
inline double indexed_sum(Seen& x) {
  return x.plus(x.of(0), x.of(4), x.added(double(x.tensor(2).numel()), x.of(3)));
}
inline double put(Seen& x) {
  return x.arguments[3].toBool() ? UNKNOWN : std::max(x.of(0), x.of(2));
}

// |x Phi(x)| <= |x|, and its derivative is at most 1.13. With tanh, kernels multiply the rounded
// 1 - tanh^2 (at most 1) with x (1 + 3 * 0.0447 x^2) * 0.4.
inline double gelu_gradient(Seen& x) {
  const double a = x.of(1);
  const bool exact = x.arguments[2].toStringRef() == "none";
  return x.of(0) * (exact ? 2 : 2 + x.within(a * (1 + a * a)));
}
// s (1 + x (1 - s)) with s in 0 .. 1
inline double silu_gradient(Seen& x) { return x.of(0) * (1 + x.of(1)); }
// (1 - y) y, and 1 - y^2
inline double sigmoid_gradient(Seen& x) { return x.of(0) * (1 + x.of(1)) * x.of(1); }
inline double tanh_gradient(Seen& x) { return x.of(0) * (1 + x.of(1) * x.of(1)); }

// x - max <= 0 exactly, so all exponentials are at most 1 and one is 1: their sum is 1 .. n.
inline double softmax(Seen& x) { return x.of(0) < UNKNOWN ? 1 : UNKNOWN; }
inline double log_softmax(Seen& x) {
  return 2 * x.of(0) + 1 + std::log(std::max(1.0, double(x.tensor(0).numel())));
}
// y (g - sum g y)
inline double softmax_gradient(Seen& x) {
  const double g = x.of(0), y = x.of(1);
  return y * (g + x.added(x.size(0, x.arguments[2].toInt()), g * y));
}
// g - exp(y) sum g; y is log_softmax's result, which is not positive
inline double log_softmax_gradient(Seen& x) {
  const double g = x.of(0);
  return g + 2 * x.added(x.size(0, x.arguments[2].toInt()), g);
}

// (x - mean) rstd w + b with rstd <= 1 / sqrt(eps). That normalised numbers are at most sqrt(n) is
// not used: it does not hold for the rounded mean of large numbers.
inline double layer_norm(Seen& x) {
  const double a = x.of(0), eps = x.arguments[4].toDouble();
  if (!(eps >= 1e-12)) return UNKNOWN;
  if (!(4 * a * a * double(x.tensor(0).numel()) <= 8e37)) return UNKNOWN;  // the sum of squares
  if (x.ret == 1) return 4 * a;
  if (x.ret == 2) return 2 / std::sqrt(eps);
  const double scale = x.within(2 / std::sqrt(eps) * x.of_or(2, 1));
  return x.within(4 * a / std::sqrt(eps)) < UNKNOWN ? 4 * a * scale + x.of(3) : UNKNOWN;
}
// rstd (g w - mean(g w) - h mean(g w h)) with h = (x - mean) rstd; kernels add up before they
// divide by n. Gradients of w and b are sums of g h and g over the rows.
inline double layer_norm_gradient(Seen& x) {
  const double g = x.of(0), rstd = std::max(1.0, x.of(4));  // in any order of the factors
  const double h = x.within((x.of(1) + x.of(3)) * rstd * 2);
  const double rows = double(x.tensor(3).numel());
  if (x.ret == 1) return x.added(rows, g * h);
  if (x.ret == 2) return x.added(rows, g);
  const double n = double(x.tensor(1).numel()) / rows;
  const double inner = x.within(g * std::max(1.0, x.of_or(5, 1)) * (2 + h * h));
  return x.added(n, inner) < UNKNOWN ? rstd * 4 * inner : UNKNOWN;
}

// Kept numbers are divided by 1 - p.
inline double dropout(Seen& x) {
  const double p = x.number(1);
  return x.ret == 0 && p >= 0 && p <= 0.999 ? x.of(0) / (1 - p) : UNKNOWN;
}
inline double dropout_gradient(Seen& x) { return x.of(0) * x.of(2); }

// The total weight is the number of targets that count: at least 1 where anything is written.
inline double nll_gradient(Seen& x) {
  const bool weighted = x.arguments[3].isTensor() && x.arguments[3].toTensor().defined();
  return weighted ? UNKNOWN : x.of(0);
}
// (a - b)^2, one by one, their mean or sum; and 2 g (a - b), perhaps divided by their number
inline double squared_error(Seen& x) {
  const double d = x.of(0) + x.of(1);
  if (x.arguments[2].toInt() == 0) return d * d;
  if (x.tensor(0).sizes() != x.tensor(1).sizes() || x.tensor(0).numel() == 0) return UNKNOWN;
  return x.added(double(x.tensor(0).numel()), d * d);
}
inline double squared_error_gradient(Seen& x) { return 2 * x.of(0) * (x.of(1) + x.of(2)); }

}  // namespace rules

// clang-format off
inline constexpr Row TABLE[] = {
  // numbers that are given
  {"zero zeros zeros_like new_zeros _foreach_zero", rules::none},
  {"ones ones_like new_ones rand rand.generator bernoulli bernoulli.p bernoulli.float "
   "bernoulli.Tensor", rules::one},
  {"full full_like fill.Scalar fill.Tensor", rules::second},
  {"new_full", [](Seen& x) { return x.of(2); }},
  {"scalar_tensor", rules::same},
  // the same numbers in other places, or some of them
  {"clone _unsafe_view neg abs relu flip roll tril triu repeat expand_copy index.Tensor "
   "index_select gather embedding cat stack slice_backward select_backward masked_select amax amin "
   "max min max.dim min.dim topk sort sort.stable threshold_backward max_pool2d_with_indices "
   "_foreach_neg", rules::same},
  {"_to_copy", rules::cast},
  {"copy", rules::copy},
  {"_foreach_copy", rules::copy_of_list},
  {"constant_pad_nd masked_fill.Scalar masked_fill.Tensor", rules::first_and_third},
  {"scatter.value scatter.src", rules::first_and_fourth},
  {"where.self", rules::last_two},
  {"maximum minimum clamp_min clamp_min.Tensor clamp_max clamp_max.Tensor "
   "_foreach_maximum.Scalar _foreach_maximum.List _foreach_clamp_min.Scalar "
   "_foreach_clamp_min.List _foreach_clamp_max.Scalar _foreach_clamp_max.List", rules::larger},
  {"clamp clamp.Tensor hardtanh", rules::any_of_three},
  {"index_put", rules::put},
  // arithmetic
  {"mul.Tensor mul.Scalar _foreach_mul.Scalar _foreach_mul.List _foreach_mul.ScalarList "
   "_foreach_mul.Tensor", rules::product},
  {"add.Tensor add.Scalar sub.Tensor sub.Scalar _foreach_add.List _foreach_add.Tensor "
   "_foreach_sub.List", rules::sum_of_two},
  {"rsub.Tensor rsub.Scalar", rules::sum_from_right},
  {"_foreach_add.Scalar _foreach_add.ScalarList _foreach_sub.Scalar _foreach_sub.ScalarList",
   rules::sum_without_scale},
  {"addcmul _foreach_addcmul.Scalar _foreach_addcmul.ScalarList", rules::plus_product},
  {"lerp.Scalar _foreach_lerp.Scalar", rules::between},
  {"div.Tensor div.Scalar _foreach_div.Scalar _foreach_div.ScalarList", rules::quotient},
  {"pow.Tensor_Scalar", rules::power},
  {"exp", rules::exponential},
  // sums of products
  {"mm mm.dtype bmm bmm.dtype mv dot", rules::dot},
  {"addmm addmm.dtype addmv baddbmm baddbmm.dtype _addmm_activation", rules::dot_plus},
  {"convolution", rules::convolution},
  // sums
  {"sum sum.dim_IntList", rules::sum},
  {"mean mean.dim", rules::mean},
  {"cumsum", rules::running_sum},
  {"embedding_dense_backward", rules::rows_added},
  {"scatter_add", rules::scattered_sum},
  {"index_add", rules::indexed_sum},
  // functions
  {"sigmoid tanh sin cos erf sign sgn", [](Seen& x) { return x.of(0) < UNKNOWN ? 1 : UNKNOWN; }},
  {"gelu silu", rules::same},
  {"gelu_backward", rules::gelu_gradient},
  {"silu_backward", rules::silu_gradient},
  {"sigmoid_backward", rules::sigmoid_gradient},
  {"tanh_backward", rules::tanh_gradient},
  {"native_dropout", rules::dropout},
  {"native_dropout_backward", rules::dropout_gradient},
  // rows
  {"_softmax", rules::softmax},
  {"_log_softmax", rules::log_softmax},
  {"_softmax_backward_data", rules::softmax_gradient},
  {"_log_softmax_backward_data", rules::log_softmax_gradient},
  {"native_layer_norm", rules::layer_norm},
  {"native_layer_norm_backward", rules::layer_norm_gradient},
  // losses
  {"nll_loss_backward", rules::nll_gradient},
  {"mse_loss", rules::squared_error},
  {"mse_loss_backward", rules::squared_error_gradient},
  // read, and known to leave their operands alone. Attention multiplies a rounded maximum with a
  // scale: for large scores its exponents are not bounded.
  {"sqrt rsqrt log log2 log1p reciprocal div.Tensor_mode div.Scalar_mode addcdiv _foreach_sqrt "
   "_foreach_addcdiv.Scalar _foreach_addcdiv.ScalarList _foreach_addcdiv.Tensor _foreach_div.List "
   "_foreach_div.Tensor _foreach_norm.Scalar linalg_vector_norm pow.Tensor_Tensor pow.Scalar "
   "nll_loss_forward logsumexp var_mean.correction var.correction std.correction "
   "_scaled_dot_product_flash_attention _scaled_dot_product_flash_attention_backward "
   "_scaled_dot_product_efficient_attention _scaled_dot_product_efficient_attention_backward "
   "_scaled_dot_product_cudnn_attention _scaled_dot_product_cudnn_attention_backward "
   "_scaled_dot_product_flash_attention_for_cpu "
   "_scaled_dot_product_flash_attention_for_cpu_backward "
   "convolution_backward _local_scalar_dense eq.Tensor eq.Scalar ne.Tensor ne.Scalar lt.Tensor "
   "lt.Scalar le.Tensor le.Scalar gt.Tensor gt.Scalar ge.Tensor ge.Scalar isnan isinf isfinite "
   "argmax argmin", rules::read},
};
// clang-format on

// Operators that have a bound, in the spelling of the table.
inline std::vector<std::string> bounded_operators() {
  std::vector<std::string> names;
  for (const Row& row : TABLE) {
    if (row.rule == Rule(rules::read)) continue;
    std::istringstream words(row.operators);
    for (std::string word; words >> word;) names.push_back(word);
  }
  return names;
}

// Of "aten::mul_" and "Tensor"; null if there is none.
inline Rule rule_of(std::string_view name, std::string_view overload) {
  static const auto* const rules = [] {
    auto* all = new std::unordered_map<std::string, Rule>;
    for (const Row& row : TABLE) {
      std::istringstream words(row.operators);
      for (std::string word; words >> word;) all->emplace(word, row.rule);
    }
    return all;
  }();
  if (name.substr(0, 6) != "aten::") return nullptr;
  name.remove_prefix(6);
  if (name.ends_with('_')) name.remove_suffix(1);
  std::string key(name);
  if (!overload.empty()) key.append(".").append(overload);
  const auto found = rules->find(key);
  return found == rules->end() ? nullptr : found->second;
}

}  // namespace recorder
