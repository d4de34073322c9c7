#include "engine/numerics/examine.h"

#include <fmt/core.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>

#include "base/check.h"
#include "compiler/compile.h"
#include "engine/exec/semicrf_ops.h"
#include "engine/numerics/bounds.h"
#include "engine/numerics/cause.h"
#include "engine/numerics/part.h"
#include "engine/numerics/walk.h"
#include "ir/bind.h"
#include "segfuse/error.h"

namespace segfuse::engine::numerics {
namespace {

using compiler::GroupKind;
using compiler::SegmentedGroup;

std::vector<Tensor> clones(std::span<const Tensor> tensors) {
  std::vector<Tensor> all;
  for (const Tensor& tensor : tensors) all.push_back(tensor.clone());
  return all;
}

/// What is wrong with what a subject made of a program.
struct Mismatch {
  NumericsFault fault = NumericsFault::kError;
  std::size_t output = 0;
  std::int64_t element = -1;
  double found = 0;
  double other = 0;  ///< of another run; in double precision
  double bound = 0;
  std::string message;  ///< of kRefused
};

/// The first element whose bits differ; all NaN are one.
std::int64_t first_difference(const Tensor& a, const Tensor& b) {
  const auto* x = static_cast<const std::byte*>(a.data());
  const auto* y = static_cast<const std::byte*>(b.data());
  const std::size_t size = size_of(a.dtype());
  for (std::int64_t i = 0; i < a.size(); ++i) {
    const std::size_t at = static_cast<std::size_t>(i) * size;
    if (std::memcmp(x + at, y + at, size) == 0) continue;
    if (!std::isnan(a.at(i)) || !std::isnan(b.at(i))) return i;
  }
  return -1;
}

/// A program and what is given to it, ready to be run and judged.
struct Case {
  const ir::Fusion& fusion;
  std::span<const Tensor> inputs;
  std::vector<Judged> judged;  ///< of the outputs; empty: only runs are compared
};

class Runner {
 public:
  Runner(const Subject& subject, int runs) : subject_(subject), runs_(std::max(2, runs)) {}

  int runs() const { return runs_; }

  /// `first`, where it is asked for, gets the outputs of the first run.
  std::optional<Mismatch> look(const Case& c, std::vector<Tensor>* first = nullptr) const {
    std::vector<Tensor> former;
    std::optional<Mismatch> mismatch;
    for (int number = 0; number < runs_; ++number) {
      // One and all threads in turn; the last runs find other memory.
      const Trial trial{number, number % 2 == 0 ? 1 : 0, number >= (runs_ + 1) / 2};
      std::vector<Tensor> outputs;
      try {
        outputs = subject_(c.fusion, clones(c.inputs), trial);
      } catch (const Error& error) {
        return Mismatch{NumericsFault::kRefused, 0, -1, 0, 0, 0, error.what()};
      }
      if (number == 0) {
        former = std::move(outputs);
        if (first != nullptr) *first = former;
      } else if (!mismatch) {
        mismatch = compare(former, outputs, trial);
      }
    }
    if (mismatch || c.judged.empty()) return mismatch;
    for (std::size_t o = 0; o < former.size(); ++o) {
      const std::int64_t at = first_beyond(former[o], c.judged[o]);
      if (at >= 0)
        return Mismatch{NumericsFault::kError,    o, at, former[o].at(at), c.judged[o].value.at(at),
                        c.judged[o].error.at(at), ""};
    }
    return std::nullopt;
  }

 private:
  static std::optional<Mismatch> compare(const std::vector<Tensor>& former,
                                         const std::vector<Tensor>& outputs, const Trial& trial) {
    for (std::size_t o = 0; o < former.size(); ++o) {
      const std::int64_t at = first_difference(former[o], outputs[o]);
      if (at < 0) continue;
      const double before = former[o].at(at);
      const double now = outputs[o].at(at);
      const bool unwritten = trial.poison && (std::isnan(now) || !is_float(former[o].dtype()));
      return Mismatch{unwritten ? NumericsFault::kUnwritten : NumericsFault::kNondeterminism,
                      o,
                      at,
                      before,
                      now,
                      0,
                      ""};
    }
    return std::nullopt;
  }

