// Every operation's type and shape rule: one program that it accepts, with the types of the
// results, and one that it refuses, with the reason.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "ir/rules/verify.h"
#include "ir/text.h"
#include "samples.h"

namespace segfuse::ir {
namespace {

using testing::HasSubstr;

struct Row {
  std::string op;
  std::string inputs;  ///< "x:f32[N] y:f32[N]"
  std::string expression;
  std::string types;  ///< of the results, "f32[N], f32[N]"
  std::string refused_inputs;
  std::string refused;
  std::string message;
};

void PrintTo(const Row& row, std::ostream* out) { *out << row.op; }

/// What a rule of ops.def takes and gives, and what it refuses.
struct RuleCase {
  std::string from, to, wrong_first, wrong_second, message;
};

RuleCase case_of(DTypeRule rule) {
  switch (rule) {
    case DTypeRule::kFloat:
      return {"bf16", "bf16", "i32", "i32", "needs floating point operands; found i32[N]"};
    case DTypeRule::kNumeric: return {"i64", "i64", "bool", "bool", "needs numbers; found bool[N]"};
    case DTypeRule::kTest:
      return {"f64", "bool", "i64", "i64", "needs floating point operands; found i64[N]"};
    case DTypeRule::kLogical:
      return {"bool", "bool", "f32", "f32", "needs bool operands; found f32[N]"};
    case DTypeRule::kCompare:
      return {"f32", "bool", "f32", "f64",
              "operands must have one element type; found f32[N] and f64[N]"};
    case DTypeRule::kInteger: return {"i32", "i32", "f32", "f32", "needs integers; found f32[N]"};
    case DTypeRule::kNone: break;
  }
  throw InternalError("no rule");
}

/// Those of ops.def's rows, and the two that have rules of their own.
std::vector<Row> elementwise_rows() {
  std::vector<Row> rows;
  for (const OpInfo& info : all_ops()) {
    if (info.rule == DTypeRule::kNone) continue;
    const RuleCase c = case_of(info.rule);
    const std::string op(info.name);
    std::string inputs = "x:" + c.from + "[N]";
    std::string refused = "x:" + c.wrong_first + "[N]";
    std::string expression = op + "(%x";
    if (info.max_operands == 2) {
      inputs += " y:" + c.from + "[N]";
      refused += " y:" + c.wrong_second + "[N]";
      expression += ", %y";
    }
    expression += ")";
    rows.push_back(
        {op, inputs, expression, c.to + "[N]", refused, expression, op + ": " + c.message});
  }
  rows.push_back({"where", "c:bool[N] x:i32[N] y:i32[N]", "where(%c, %x, %y)", "i32[N]",
                  "c:f32[N] x:i32[N] y:i32[N]", "where(%c, %x, %y)",
                  "where: operand 0 must be bool; found f32[N]"});
  rows.push_back({"cast", "x:f32[N]", "cast(%x) {dtype=i64}", "i64[N]", "x:f32[N] y:f32[N]",
                  "cast(%x, %y) {dtype=i64}", "cast: 2 operands were given, 1 are expected"});
  return rows;
}

const Row kRows[] = {
    {"sum", "x:i32[N, M, 3]", "sum(%x) {axes=[0, 2]}", "i32[M]", "x:f32[N, 3]",
     "sum(%x) {axes=[1, 0]}", "sum: the axes must be ascending"},
    {"prod", "x:f32[N, 3]", "prod(%x) {axes=[]}", "f32[N, 3]", "x:f32[N]", "prod(%x) {axes=[1]}",
     "prod: axis 1 does not exist; the operand has 1 axes"},
    {"max", "x:f16[N]", "max(%x) {axes=[0]}", "f16[]", "x:bool[N]", "max(%x) {axes=[0]}",
     "max: needs numbers; cast bool[N] first"},
    {"min", "x:i64[N, M]", "min(%x) {axes=[1]}", "i64[N]", "x:f32[N, M]", "min(%x) {axes=[1, 1]}",
     "min: the axes must be ascending and each given once"},
    {"argmax", "x:f32[N, M]", "argmax(%x) {axes=[0]}", "i64[M]", "x:f32[N, M]",
     "argmax(%x) {axes=[0, 1]}", "argmax: works along exactly one axis; 2 were given"},
    {"welford", "x:f64[N, M]", "welford(%x) {axes=[1]}", "f64[N], f64[N]", "x:i32[N]",
     "welford(%x) {axes=[0]}", "welford: needs a floating point operand; found i32[N]"},
    {"logsumexp", "x:f32[N, M]", "logsumexp(%x) {axes=[0, 1]}", "f32[]", "x:i64[N]",
     "logsumexp(%x) {axes=[0]}", "logsumexp: needs a floating point operand; found i64[N]"},
    {"permute", "x:bool[N, M, 3]", "permute(%x) {perm=[2, 0, 1]}", "bool[3, N, M]", "x:f32[N, M]",
     "permute(%x) {perm=[0, 0]}", "permute: perm names axis 0 twice"},
    {"broadcast", "x:f32[N, 1]", "broadcast(%x) {axes=[1, 2], shape=[M, N, 4]}", "f32[M, N, 4]",
     "x:f32[N, 2]", "broadcast(%x) {axes=[0, 1], shape=[N, 4]}",
     "broadcast: f32[N, 2] cannot be broadcast to [N, 4]: axis 1 is neither 1 nor equal"},
    {"squeeze", "x:f32[1, N, 1]", "squeeze(%x) {axes=[0]}", "f32[N, 1]", "x:f32[N, 2]",
     "squeeze(%x) {axes=[1]}", "squeeze: a squeezed axis and 1 must agree; found 2 and 1"},
    {"reshape", "x:f32[N, 4, M]", "reshape(%x) {shape=[2*N, 2*M]}", "f32[2*N, 2*M]", "x:f32[N, 4]",
     "reshape(%x) {shape=[N, 5]}", "reshape: f32[N, 4] and [N, 5] have different numbers"},
    {"slice", "x:f32[N, 5]", "slice(%x) {starts=[0, 2], sizes=[N, 3]}", "f32[N, 3]", "x:f32[N, 5]",
     "slice(%x) {starts=[0, 3], sizes=[N, 3]}", "slice: [3, 3 + 3) is outside axis 1"},
    {"pad", "x:i32[N]", "pad(%x) {low=[1], high=[M], value=7}", "i32[M + N + 1]", "x:i32[N]",
     "pad(%x) {low=[-1], high=[0], value=7}", "pad: padding must not be negative; axis 0 has -1"},
    {"concat", "x:f32[N, 2] y:f32[N, M]", "concat(%x, %y, %x) {axis=1}", "f32[N, M + 4]",
     "x:f32[3, 2] y:f32[4, 2]", "concat(%x, %y) {axis=1}",
     "concat: the other axes must agree; found 3 and 4"},
    {"take", "x:f32[N, M, 3] i:i32[4, 5]", "take(%x, %i) {axis=1}", "f32[N, 4, 5, 3]",
     "x:f32[N] i:f32[4]", "take(%x, %i) {axis=0}",
     "take: indices must be i32 or i64; found f32[4]"},
    {"gather", "x:f32[N, M] i:i64[N, 7]", "gather(%x, %i) {axis=1}", "f32[N, 7]",
     "x:f32[N, M] i:i64[N]", "gather(%x, %i) {axis=1}",
     "gather: indices must have 2 axes; found i64"},
    {"scatter_add", "x:f32[3, N, M] i:i64[N, M]", "scatter_add(%x, %i) {axis=1, size=[9]}",
     "f32[3, 9]", "x:f32[3, N] i:i64[N]", "scatter_add(%x, %i) {axis=-1, size=[9]}",
     "scatter_add: updates f32[3, N] do not hold the axes of indices i64[N] at axis -1"},
    {"unfold", "x:f32[2, N]", "unfold(%x) {axis=1, size=3, stride=2, dilation=2}",
     "f32[2, floordiv(N - 5, 2) + 1, 3]", "x:f32[4]",
     "unfold(%x) {axis=0, size=3, stride=1, dilation=2}",
     "unfold: a window of 5 elements does not fit axis 0 of f32[4]"},
    {"fold", "x:f32[floordiv(N - 5, 2) + 1, 3]",
     "fold(%x) {axis=0, stride=2, dilation=2, extent=[N]}", "f32[N]", "x:f32[4, 3]",
     "fold(%x) {axis=-1, stride=1, dilation=1, extent=[6]}",
     "fold: f32[4, 3] does not hold windows at axis -1"},
    {"constant", "", "constant {value=-3, dtype=i32}", "i32[]", "",
     "constant {value=2147483648, dtype=i32}", "constant: the value 2147483648 does not fit i32"},
    {"iota", "", "iota {length=[N + 1], dtype=f32}", "f32[N + 1]", "",
     "iota {length=[N], dtype=bool}", "iota: cannot be bool"},
    {"extent", "", "extent {size=[N*M], dtype=i64}", "i64[]", "", "extent {size=[N, M], dtype=i64}",
     "extent: needs one size; 2 were given"},
    {"random_uniform", "s:i64[2]", "random_uniform(%s) {shape=[N, 3], stream=0}", "f32[N, 3]",
     "s:i64[3]", "random_uniform(%s) {shape=[N], stream=0}",
     "random_uniform: the length of the seed and 2 must agree; found 3 and 2"},
    {"matmul", "x:f32[3, N, M] y:f32[3, 5, M]", "matmul(%x, %y) {transpose_a=0, transpose_b=1}",
     "f32[3, N, 5]", "x:f32[3, 4] y:f32[5, 6]", "matmul(%x, %y) {transpose_a=0, transpose_b=0}",
     "matmul: the inner sizes must agree; found 4 and 5"},
    {"cumsum", "x:i32[N, M]", "cumsum(%x) {axis=1, reverse=1}", "i32[N, M]", "x:bool[N]",
     "cumsum(%x) {axis=0, reverse=0}", "cumsum: needs numbers; cast bool[N] first"},
    {"cumprod", "x:f16[N]", "cumprod(%x) {axis=0, reverse=0}", "f16[N]", "x:f32[N]",
     "cumprod(%x) {axis=1, reverse=0}", "cumprod: axis 1 does not exist; the operand has 1 axes"},
    {"cummax", "x:f64[N]", "cummax(%x) {axis=0, reverse=0}", "f64[N]", "x:f32[N]",
     "cummax(%x) {axis=0, reverse=2}", "cummax: reverse must be 0 or 1; found 2"},
    {"cummin", "x:i64[N]", "cummin(%x) {axis=0, reverse=0}", "i64[N]", "x:f32[]",
     "cummin(%x) {axis=0, reverse=0}", "cummin: axis 0 does not exist; the operand has 0 axes"},
    {"cumlogsumexp", "x:bf16[N]", "cumlogsumexp(%x) {axis=0, reverse=0}", "bf16[N]", "x:i32[N]",
     "cumlogsumexp(%x) {axis=0, reverse=0}",
     "cumlogsumexp: needs floating point operands; found i32[N]"},
    {"linear_scan", "x:f32[N, M] y:f32[N, M]", "linear_scan(%x, %y) {axis=0, reverse=0}",
     "f32[N, M]", "x:f32[3] y:f32[4]", "linear_scan(%x, %y) {axis=0, reverse=0}",
     "linear_scan: operands must have one shape (broadcast first); found f32[3] and f32[4]"},
    {"scan", "h:f32[M] x:f32[N, M] w:f32[M, 3]",
     "scan(%h, %x, %w) {carries=1, sequences=1, length=[N], reverse=1, body=fusion \"step\" { "
     "symbols K %h = input \"h\" : f32[K] %x = input \"x\" : f32[K] "
     "%w = input \"w\" : f32[K, 3] %s = add(%h, %x) %e = sum(%w) {axes=[0]} output %s output %e }}",
     "f32[M], f32[N, 3]", "h:f32[M] x:f32[N, 3]",
     "scan(%h, %x) {carries=1, sequences=1, length=[N], reverse=0, body=fusion { symbols K "
     "%h = input \"h\" : f32[K] %x = input \"x\" : f32[4] output %h }}",
     "scan: the body takes sequence 0 as [4]; found [3]"},
    {"sort", "x:f32[N, M]", "sort(%x) {axis=1, descending=1}", "f32[N, M], i64[N, M]", "x:f32[N]",
     "sort(%x) {axis=0, descending=-1}", "sort: descending must be 0 or 1; found -1"},
    {"attention",
     "q:f32[2, 3, N, 4] k:f32[2, 3, M, 4] v:f32[2, 3, M, 5] b:f32[1, 3, 1, M] "
     "m:bool[2, 1, N, M]",
     "attention(%q, %k, %v, %b, %m) {scale=0.5, fill=-inf, ahead=[M, N]}",
     "f32[2, 3, N, 5], f32[2, 3, N]", "q:f32[2, 3, 4] k:f32[2, 5, 4] v:f32[2, 5, 4] m:bool[3, 5]",
     "attention(%q, %k, %v, %m) {scale=1, fill=0, ahead=[]}",
     "attention: the mask must have the 3 axes of the scores, or 1 for any; found bool[3, 5]"},
    {"attention_grad",
     "q:bf16[N, 4] k:bf16[M, 4] v:bf16[M, 5] m:bool[1, M] l:f32[N] g:bf16[N, 5] w:f32[N]",
     "attention_grad(%q, %k, %v, %m, %l, %g, %w) {scale=0.5, fill=-inf, ahead=[]}",
     "bf16[N, 4], bf16[M, 4], bf16[M, 5]",
     "q:f64[2, 4] k:f64[3, 4] v:f64[3, 5] l:f64[2] g:f64[2, 4] w:f64[2]",
     "attention_grad(%q, %k, %v, %l, %g, %w) {scale=0.5, fill=-inf, ahead=[]}",
     "attention_grad: the cotangent must agree; found 4 and 5"},
    {"semicrf_loss",
     "e:f64[N, M, 4] t:f64[7, 4, 4] d:f64[7, 4] i:f64[4] f:f64[4] l:i64[N] y:i32[N, M] b:bool[N, "
     "M]",
     "semicrf_loss(%e, %t, %d, %i, %f, %l, %y, %b)", "f64[N]",
     "e:f16[N, M, 4] t:f16[7, 4, 4] d:f16[7, 4] i:f16[4] f:f16[4] l:i64[N] y:i32[N, M] b:bool[N, "
     "M]",
     "semicrf_loss(%e, %t, %d, %i, %f, %l, %y, %b)", "semicrf_loss: scores must be f32 or f64"},
    {"semicrf_loss_grad",
     "e:f32[N, M, 4] t:f32[1, 4, 4] d:f32[7, 4] i:f32[4] f:f32[4] l:i64[N] y:i32[N, M] b:bool[N, "
     "M] "
     "w:f32[N]",
     "semicrf_loss_grad(%e, %t, %d, %i, %f, %l, %y, %b, %w)",
     "f32[N, M, 4], f32[1, 4, 4], f32[7, 4], f32[4], f32[4]",
     "e:f32[N, M, 4] t:f32[2, 4, 4] d:f32[7, 4] i:f32[4] f:f32[4] l:i64[N] y:i32[N, M] b:bool[N, "
     "M] "
     "w:f32[N]",
     "semicrf_loss_grad(%e, %t, %d, %i, %f, %l, %y, %b, %w)",
     "semicrf_loss_grad: transition (1 or K, C, C) must agree; found 2 and 7"},
};

std::vector<Row> all_rows() {
  std::vector<Row> rows = elementwise_rows();
  rows.insert(rows.end(), std::begin(kRows), std::end(kRows));
  return rows;
}

/// A program of one expression; `types` may be empty.
std::string program(const std::string& inputs, const std::string& expression,
                    const std::string& types) {
  std::string text = "fusion \"rule\" { symbols N, M\n";
  for (std::size_t at = 0; at < inputs.size();) {
    const std::size_t name = inputs.find(':', at);
    const std::size_t end = std::min(inputs.find(']', at), inputs.size());
    const std::string word = inputs.substr(at, name - at);
    text +=
        "%" + word + " = input \"" + word + "\" : " + inputs.substr(name + 1, end - name) + "\n";
    at = end + 2;
  }
  std::string results = "%r";
  int depth = 0;
  for (const char c : types) {
    depth += c == '[' || c == '(' ? 1 : c == ']' || c == ')' ? -1 : 0;
    if (c == ',' && depth == 0) results += ", %r" + std::to_string(results.size());
  }
  text += results + " = " + expression + (types.empty() ? "" : " : " + types) + "\noutput %r }";
  return text;
}

class Rules : public testing::TestWithParam<Row> {};

TEST_P(Rules, Accepts) {
  const Row& row = GetParam();
  EXPECT_EQ(row.expression.rfind(row.op, 0), 0U);
  const Fusion f = parse(program(row.inputs, row.expression, row.types));
  verify(f);
  EXPECT_EQ(print(parse(print(f))), print(f));
}

TEST_P(Rules, Refuses) {
  const Row& row = GetParam();
  const std::string message =
      message_of<DataError>([&] { (void)parse(program(row.refused_inputs, row.refused, "")); });
  EXPECT_THAT(message, HasSubstr(row.message));
}

INSTANTIATE_TEST_SUITE_P(All, Rules, testing::ValuesIn(all_rows()),
                         [](const auto& param) { return param.param.op; });

TEST(RulesTable, HasOneRowForEveryOperation) {
  std::map<std::string, int> count;
  for (const Row& row : all_rows()) ++count[row.op];
  for (const OpInfo& op : all_ops()) EXPECT_EQ(count[std::string(op.name)], 1) << op.name;
  EXPECT_EQ(count.size(), all_ops().size());
}

// More of what the rules refuse, for rules with several parts.
struct Refusal {
  const char* inputs;
  const char* expression;
  const char* message;
};

void expect_refusals(std::span<const Refusal> refusals) {
  for (const Refusal& refusal : refusals) {
    const std::string text = program(refusal.inputs, refusal.expression, "");
    EXPECT_THAT(message_of<DataError>([&] { (void)parse(text); }), HasSubstr(refusal.message))
        << text;
  }
}

TEST(RulesTable, RefusesTheRestToo) {
  const Refusal refusals[] = {
      {"x:f32[N] y:f32[N, 1]", "add(%x, %y)",
       "operands must have one shape (broadcast first); found f32[N] and f32[N, 1]"},
      {"x:f32[3] y:f32[4]", "add(%x, %y)", "found f32[3] and f32[4]"},
      {"c:bool[N] x:i32[N] y:i64[N]", "where(%c, %x, %y)", "one element type"},
      {"x:f32[N]", "permute(%x) {perm=[0, 1]}", "perm has 2 entries; the operand is f32[N]"},
      {"x:f32[N]", "permute(%x) {perm=[1]}", "axis 1 does not exist"},
      {"x:f32[N]", "broadcast(%x) {axes=[0, 1], shape=[N, 3]}", "axes has 2 entries"},
      {"x:f32[N]", "broadcast(%x) {axes=[2], shape=[N, 3]}", "axis 2 does not exist"},
      {"x:f32[N, M]", "broadcast(%x) {axes=[1, 0], shape=[N, M]}", "must be ascending"},
      {"x:f32[1]", "broadcast(%x) {axes=[0], shape=[-2]}", "must not be negative"},
      {"x:f32[N]", "slice(%x) {starts=[0], sizes=[]}", "one entry an axis"},
      {"x:f32[N]", "slice(%x) {starts=[-1], sizes=[2]}", "is outside axis 0"},
      {"x:f32[N]", "slice(%x) {starts=[0], sizes=[N + 1]}", "is outside axis 0 of f32[N]"},
      {"x:f32[N]", "pad(%x) {low=[], high=[0], value=0}", "one entry an axis"},
      {"x:i32[N]", "pad(%x) {low=[0], high=[0], value=0.5}", "the value 0.5 does not fit i32"},
      {"x:f32[]", "concat(%x) {axis=0}", "axis 0 does not exist"},
      {"x:f32[3] y:i32[3]", "concat(%x, %y) {axis=0}", "one element type"},
      {"x:f32[3] y:f32[3, 3]", "concat(%x, %y) {axis=0}", "every operand must have 1 axes"},
      {"x:f32[N] i:i32[]", "take(%x, %i) {axis=1}", "axis 1 does not exist"},
      {"x:f32[3, 4] i:i32[2, 4]", "gather(%x, %i) {axis=1}",
       "other axes must agree; found 3 and 2"},
      {"x:f32[3] i:i32[4]", "scatter_add(%x, %i) {axis=0, size=[9]}", "found 3 and 4"},
      {"x:f32[3] i:i32[3]", "scatter_add(%x, %i) {axis=0, size=[]}", "size needs one entry"},
      {"x:f32[3] i:i32[3]", "scatter_add(%x, %i) {axis=1, size=[9]}", "do not hold the axes"},
      {"q:f16[3, 4]", "attention(%q, %q, %q) {scale=1, fill=0, ahead=[]}",
       "needs f32, f64 or bf16; cast f16[3, 4] first"},
      {"q:bf16[3, 4] v:f32[3, 4]", "attention(%q, %q, %v) {scale=1, fill=0, ahead=[]}",
       "one element type; found bf16[3, 4] and f32[3, 4]"},
      {"q:bf16[3, 4] b:bf16[3, 3]", "attention(%q, %q, %q, %b) {scale=1, fill=0, ahead=[]}",
       "with bf16[3, 4], the bias and sums of rows must be f32; found bf16[3, 3]"},
      {"x:f32[9]", "unfold(%x) {axis=0, size=0, stride=1, dilation=1}", "must be positive"},
      {"x:f32[9]",
       "unfold(%x) {axis=0, size=9223372036854775807, stride=1, dilation=9223372036854775807}",
       "does not fit 64 bits"},
      {"x:f32[4, 3]", "fold(%x) {axis=9223372036854775807, stride=1, dilation=1, extent=[6]}",
       "does not hold windows at axis 9223372036854775807"},
      {"x:f32[4, 3]", "fold(%x) {axis=1, stride=1, dilation=1, extent=[6]}",
       "does not hold windows at axis 1"},
      {"x:f32[N, M]", "fold(%x) {axis=0, stride=1, dilation=1, extent=[9]}",
       "the window size must be a positive number; found f32[N, M]"},
      {"x:f32[4, 3]", "fold(%x) {axis=0, stride=1, dilation=1, extent=[7]}",
       "the number of windows and the extent must agree; found 4 and 5"},
      {"x:f32[4, 3]", "fold(%x) {axis=0, stride=0, dilation=1, extent=[6]}", "must be positive"},
      {"", "constant {value=nan, dtype=i64}", "the value nan does not fit i64"},
      {"", "constant {value=2, dtype=bool}", "the value 2 does not fit bool"},
      {"", "iota {length=[-1], dtype=i64}", "must not be negative"},
      {"s:i32[2]", "random_uniform(%s) {shape=[N], stream=0}", "operand 0 must be i64"},
      {"s:i64[2]", "random_uniform(%s) {shape=[N], stream=-1}", "stream must not be negative"},
      {"x:f32[3] y:f32[3, 3]", "matmul(%x, %y) {transpose_a=0, transpose_b=0}", "needs matrices"},
      {"x:i32[3, 3] y:i32[3, 3]", "matmul(%x, %y) {transpose_a=0, transpose_b=0}",
       "needs floating point"},
      {"x:f32[3, 3] y:f32[3, 3]", "matmul(%x, %y) {transpose_a=2, transpose_b=0}",
       "transpose_a must be 0 or 1; found 2"},
      {"x:f32[2, 2] y:f32[5, 2, 2]", "matmul(%x, %y) {transpose_a=0, transpose_b=0}",
       "the right side must be a matrix or have the leading axes of the left"},
      {"x:f32[4, 2, 2] y:f32[5, 2, 2]", "matmul(%x, %y) {transpose_a=0, transpose_b=0}",
       "the leading axes must agree; found 4 and 5"},
  };
  expect_refusals(refusals);
}

/// A body of one input "a" of this type, with its expressions and outputs.
std::string scan_of(const char* attributes, const char* type, const char* rest) {
  return std::string("{") + attributes + ", body=fusion { symbols K %a = input \"a\" : " + type +
         " " + rest + " }}";
}

TEST(RulesTable, RefusesBodiesThatDoNotFit) {
  const char* const map = "carries=0, sequences=1, length=[N], reverse=0";
  const char* const state = "carries=1, sequences=0, length=[3], reverse=0";
  const struct {
    const char* inputs;
    const char* operands;
    std::string attributes;
    const char* message;
  } rows[] = {
      {"x:f32[N]", "%x",
       scan_of("carries=0, sequences=0, length=[N], reverse=0", "f32[]", "output %a"),
       "scan: needs a carry or a sequence"},
      {"x:f32[N]", "%x",
       scan_of("carries=0, sequences=2, length=[N], reverse=0", "f32[]", "output %a"),
       "1 operands were given for 0 carries and 2 sequences"},
      {"x:f32[N]", "%x",
       scan_of("carries=0, sequences=1, length=[N], reverse=2", "f32[]", "output %a"),
       "reverse must be 0 or 1; found 2"},
      {"x:f32[N]", "%x",
       scan_of("carries=-1, sequences=1, length=[N], reverse=0", "f32[]", "output %a"),
       "the number of carries is -1; it must not be negative"},
      {"x:f32[N]", "%x",
       scan_of("carries=0, sequences=1, length=[], reverse=0", "f32[]", "output %a"),
       "length must be one size; found 0"},
      {"x:f32[6]", "%x",
       scan_of("carries=0, sequences=1, length=[7], reverse=0", "f32[]", "output %a"),
       "sequence 0 has 6 steps and the scan 7"},
      {"x:f32[]", "%x", scan_of(map, "f32[]", "output %a"), "sequence 0 has no axis to scan along"},
      {"x:f32[N]", "%x", scan_of(map, "f64[]", "output %a"),
       "sequence 0 is f32[N]; the body takes f64"},
      {"x:f32[N] y:f32[N]", "%x, %y", scan_of(map, "f32[]", "output %a"),
       "the body takes 1 inputs and gets 2"},
      {"x:f32[N, M]", "%x", scan_of(map, "f32[]", "output %a"),
       "the input 'a' of the body has the shape [] and gets [M]"},
      {"x:f32[N]", "%x", scan_of(map, "f32[]", ""), "the body gives nothing"},
      {"x:f32[N]", "%x", scan_of(state, "f32[K]", "%b = sum(%a) {axes=[0]} output %b"),
       "the body takes carry 0 as f32[K] and gives f32[]; they must be alike"},
      {"x:f32[N]", "%x", scan_of(state, "f32[K]", ""),
       "the body gives 0 outputs, fewer than the 1 carries"},
      {"x:f32[N]", "%x", scan_of(state, "f32[K]", "output %a alias %a -> %a"),
       "the body must not overwrite its inputs"},
      {"x:i64[2]", "%x",
       scan_of(map, "i64[]",
               "%z = broadcast(%a) {axes=[], shape=[2]} "
               "%r = random_uniform(%z) {shape=[2], stream=0} output %r"),
       "the body draws random numbers"},
      {"x:f32[N]", "%x", scan_of(map, "f32[]", "%k = iota {length=[K], dtype=f32} output %k"),
       "the size K of the body stands alone in no axis of its inputs"},
      {"x:f32[5]", "%x",
       scan_of(state, "f32[K]",
               "%b = concat(%a, %a) {axis=0} %c = reshape(%b) {shape=[6]} "
               "output %a"),
       "scan: the body takes carry 0 as [3]; found [5]"},
      {"x:f32[N]", "%x", scan_of(map, "f32[]", "output %b"),
       "expected a value that is defined above"},
  };
  std::vector<std::string> expressions;
  std::vector<Refusal> refusals;
  for (const auto& row : rows)
    expressions.push_back(std::string("scan(") + row.operands + ") " + row.attributes);
  for (std::size_t i = 0; i < expressions.size(); ++i)
    refusals.push_back({rows[i].inputs, expressions[i].c_str(), rows[i].message});
  expect_refusals(refusals);
}

}  // namespace
}  // namespace segfuse::ir
