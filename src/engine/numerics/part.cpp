#include "engine/numerics/part.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/text.h"
#include "ir/text.h"
#include "segfuse/error.h"

namespace segfuse::engine::numerics {
namespace {

constexpr std::string_view kMark = "#:";  // begins a comment that holds values
constexpr std::size_t kPerLine = 16;

ir::Extents numbers(const ir::Sizes& sizes, const ir::Extents& extents) {
  ir::Extents result;
  for (const std::int64_t size : sizes.of(extents)) result.emplace_back(size);
  return result;
}

ir::Attrs bound(const ir::Sizes& sizes, ir::Attrs attrs) {
  for (ir::Attr& attr : attrs)
    if (const auto* extents = std::get_if<ir::Extents>(&attr)) attr = numbers(sizes, *extents);
  return attrs;
}

/// The fewest digits that come back bit for bit; -0 keeps its sign.
std::string digits(const Tensor& tensor, std::int64_t i) {
  const double value = tensor.at(i);
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value > 0 ? "inf" : "-inf";
  if (tensor.dtype() == DType::kF32) return fmt::format("{}", static_cast<float>(value));
  if (tensor.dtype() == DType::kI64)
    return std::to_string(tensor.span<std::int64_t>()[static_cast<std::size_t>(i)]);
  return fmt::format("{}", value);
}

/// "#: x = 0.5 0.25*3 inf": elements in row-major order, repeated ones with their number.
void append_values(std::string& text, const std::string& name, const Tensor& tensor) {
  std::size_t written = 0;
  for (std::int64_t i = 0; i < tensor.size();) {
    const std::string value = digits(tensor, i);
    std::int64_t next = i + 1;
    while (next < tensor.size() && digits(tensor, next) == value) ++next;
    if (written++ % kPerLine == 0) text += fmt::format("\n{} {} =", kMark, name);
    text += next - i > 1 ? fmt::format(" {}*{}", value, next - i) : " " + value;
    i = next;
  }
}

double parse_element(std::string_view word, std::string_view source, std::size_t line) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  if (word == "nan") return std::numeric_limits<double>::quiet_NaN();
  if (word == "inf") return kInfinity;
  if (word == "-inf") return -kInfinity;
  if (const auto value = parse_double(word)) return *value;
  throw DataError(
      fmt::format("{}:{}: found '{}' among the values, expected a number", source, line, word));
}

}  // namespace

Part cut_part(const ir::Fusion& source, const ir::Sizes& sizes, std::span<const ir::ValId> outputs,
              const std::function<bool(ir::ValId)>& given) {
  std::vector<bool> wanted(source.storage().exprs.size(), false);
  std::vector<bool> read(source.storage().vals.size(), false);
  std::vector<ir::ExprId> open;
  auto need = [&](ir::ValId val, bool computed) {
    const ir::ExprId definition = source.val(val).definition;
    if (!definition.valid() || (!computed && given(val))) {
      read[val.index] = true;
    } else if (!wanted[definition.index]) {
      wanted[definition.index] = true;
      open.push_back(definition);
    }
  };
  for (const ir::ValId output : outputs) need(output, true);
  while (!open.empty()) {
    const ir::ExprId id = open.back();
    open.pop_back();
    for (const ir::ValId operand : source.expr(id).operands) need(operand, false);
  }

  Part part{ir::Fusion(source.name()), {}, {outputs.begin(), outputs.end()}, {}, {}};
  const std::vector<std::string> names = printed_names(source);
  std::vector<ir::ValId> made(source.storage().vals.size());
  for (const ir::ValId val : source.vals()) {
    if (!read[val.index]) continue;
    std::string name = "v" + names[val.index].substr(1);
    for (const ir::Input& input : source.inputs())
      if (input.val == val) name = input.name;
    made[val.index] =
        part.fusion.add_input(name, source.val(val).dtype, numbers(sizes, source.val(val).shape));
    part.inputs.push_back(val);
  }
  for (const ir::ExprId id : source.sorted_exprs()) {
    if (!wanted[id.index]) continue;
    const ir::Expr& expr = source.expr(id);
    part.exprs.push_back(id);
    std::vector<ir::ValId> operands;
    for (const ir::ValId operand : expr.operands) operands.push_back(made[operand.index]);
    if (expr.op == ir::Op::constant) {
      made[expr.results[0].index] =
          part.fusion.constant(source.attr<double>(id, "value"), source.attr<DType>(id, "dtype"));
      continue;
    }
    const ir::ExprId copy =
        part.fusion.add_expr(expr.op, std::move(operands), bound(sizes, expr.attrs));
    // A value that is given, although its expression is here for another result, stays given.
    for (std::size_t i = 0; i < expr.results.size(); ++i)
      if (!read[expr.results[i].index]) made[expr.results[i].index] = part.fusion.result(copy, i);
  }
  for (const ir::ValId output : outputs)
    part.fusion.add_output(made[output.index], "v" + names[output.index].substr(1));
  part.made = std::move(made);
  return part;
}