  const Subject& subject_;
  int runs_;
};

std::string type_text(const ir::Fusion& fusion, ir::ValId val, const Tensor& tensor) {
  return fmt::format("{}{}", name_of(fusion.val(val).dtype), to_string(tensor.shape()));
}

/// What is in a tensor, in a few words.
std::string summary(const Tensor& tensor) {
  if (tensor.size() == 1) return number_text(tensor.at(0));
  double least = std::numeric_limits<double>::infinity();
  double most = -least;
  std::int64_t nan = 0;
  std::int64_t infinite = 0;
  for (std::int64_t i = 0; i < tensor.size(); ++i) {
    const double value = tensor.at(i);
    nan += std::isnan(value);
    infinite += std::isinf(value);
    if (!std::isfinite(value)) continue;
    least = std::min(least, value);
    most = std::max(most, value);
  }
  std::string text = least <= most ? fmt::format("{} to {}", least, most) : "nothing finite";
  if (nan > 0) text += fmt::format(", {} NaN", nan);
  if (infinite > 0) text += fmt::format(", {} infinite", infinite);
  return fmt::format("{} elements, {}", tensor.size(), text);
}

class Examination {
 public:
  Examination(const ir::Fusion& fusion, std::span<const Tensor> inputs, const Place& place,
              int runs)
      : source_(fusion),
        inputs_(inputs),
        place_(place),
        runner_(place.subject, runs),
        segmented_(compiler::CompiledFusion(fusion).segmented()) {
    for (const ir::ExprId id : compiled().live_exprs()) {
      position_.resize(std::max<std::size_t>(position_.size(), id.index + 1), 0);
      position_[id.index] = ++operations_;
    }
  }

  NumericsReport run() {
    look_at_program();
    look_at_groups();
    if (found_.empty()) look_at_whole();
    std::stable_sort(found_.begin(), found_.end(),
                     [](const auto& a, const auto& b) { return a.position < b.position; });
    NumericsReport report;
    report.name = source_.name();
    report.operations = operations_;
    report.groups = segmented_.size();
    report.device = place_.device;
    report.runs = runner_.runs();
    report.findings = std::move(found_);
    report.notes = std::move(notes_);
    return report;
  }

 private:
  const ir::Fusion& compiled() const { return segmented_.fusion(); }
  std::vector<Judged> judge_of(const ir::Fusion& fusion, std::span<const Tensor> inputs) const {
    return judge_all(fusion, inputs, reference_opaque_ops(), place_.functions);
  }

  // --- the program itself
  void look_at_program();
  void add_walk_fault(const WalkFault& fault, const std::vector<Tensor>& values);
  Part reader_of(ir::ValId input, const ir::Sizes& sizes) const;

  // --- what the subject makes of it
  void look_at_groups();
  bool look_at_group(const SegmentedGroup& group, const ir::Sizes& sizes);
  void look_at_whole();
  void add_mismatch(const Part& part, std::span<const Tensor> inputs, const Mismatch& mismatch,
                    ir::ExprId expr);
  bool blame_one(const SegmentedGroup& group, const Part& part, const std::vector<Judged>& judged,
                 const ir::Sizes& sizes);
  bool blame_prefix(const Part& part, const ir::Sizes& sizes);
  std::vector<Judged> judged_outputs(const Part& part, const std::vector<Judged>& all) const;

  // --- words
  void describe_group(ir::ExprId id, NumericsFinding& finding) const;
  void describe_operands(const ir::Fusion& fusion, ir::ExprId id, const std::vector<Tensor>& values,
                         std::int64_t element, NumericsFinding& finding) const;
  std::string program_text(Part part, std::vector<Tensor> inputs, std::int64_t element,
                           const NumericsFinding& finding) const;
  bool shows(const ir::Fusion& fusion, std::span<const Tensor> inputs, NumericsFault fault) const;

