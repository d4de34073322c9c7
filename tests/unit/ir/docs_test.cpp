// docs/ir.md lists every operation as ops.def defines it.

#include <fmt/core.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <map>

#include "base/os/file.h"
#include "base/text.h"
#include "ir/rules/verify.h"
#include "ir/text.h"
#include "segfuse/error.h"
#include "support/source_dir.h"

namespace segfuse::ir {
namespace {

constexpr const char* kPath = SEGFUSE_SOURCE_DIR "/docs/ir.md";

std::string escaped(std::string_view text) {
  std::string out;
  for (const char c : text) out += c == '|' ? std::string("\\|") : std::string(1, c);
  return out;
}

std::string_view types_of(DTypeRule rule) {
  switch (rule) {
    case DTypeRule::kFloat: return "floats";
    case DTypeRule::kNumeric: return "floats, integers";
    case DTypeRule::kCompare: return "any → bool";
    case DTypeRule::kTest: return "floats → bool";
    case DTypeRule::kLogical: return "bool";
    case DTypeRule::kInteger: return "integers";
    case DTypeRule::kNone: break;
  }
  throw InternalError("an elementwise operation without a rule");
}

std::string elementwise_row(Op op, std::string_view operands, std::string_view formula,
                            std::string_view gradients) {
  return fmt::format("| {}({}) | {} | `{}` | {} |\n", info(op).name, operands,
                     types_of(info(op).rule), escaped(formula), escaped(gradients));
}

std::string gradient(std::string_view text) {
  return text == "none" ? "none" : fmt::format("`{}`", text);
}

std::string elementwise_table() {
  std::string table = "| operation | types | value | gradients |\n|---|---|---|---|\n";
#define SEGFUSE_UNARY(name, rule, domain, accuracy, extremes, instructions, formula, gradient_a) \
  table += elementwise_row(Op::name, "a", #formula, gradient(#gradient_a));
#define SEGFUSE_BINARY(name, rule, domain, accuracy, extremes, instructions, formula, gradient_a, \
                       gradient_b)                                                                \
  table += elementwise_row(Op::name, "a, b", #formula,                                            \
                           std::string_view(#gradient_a) == "none"                                \
                               ? "none"                                                           \
                               : gradient(#gradient_a) + ", " + gradient(#gradient_b));
#include "segfuse/ops.def"
  return table;
}

std::string_view class_name(OpClass op_class) {
  switch (op_class) {
    case OpClass::kElementwise: return "elementwise";
    case OpClass::kReduction: return "reduction";
    case OpClass::kMovement: return "movement";
    case OpClass::kCreation: return "creation";
    case OpClass::kOpaque: return "library";
  }
  throw InternalError("an operation without a class");
}

std::string operand_count(const OpInfo& op) {
  if (op.min_operands == op.max_operands) return std::to_string(op.min_operands);
  if (op.max_operands >= 1000) return fmt::format("{} or more", op.min_operands);
  return fmt::format("{} to {}", op.min_operands, op.max_operands);
}

std::string result_count(const OpInfo& op) {
  return op.max_results >= 1000 ? "1 or more" : std::to_string(op.max_results);
}

std::string attribute_list(const OpInfo& op) {
  static constexpr std::string_view kNames[] = {"whole", "wholes", "real",
                                                "dtype", "sizes",  "program"};
  std::string list;
  for (const AttrSpec& attr : op.attrs)
    list += fmt::format("{}`{}` {}", list.empty() ? "" : ", ", attr.name,
                        kNames[static_cast<std::size_t>(attr.type)]);
  return list;
}

/// The last column of a table, by the first.
std::map<std::string, std::string> meanings_in(std::string_view table) {
  std::map<std::string, std::string> meanings;
  for (const std::string_view line : split_lines(table)) {
    const std::vector<std::string_view> cells = split(line, '|');
    if (cells.size() == 8) meanings[std::string(trim(cells[1]))] = std::string(trim(cells[6]));
  }
  return meanings;
}

std::string other_table(const std::map<std::string, std::string>& meanings) {
  std::string table =
      "| operation | class | operands | results | attributes | meaning |\n"
      "|---|---|---|---|---|---|\n";
  for (const OpInfo& op : all_ops()) {
    if (op.rule != DTypeRule::kNone) continue;
    const auto meaning = meanings.find(std::string(op.name));
    EXPECT_TRUE(meaning != meanings.end() && !meaning->second.empty())
        << "say what '" << op.name << "' means in docs/ir.md";
    table += fmt::format("| {} | {} | {} | {} | {} | {} |\n", op.name, class_name(op.op_class),
                         operand_count(op), result_count(op), attribute_list(op),
                         meaning == meanings.end() ? "" : meaning->second);
  }
  return table;
}

/// The text between `<!-- name -->` and the next `<!-- end -->`.
std::pair<std::size_t, std::size_t> section(std::string_view text, std::string_view name) {
  const std::string mark = fmt::format("<!-- {} -->\n", name);
  const std::size_t begin = text.find(mark);
  if (begin == std::string_view::npos) throw DataError(fmt::format("{}: no {}", kPath, mark));
  return {begin + mark.size(), text.find("<!-- end -->", begin) - begin - mark.size()};
}

TEST(Docs, ListEveryOperation) {
  const std::string text = read_file(kPath);
  std::string expected = text;
  const auto [first, first_size] = section(expected, "elementwise");
  expected.replace(first, first_size, elementwise_table());
  const auto [second, second_size] = section(expected, "others");
  expected.replace(second, second_size,
                   other_table(meanings_in(expected.substr(second, second_size))));
  if (expected != text && std::getenv("SEGFUSE_UPDATE_GOLDEN")) {
    write_file_atomically(kPath, expected);
    return;
  }
  EXPECT_TRUE(text == expected) << "set SEGFUSE_UPDATE_GOLDEN=1 to rewrite the tables of " << kPath;
}

TEST(Docs, TheExampleIsAPrintedText) {
  const std::string text = read_file(kPath);
  const std::size_t begin = text.find("\nfusion \"") + 1;
  const std::string example = text.substr(begin, text.find("```", begin) - begin);
  const Fusion f = parse(example, kPath);
  verify(f);
  EXPECT_EQ(print(f), example);
}

}  // namespace
}  // namespace segfuse::ir