std::vector<std::string> printed_names(const ir::Fusion& fusion) {
  std::vector<std::string> names(fusion.storage().vals.size());
  std::size_t next = 0;
  for (const ir::Input& input : fusion.inputs())
    names[input.val.index] = fmt::format("%{}", next++);
  for (const ir::ExprId id : fusion.sorted_exprs())
    for (const ir::ValId result : fusion.expr(id).results)
      names[result.index] = fmt::format("%{}", next++);
  return names;
}

std::string statement(const ir::Fusion& fusion, ir::ExprId id) {
  const std::string first = printed_names(fusion)[fusion.expr(id).results[0].index];
  const std::string text = ir::print(fusion);
  for (const std::string_view line : split_lines(text)) {
    const std::string_view words = trim(line);
    if (words.starts_with(first + " =") || words.starts_with(first + ","))
      return std::string(words);
  }
  return first;
}

std::string text_with_values(const ir::Fusion& fusion, std::span<const Tensor> inputs,
                             const std::vector<std::string>& comments) {
  std::string text;
  for (const std::string& comment : comments) text += fmt::format("# {}\n", comment);
  text += ir::print(fusion);
  for (std::size_t i = 0; i < inputs.size(); ++i)
    append_values(text, fusion.inputs()[i].name, inputs[i]);
  return text + "\n";
}

std::vector<GivenValues> read_values(std::string_view text, std::string_view source) {
  std::vector<GivenValues> all;
  std::size_t number = 0;
  for (const std::string_view full : split_lines(text)) {
    ++number;
    const std::string_view line = trim(full);
    if (const std::size_t at = line.find(kMark);
        at != 0 && at != std::string_view::npos && line.find('#') == at &&
        std::count(line.begin(), line.begin() + static_cast<std::ptrdiff_t>(at), '"') % 2 == 0)
      throw DataError(
          fmt::format("{}:{}: values were found after '{}'; expected them on a line of their own",
                      source, number, trim(line.substr(0, at))));
    if (!line.starts_with(kMark)) continue;
    const std::string_view rest = line.substr(kMark.size());
    const std::size_t equals = rest.rfind(" =");
    if (equals == std::string_view::npos)
      throw DataError(fmt::format(
          "{}:{}: values were found without a name, expected '#: NAME = VALUES'", source, number));
    const std::string name(trim(rest.substr(0, equals)));
    if (all.empty() || all.back().input != name) all.push_back({name, {}});
    for (const Field& field : split_fields(rest.substr(equals + 2))) {
      const std::size_t star = field.text.find('*');
      std::int64_t count = 1;
      if (star != std::string_view::npos) {
        const auto times = parse_int(field.text.substr(star + 1));
        if (!times || *times < 1 || *times > (std::int64_t{1} << 40))
          throw DataError(fmt::format("{}:{}: found '{}' among the values, expected VALUE*NUMBER",
                                      source, number, field.text));
        count = *times;
      }
      all.back().elements.insert(all.back().elements.end(), static_cast<std::size_t>(count),
                                 parse_element(field.text.substr(0, star), source, number));
    }
  }
  return all;
}

}  // namespace segfuse::engine::numerics