  const ir::Fusion& source_;
  std::span<const Tensor> inputs_;
  const Place& place_;
  Runner runner_;
  compiler::SegmentedFusion segmented_;
  std::size_t operations_ = 0;
  std::vector<std::size_t> position_;  // by ExprId of compiled(), from 1
  std::vector<Tensor> observed_;       // by ValId of compiled(): what the subject made
  std::vector<NumericsFinding> found_;
  std::vector<std::string> notes_;
};

// --- the program itself

void Examination::look_at_program() {
  Walk result = walk(source_, inputs_);
  if (result.fault) add_walk_fault(*result.fault, result.values);
}

/// The first operation that reads an input.
Part Examination::reader_of(ir::ValId input, const ir::Sizes& sizes) const {
  for (const ir::ExprId id : source_.live_exprs()) {
    const ir::Expr& expr = source_.expr(id);
    if (std::find(expr.operands.begin(), expr.operands.end(), input) != expr.operands.end())
      return cut_part(source_, sizes, std::vector{expr.results[0]}, [](ir::ValId) { return true; });
  }
  throw InternalError("an input that is at fault has no reader");
}

void Examination::add_walk_fault(const WalkFault& fault, const std::vector<Tensor>& values) {
  const ir::Sizes sizes = ir::bind_inputs(source_, inputs_);
  const std::vector<std::string> names = printed_names(source_);
  NumericsFinding finding;
  finding.fault = fault.fault;
  const Tensor& wrong = values[fault.val.index];
  if (fault.element >= 0) {
    finding.element = index_text(fault.element, wrong.shape());
    finding.found = number_text(fault.found);
  }
  if (!fault.expr.valid()) {
    std::string name;
    for (const ir::Input& input : source_.inputs())
      if (input.val == fault.val) name = input.name;
    finding.operation = "input";
    finding.statement = fmt::format("{} = input \"{}\" : {}", names[fault.val.index], name,
                                    type_text(source_, fault.val, wrong));
    finding.cause = cause_of(NumericsFault::kNaN, ir::Op::constant);
    const Part part = reader_of(fault.val, sizes);
    std::vector<Tensor> inputs;
    for (const ir::ValId input : part.inputs) inputs.push_back(values[input.index]);
    finding.sentence =
        fmt::format("input '{}' holds NaN at {}; {} reads it first", name, finding.element,
                    ir::info(source_.expr(part.exprs.back()).op).name);
    finding.program = program_text(part, inputs, fault.element, finding);
    found_.push_back(std::move(finding));
    return;
  }
  const ir::Expr& expr = source_.expr(fault.expr);
  finding.operation = ir::info(expr.op).name;
  finding.statement = statement(source_, fault.expr);
  const bool of_result =
      fault.fault == NumericsFault::kNaN || fault.fault == NumericsFault::kInfinity;
  describe_operands(source_, fault.expr, values, of_result ? fault.element : -1, finding);
  if (of_result) {
    std::vector<double> elements;
    if (ir::info(expr.op).op_class == ir::OpClass::kElementwise)
      for (const ir::ValId operand : expr.operands)
        elements.push_back(values[operand.index].at(fault.element));
    finding.cause = cause_of(expr.op, source_.val(fault.val).dtype,
                             fault.fault == NumericsFault::kNaN, elements);
    finding.sentence =
        fmt::format("{} gave {} at {}", finding.operation, finding.found, finding.element);
  } else {
    finding.cause = cause_of(fault.fault, expr.op);
    finding.sentence = fault.element >= 0
                           ? fmt::format("{}: {}, at {} of {}", finding.operation, fault.message,
                                         finding.element, names[fault.val.index])
                           : fmt::format("{} refused: {}", finding.operation, fault.message);
  }
  // Its place among the groups is found by going through the compiled program.
  const std::optional<WalkFault> there = walk(compiled(), inputs_).fault;
  if (there && there->expr.valid() && compiled().expr(there->expr).op == expr.op) {
    finding.position = position_[there->expr.index];
    describe_group(there->expr, finding);
  } else {
    finding.position = operations_ + 1;
    for (std::size_t i = 0; const ir::ExprId id : source_.live_exprs()) {
      ++i;
      if (id == fault.expr) finding.position = i;
    }
  }
  const Part part = cut_part(source_, sizes, std::vector{expr.results[0]}, [&](ir::ValId val) {
    return ir::info(source_.expr(source_.val(val).definition).op).op_class !=
           ir::OpClass::kCreation;
  });
  std::vector<Tensor> inputs;
  for (const ir::ValId input : part.inputs) inputs.push_back(values[input.index]);
  finding.program = program_text(part, inputs, of_result ? fault.element : -1, finding);
  found_.push_back(std::move(finding));
}

// --- what the subject makes of it

void Examination::look_at_groups() {
  const ir::Sizes sizes = ir::bind_inputs(compiled(), inputs_);
  observed_.assign(compiled().storage().vals.size(), Tensor());
  std::vector<bool> known(observed_.size(), false);
  for (std::size_t i = 0; i < inputs_.size(); ++i) {
    const ir::ValId val = compiled().inputs()[i].val;
    observed_[val.index] = inputs_[i];
  }
  for (const SegmentedGroup& group : segmented_.groups())
    if (!look_at_group(group, sizes)) {
      notes_.push_back(
          fmt::format("groups from {} of {} on were not run: their operands could not be computed",
                      group.id.index + 1, segmented_.size()));
      return;
    }
}

std::vector<Judged> Examination::judged_outputs(const Part& part,
                                                const std::vector<Judged>& all) const {
  std::vector<Judged> judged;
  for (const ir::ValId output : part.outputs) judged.push_back(all[part.made[output.index].index]);
  return judged;
}

/// Whether the groups that follow can be run.
bool Examination::look_at_group(const SegmentedGroup& group, const ir::Sizes& sizes) {
  const Part part = cut_part(compiled(), sizes, group.boundary.outputs, [&](ir::ValId val) {
    return std::binary_search(group.boundary.inputs.begin(), group.boundary.inputs.end(), val);
  });
  std::vector<Tensor> inputs;
  for (const ir::ValId input : part.inputs) inputs.push_back(observed_[input.index]);
  std::vector<Judged> judged;
  try {
    judged = judge_of(part.fusion, inputs);
  } catch (const Error&) {
    return false;  // the walk says why
  }
  std::vector<Tensor> outputs;
  const std::optional<Mismatch> mismatch =
      runner_.look({part.fusion, inputs, judged_outputs(part, judged)}, &outputs);
  if (mismatch && !blame_one(group, part, judged, sizes) && !blame_prefix(part, sizes)) {
    const ir::ValId output = part.outputs[mismatch->output];
    add_mismatch(part, inputs, *mismatch, compiled().val(output).definition);
  }
  if (outputs.empty()) return false;
  for (std::size_t o = 0; o < outputs.size(); ++o) observed_[part.outputs[o].index] = outputs[o];
  return true;
}

/// The first operation of a group that goes wrong by itself.
bool Examination::blame_one(const SegmentedGroup& group, const Part& part,
                            const std::vector<Judged>& judged, const ir::Sizes& sizes) {
  for (const ir::ExprId id : part.exprs) {
    if (std::find(group.exprs.begin(), group.exprs.end(), id) == group.exprs.end()) continue;
    std::vector<ir::ValId> results;
    for (const ir::ValId result : compiled().expr(id).results)
      if (!compiled().val(result).uses.empty() || compiled().is_output(result))
        results.push_back(result);
    const Part one = cut_part(compiled(), sizes, results, [&](ir::ValId val) {
      const ir::ExprId by = compiled().val(val).definition;
      return ir::info(compiled().expr(by).op).op_class != ir::OpClass::kCreation;
    });
    std::vector<Tensor> inputs;
    for (const ir::ValId input : one.inputs) {
      const Judged& value = judged[part.made[input.index].index];
      inputs.push_back(ir::narrow(value.value, compiled().val(input).dtype));
    }
    const std::vector<Judged> alone = judge_of(one.fusion, inputs);
    if (const auto mismatch = runner_.look({one.fusion, inputs, judged_outputs(one, alone)})) {
      add_mismatch(one, inputs, *mismatch, id);
      return true;
    }
  }
  return false;
}

/// The first operation of a group that goes wrong together with what comes before it.
bool Examination::blame_prefix(const Part& part, const ir::Sizes& sizes) {
  for (const ir::ExprId id : part.exprs) {
    const Part prefix = cut_part(
        compiled(), sizes, std::vector{compiled().expr(id).results[0]}, [&](ir::ValId val) {
          return std::find(part.inputs.begin(), part.inputs.end(), val) != part.inputs.end();
        });
    std::vector<Tensor> inputs;
    for (const ir::ValId input : prefix.inputs) inputs.push_back(observed_[input.index]);
    const std::vector<Judged> judged = judge_of(prefix.fusion, inputs);
    if (const auto mismatch =
            runner_.look({prefix.fusion, inputs, judged_outputs(prefix, judged)})) {
      add_mismatch(prefix, inputs, *mismatch, id);
      return true;
    }
  }
  return false;
}

/// Groups that are right one by one can be wrong together: memory that two of them share, an order
/// that is missing.
void Examination::look_at_whole() {
  const ir::Sizes sizes = ir::bind_inputs(compiled(), inputs_);
  std::vector<Judged> judged = judge_of(source_, inputs_);
  std::vector<Judged> outputs;
  for (const ir::Output& output : source_.outputs()) outputs.push_back(judged[output.val.index]);
  const auto whole = runner_.look({source_, inputs_, outputs});
  if (!whole) return;
  for (const SegmentedGroup& group : segmented_.groups()) {
    const Part part =
        cut_part(compiled(), sizes, group.boundary.outputs, [](ir::ValId) { return false; });
    std::vector<Tensor> inputs;
    for (const ir::ValId input : part.inputs) inputs.push_back(observed_[input.index]);
    const std::vector<Judged> all = judge_of(part.fusion, inputs);
    const auto mismatch = runner_.look({part.fusion, inputs, judged_outputs(part, all)});
    if (!mismatch) continue;
    const ir::ValId wrong = part.outputs[mismatch->output];
    return add_mismatch(part, inputs, *mismatch, compiled().val(wrong).definition);
  }
  NumericsFinding finding;
  finding.fault = whole->fault;
  finding.operation = "program";
  finding.statement = "all operations together";
  if (whole->element >= 0) {
    const ir::ValId output = source_.outputs()[whole->output].val;
    finding.element =
        index_text(whole->element, ir::bind_inputs(source_, inputs_).of(source_.val(output).shape));
    finding.found = number_text(whole->found);
    finding.expected = number_text(whole->other);
  }
  finding.sentence = fmt::format(
      "output {} of the program is wrong{}, but no first part of it is; the difference lies in its "
      "aliases or outputs",
      whole->output,
      finding.element.empty() ? std::string()
                              : fmt::format(" at {} ({} instead of {})", finding.element,
                                            finding.found, finding.expected));
  found_.push_back(std::move(finding));
}

void Examination::add_mismatch(const Part& part, std::span<const Tensor> inputs,
                               const Mismatch& mismatch, ir::ExprId expr) {
  NumericsFinding finding;
  finding.fault = mismatch.fault;
  finding.operation = ir::info(compiled().expr(expr).op).name;
  finding.statement = statement(compiled(), expr);
  finding.position = position_[expr.index];
  describe_group(expr, finding);
  finding.cause = cause_of(mismatch.fault, compiled().expr(expr).op);
  const Shape shape =
      part.fusion.outputs().empty()
          ? Shape{}
          : ir::bind_inputs(part.fusion, inputs)
                .of(part.fusion.val(part.fusion.outputs()[mismatch.output].val).shape);
  if (mismatch.element >= 0) {
    finding.element = index_text(mismatch.element, shape);
    finding.found = number_text(mismatch.found);
    finding.expected = number_text(mismatch.other);
  }
  switch (mismatch.fault) {
    case NumericsFault::kRefused:
      finding.sentence = fmt::format("{} refused: {}", finding.operation, mismatch.message);
      break;
    case NumericsFault::kError:
      finding.sentence = fmt::format(
          "{} gave {} at {}; in double precision it is {}, and the bound of the error is {:.3g}",
          finding.operation, finding.found, finding.element, finding.expected, mismatch.bound);
      break;
    case NumericsFault::kUnwritten:
      finding.sentence = fmt::format(
          "{} gave {} at {}, and {} where memory held NaN before: it reads memory that nothing "
          "wrote",
          finding.operation, finding.found, finding.element, finding.expected);
      break;
    default:
      finding.sentence =
          fmt::format("{} gave {} at {} in one run and {} in an equal one", finding.operation,
                      finding.found, finding.element, finding.expected);
  }
  std::vector<Tensor> values(compiled().storage().vals.size());
  try {
    const std::vector<Judged> judged = judge_of(part.fusion, inputs);
    for (const ir::ValId val : compiled().vals())
      if (part.made[val.index].valid())
        values[val.index] = judged[part.made[val.index].index].value;
  } catch (const Error&) {
    // Operands without values are left out.
  }
  describe_operands(compiled(), expr, values, mismatch.element, finding);
  finding.program = program_text(part, {inputs.begin(), inputs.end()}, mismatch.element, finding);
  found_.push_back(std::move(finding));
}

// --- words

void Examination::describe_group(ir::ExprId id, NumericsFinding& finding) const {
  const compiler::GroupId group = segmented_.group_of(id);
  if (!group.valid()) return;
  const GroupKind kind = segmented_.domain(group).kind;
  const std::size_t size = segmented_.groups()[group.index].exprs.size();
  finding.group = fmt::format("{} of {}, {} of {} operation{}", group.index + 1, segmented_.size(),
                              compiler::name_of(kind), size, size == 1 ? "" : "s");
  if (kind == GroupKind::kLibrary) {
    const ir::Op op = compiled().expr(id).op;
    const bool crf = op == ir::Op::semicrf_loss || op == ir::Op::semicrf_loss_grad;
    finding.kernel = crf                    ? "semicrf"
                     : op == ir::Op::matmul ? place_.products
                                            : std::string(ir::info(op).name);
  } else if (kind != GroupKind::kView) {
    finding.kernel = compiler::function_name(kind);
  }
}

void Examination::describe_operands(const ir::Fusion& fusion, ir::ExprId id,
                                    const std::vector<Tensor>& values, std::int64_t element,
                                    NumericsFinding& finding) const {
  const ir::Expr& expr = fusion.expr(id);
  const std::vector<std::string> names = printed_names(fusion);
  const bool each = ir::info(expr.op).op_class == ir::OpClass::kElementwise && element >= 0;
  for (const ir::ValId operand : expr.operands) {
    const Tensor& tensor = values[operand.index];
    std::string name = names[operand.index];
    for (const ir::Input& input : fusion.inputs())
      if (input.val == operand) name += fmt::format(" '{}'", input.name);
    name += " " + type_text(fusion, operand, tensor);
    const bool has = each && element < tensor.size();
    finding.operands.emplace_back(name, has ? number_text(tensor.at(element)) : summary(tensor));
  }
}

bool Examination::shows(const ir::Fusion& fusion, std::span<const Tensor> inputs,
                        NumericsFault fault) const {
  const std::optional<WalkFault> there = walk(fusion, inputs).fault;
  if (there) return there->fault == fault;
  const std::vector<Judged> all = judge_of(fusion, inputs);
  std::vector<Judged> outputs;
  for (const ir::Output& output : fusion.outputs()) outputs.push_back(all[output.val.index]);
  const std::optional<Mismatch> mismatch = runner_.look({fusion, inputs, outputs});
  return mismatch && mismatch->fault == fault;
}

/// The part with its inputs; of elementwise operations one element is enough, if it shows there.
std::string Examination::program_text(Part part, std::vector<Tensor> inputs, std::int64_t element,
                                      const NumericsFinding& finding) const {
  const auto exprs = part.fusion.live_exprs();
  const bool each =
      element >= 0 && std::all_of(exprs.begin(), exprs.end(), [&](ir::ExprId id) {
        return ir::info(part.fusion.expr(id).op).op_class == ir::OpClass::kElementwise;
      });
  if (each) {
    ir::Fusion small(part.fusion.name());
    std::vector<ir::ValId> made(part.fusion.storage().vals.size());
    std::vector<Tensor> elements;
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      const ir::Input& input = part.fusion.inputs()[i];
      made[input.val.index] = small.add_input(input.name, inputs[i].dtype(), {ir::Extent(1)});
      Tensor one(inputs[i].dtype(), {1});
      std::memcpy(one.data(),
                  static_cast<const std::byte*>(inputs[i].data()) +
                      static_cast<std::size_t>(element) * size_of(one.dtype()),
                  one.bytes());
      elements.push_back(one);
    }
    for (const ir::ExprId id : exprs) {
      std::vector<ir::ValId> operands;
      for (const ir::ValId operand : part.fusion.expr(id).operands)
        operands.push_back(made[operand.index]);
      made[part.fusion.result(id).index] = small.result(
          small.add_expr(part.fusion.expr(id).op, operands, part.fusion.expr(id).attrs));
    }
    for (const ir::Output& output : part.fusion.outputs())
      small.add_output(made[output.val.index], output.name);
    if (shows(small, elements, finding.fault)) {
      part.fusion = std::move(small);
      inputs = std::move(elements);
    }
  }
  return text_with_values(part.fusion, inputs,
                          {finding.sentence, "segfuse doctor numerics shows it with this file."});
}

}  // namespace

NumericsReport examine(const ir::Fusion& fusion, std::span<const Tensor> inputs, const Place& place,
                       int runs) {
  const auto begin = std::chrono::steady_clock::now();
  NumericsReport report = Examination(fusion, inputs, place, runs).run();
  report.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  return report;
}

}  // namespace segfuse::engine::numerics
