#include "ir/rules/verify.h"

#include <fmt/core.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "samples.h"

namespace segfuse::ir {

/// The storage of a Fusion, to break on purpose.
class FusionTester {
 public:
  static IrStorage& storage(Fusion& fusion) { return fusion.ir_; }
};

namespace {

using testing::HasSubstr;

struct Corruption {
  const char* what;
  const char* message;  ///< part of what verify() says
  void (*apply)(Fusion&, IrStorage&);
};

void PrintTo(const Corruption& corruption, std::ostream* out) { *out << corruption.what; }

ExprId first(const Fusion& f, Op op) {
  for (const ExprId id : f.exprs())
    if (f.expr(id).op == op) return id;
  throw InternalError(fmt::format("the sample has no {}", info(op).name));
}

Expr& expr(IrStorage& s, ExprId id) { return s.exprs[id.index].item; }
Val& val(IrStorage& s, ValId id) { return s.vals[id.index].item; }

const Corruption kCorruptions[] = {
    {"use removed", "the uses of value",
     [](Fusion& f, IrStorage& s) { val(s, f.inputs()[0].val).uses.pop_back(); }},
    {"use twice", "the uses of value",
     [](Fusion& f, IrStorage& s) {
       auto& uses = val(s, f.inputs()[0].val).uses;
       uses.push_back(uses.back());
     }},
    {"uses not ascending", "the uses of value",
     [](Fusion& f, IrStorage& s) {
       auto& uses = val(s, f.inputs()[0].val).uses;
       std::swap(uses.front(), uses.back());
     }},
    {"use of a dead expression", "the uses of value",
     [](Fusion& f, IrStorage& s) {
       const ExprId dead = first(f, Op::log);
       s.vals[f.result(dead).index].alive = false;
       s.exprs[dead.index].alive = false;
     }},
    {"operand that does not exist", "(an operand) is not a live value",
     [](Fusion& f, IrStorage& s) { expr(s, first(f, Op::exp)).operands[0] = ValId{9999}; }},
    {"dead operand", "(an operand) is not a live value",
     [](Fusion& f, IrStorage& s) {
       const ExprId exp = first(f, Op::exp);
       s.vals[f.result(exp).index].alive = false;
       s.exprs[exp.index].alive = false;
     }},
    {"operand without a use", "the uses of value",
     [](Fusion& f, IrStorage& s) { expr(s, first(f, Op::exp)).operands[0] = f.inputs()[4].val; }},
    {"dead result", "(a result) is not a live value",
     [](Fusion& f, IrStorage& s) { s.vals[f.result(first(f, Op::log)).index].alive = false; }},
    {"result of another expression", "does not name it as its definition",
     [](Fusion& f, IrStorage& s) {
       val(s, f.result(first(f, Op::log))).definition = first(f, Op::exp);
     }},
    {"result under another number", "does not name it as its definition",
     [](Fusion& f, IrStorage& s) { val(s, f.result(first(f, Op::welford), 1)).result = 0; }},
    {"expression without results", "has no results",
     [](Fusion& f, IrStorage& s) {
       s.vals[f.result(first(f, Op::log)).index].alive = false;
       expr(s, first(f, Op::log)).results.clear();
     }},
    {"definition that is dead", "is not a live expression",
     [](Fusion& f, IrStorage& s) { s.exprs[first(f, Op::log).index].alive = false; }},
    {"value that is no result of its definition", "but is not its result",
     [](Fusion& f, IrStorage& s) {
       s.vals.push_back({Val{DType::kF32, {}, first(f, Op::log), 0, {}}});
     }},
    {"value from nowhere", "is listed as an input 0 times",
     [](Fusion&, IrStorage& s) { s.vals.push_back({Val{}}); }},
    {"input listed twice", "is listed as an input 2 times",
     [](Fusion&, IrStorage& s) { s.inputs.push_back({s.inputs[0].val, "again"}); }},
    {"two inputs of one name", "two inputs are named 'scale'",
     [](Fusion&, IrStorage& s) { s.inputs[0].name = "scale"; }},
    {"input with a definition", "the input 'extra' has a definition",
     [](Fusion& f, IrStorage& s) { s.inputs.push_back({f.result(first(f, Op::log)), "extra"}); }},
    {"dead input", "(an input) is not a live value",
     [](Fusion&, IrStorage& s) { s.inputs.push_back({ValId{12345}, "extra"}); }},
    {"dead output", "(an output) is not a live value",
     [](Fusion&, IrStorage& s) { s.outputs.push_back({ValId{12345}, ""}); }},
    {"outputs miscounted", "outputs and says that it is 7",
     [](Fusion&, IrStorage& s) { s.vals[0].item.outputs = 7; }},
    {"alias of no output", "is aliased but is not an output",
     [](Fusion&, IrStorage& s) { s.outputs.erase(s.outputs.begin() + 1); }},
    {"alias of a dead value", "(an aliased output) is not a live value",
     [](Fusion&, IrStorage& s) { s.aliases[0].output = ValId{}; }},
    {"alias onto no input", "is aliased onto but is not an input",
     [](Fusion& f, IrStorage& s) { s.aliases[0].input = f.result(first(f, Op::log)); }},
    {"alias twice", "is aliased twice",
     [](Fusion&, IrStorage& s) { s.aliases.push_back(s.aliases[0]); }},
    {"alias of another type", "changes the type",
     [](Fusion&, IrStorage& s) { s.aliases[0].input = s.inputs[1].val; }},
    {"alias of another element type", "changes the type",
     [](Fusion& f, IrStorage& s) {
       const Val& output = f.val(s.aliases[0].output);
       s.aliases[0].input = f.add_input("wide", DType::kF64, output.shape);
     }},
    {"constant that is dead", "(a constant) is not a live value",
     [](Fusion&, IrStorage& s) { s.constants.begin()->second = ValId{12345}; }},
    {"constant that is none", "is not a constant",
     [](Fusion&, IrStorage& s) { s.constants.begin()->second = s.inputs[0].val; }},
    {"constant under another number", "under another number",
     [](Fusion& f, IrStorage& s) { expr(s, first(f, Op::constant)).attrs[0] = 77.0; }},
    {"constant under another type", "under another number",
     [](Fusion& f, IrStorage& s) { expr(s, first(f, Op::constant)).attrs[1] = DType::kF64; }},
    {"cycle", "a value depends on itself",
     [](Fusion& f, IrStorage& s) {
       const ExprId exp = first(f, Op::exp);
       const ExprId log = first(f, Op::log);
       auto& uses = val(s, expr(s, exp).operands[0]).uses;
       uses.erase(std::find(uses.begin(), uses.end(), exp));
       expr(s, exp).operands[0] = f.result(log);
       val(s, f.result(log)).uses = {exp};
     }},
    {"other element type", "is f64[B, T, 8], not f32[B, T, 8] as its rule says",
     [](Fusion& f, IrStorage& s) { val(s, f.result(first(f, Op::log))).dtype = DType::kF64; }},
    {"other shape", "as its rule says",
     [](Fusion& f, IrStorage& s) { val(s, f.result(first(f, Op::log))).shape.pop_back(); }},
    {"rule broken by an operand", "breaks its rule: log: needs floating point operands",
     [](Fusion& f, IrStorage& s) {
       const ExprId exp = first(f, Op::exp);
       val(s, f.result(exp)).dtype = DType::kI32;
       expr(s, exp).op = Op::cast;
       expr(s, exp).attrs = {DType::kI32};
     }},
    {"attribute missing", "1 attributes were given, 4 are expected",
     [](Fusion& f, IrStorage& s) { expr(s, first(f, Op::unfold)).attrs.resize(1); }},
    {"attribute of another type", "the attribute 'axes' has the wrong type",
     [](Fusion& f, IrStorage& s) { expr(s, first(f, Op::sum)).attrs[0] = 1.0; }},
    {"attribute of another Fusion", "a symbol that is not of the Fusion",
     [](Fusion& f, IrStorage& s) {
       std::get<Extents>(expr(s, first(f, Op::reshape)).attrs[0])[0] = Extent(SymbolId{99});
     }},
    {"number of results", "results, not 1",
     [](Fusion& f, IrStorage& s) {
       const ExprId log = first(f, Op::log);
       const ValId extra{static_cast<std::uint32_t>(s.vals.size())};
       s.vals.push_back({Val{DType::kF32, {}, log, 1, {}}});
       expr(s, log).results.push_back(extra);
     }},
    {"size of another Fusion", "symbol 99 in the shape of a value does not exist",
     [](Fusion& f, IrStorage& s) { val(s, f.inputs()[0].val).shape[0] = Extent(SymbolId{99}); }},
    {"sizes not united", "are not known to be",
     [](Fusion& f, IrStorage& s) {
       const SymbolId fresh = f.symbol("fresh");
       val(s, f.inputs()[4].val).shape[1] = Extent(fresh);
       s.aliases.clear();
     }},
    {"parent missing", "symbols have", [](Fusion&, IrStorage& s) { s.symbol_parent.pop_back(); }},
    {"parent that is not a representative", "is not over representatives",
     [](Fusion& f, IrStorage& s) {
       s.symbol_parent[1] = SymbolId{0};
       s.symbol_parent[f.symbol("fresh").index] = Extent(SymbolId{1});
     }},
    {"parent of another Fusion", "does not exist",
     [](Fusion&, IrStorage& s) { s.symbol_parent[0] = SymbolId{99}; }},
    {"two symbols of one name", "two symbols are named 'B'",
     [](Fusion&, IrStorage& s) { s.symbols[1].name = "B"; }},
    {"division by one", "divides by 1",
     [](Fusion&, IrStorage& s) { s.symbols[2].derived->divisor = 1; }},
    {"division of itself", "is made of itself",
     [](Fusion&, IrStorage& s) { s.symbols[2].derived->numerator = SymbolId{2}; }},
    {"requirement that is decided", "is decided",
     [](Fusion&, IrStorage& s) { s.requirements.emplace_back(SymbolId{0}, SymbolId{0}); }},
    {"requirement over united symbols", "the requirement",
     [](Fusion& f, IrStorage& s) {
       s.symbol_parent[f.symbol("fresh").index] = Extent(5);
       s.requirements.emplace_back(Extent(f.symbol("fresh")) * Extent(SymbolId{0}), 3);
     }},
};

class VerifyCorruption : public testing::TestWithParam<Corruption> {};

TEST_P(VerifyCorruption, IsNamed) {
  Fusion f = sample();
  verify(f);
  GetParam().apply(f, FusionTester::storage(f));
  const std::string message = message_of<InternalError>([&] { verify(f); });
  EXPECT_THAT(message, HasSubstr("the Fusion 'sample' is broken"));
  EXPECT_THAT(message, HasSubstr(GetParam().message));
}

INSTANTIATE_TEST_SUITE_P(All, VerifyCorruption, testing::ValuesIn(kCorruptions));

TEST(Verify, ChangesNothing) {
  const Fusion f = sample();
  const IrStorage& s = f.storage();
  const std::size_t symbols = s.symbols.size();
  const std::size_t vals = s.vals.size();
  verify(f);
  EXPECT_EQ(s.symbols.size(), symbols);
  EXPECT_EQ(s.vals.size(), vals);
}

}  // namespace
}  // namespace segfuse::ir
