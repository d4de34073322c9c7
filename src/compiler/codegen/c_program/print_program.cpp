#include "compiler/codegen/c_program/print_program.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>
#include <map>
#include <set>

#include "compiler/codegen/c_program/library.h"
#include "compiler/codegen/c_program/memory.h"
#include "compiler/codegen/c_program/sizes.h"
#include "compiler/codegen/cpu/c_writer.h"
#include "compiler/codegen/cpu/prelude.h"
#include "compiler/codegen/cpu/print_c.h"
#include "segfuse/error.h"

namespace segfuse::compiler::cpu {

using ir::ValId;

namespace {

/// Words of C++, names that the text declares, and functions of the C library that a program could
/// meet.
constexpr const char* kTaken[] = {"and",       "bitand",
                                  "bitor",     "catch",
                                  "class",     "compl",
                                  "delete",    "explicit",
                                  "export",    "friend",
                                  "main",      "mutable",
                                  "new",       "namespace",
                                  "not",       "operator",
                                  "or",        "private",
                                  "protected", "public",
                                  "this",      "template",
                                  "throw",     "try",
                                  "typeid",    "typename",
                                  "using",     "virtual",
                                  "xor",       "NULL",
                                  "n",         "w",
                                  "bad",       "code",
                                  "bytes",     "workspace",
                                  "memcpy",    "workspace_bytes",
                                  "accept",    "access",
                                  "atan2",     "bind",
                                  "bsearch",   "calloc",
                                  "clock",     "close",
                                  "connect",   "div",
                                  "exit",      "fork",
                                  "free",      "fmod",
                                  "gamma",     "index",
                                  "link",      "listen",
                                  "malloc",    "mktime",
                                  "open",      "pause",
                                  "perror",    "pipe",
                                  "printf",    "puts",
                                  "qsort",     "rand",
                                  "random",    "read",
                                  "realloc",   "recv",
                                  "remove",    "rename",
                                  "scalb",     "select",
                                  "send",      "signal",
                                  "sleep",     "socket",
                                  "srand",     "stat",
                                  "sync",      "system",
                                  "time",      "times",
                                  "wait",      "write"};

struct Code {
  const char* name;
  const char* message;
};
/// By value.
constexpr Code kCodes[] = {
    {"OK", "no error"},
    {"BAD_SIZE", "a size is negative, too large, or does not fit the others"},
    {"MISSING_ARRAY", "a pointer is NULL"},
    {"SMALL_WORKSPACE", "the workspace has fewer bytes than needed"},
    {"BAD_INDEX", "an index is out of range; what was written may be anything"}};

/// For a comment that ends with its line.
std::string one_line(std::string_view text) {
  std::string clean;
  for (const char c : text)
    clean += static_cast<unsigned char>(c) < ' ' || c == '\\' || c == 127 ? ' ' : c;
  return clean;
}

std::string upper(std::string text) {
  for (char& c : text) c = static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  return text;
}

class Printer {
 public:
  Printer(const ir::Fusion& source, const ir::Fusion& fusion, std::span<const ProgramGroup> groups,
          std::span<const ir::Alias> in_place, std::string_view name)
      : source_(source),
        fusion_(fusion),
        groups_(groups),
        function_(function_name(name)),
        memory_(fusion, groups, in_place),
        sizes_(fusion, symbol_names()),
        library_(fusion, sizes_) {
    for (const ir::Input& input : fusion.inputs())
      inputs_.push_back(c_identifier(input.name, taken_));
    for (std::size_t i = 0; i < fusion.outputs().size(); ++i)
      outputs_.push_back(!memory_.is_parameter(i) ? "" : c_identifier(output_name(i), taken_));
  }

  CProgram run() {
    sizes_.check_program(source_);
    offsets_ = memory_.offsets(sizes_);
    const std::string steps = all_steps();
    const std::string driver = driver_text(steps);
    CProgram program{function_, header(), ""};
    program.source = program.header + "\n#include <string.h>\n\n" +
                     prelude_for(kernels_ + library_.functions()) + kernels_ +
                     library_.functions() + size_text() + workspace_text() + driver +
                     message_text();
    return program;
  }

 private:
  std::string function_name(std::string_view wanted) {
    taken_ = c_reserved_words();
    taken_.insert(std::begin(kTaken), std::end(kTaken));
    for (const ir::OpInfo& op : ir::all_ops()) taken_.insert(std::string(op.name));
    const std::string name(wanted.empty() ? std::string_view(fusion_.name()) : wanted);
    if (!wanted.empty()) {
      std::set<std::string> others = taken_;
      if (c_identifier(name, others) != name)
        throw UsageError(
            fmt::format("a function in C cannot be called '{}'; give it another name", name));
    }
    return c_identifier(taken_.contains(name) ? "fused_" + name : name, taken_);
  }

  std::vector<std::string> symbol_names() {
    std::vector<std::string> names(fusion_.storage().symbols.size());
    auto note = [&](auto& self, const ir::Extent& size) -> void {
      for (const ir::SymbolId id : fusion_.canonical(size).symbols()) {
        const ir::Symbol& symbol = fusion_.storage().symbols[id.index];
        if (symbol.derived) {
          self(self, symbol.derived->numerator);
        } else if (names[id.index].empty()) {
          names[id.index] = "?";
        }
      }
    };
    for (const ir::Input& input : fusion_.inputs())
      for (const ir::Extent& size : fusion_.val(input.val).shape) note(note, size);
    for (const ir::Fusion* const program : {&source_, &fusion_})
      for (const ir::ExprId id : program->live_exprs()) {
        const ir::Expr& e = program->expr(id);
        for (const ValId result : e.results)
          for (const ir::Extent& size : program->val(result).shape) note(note, size);
        for (const auto& attr : e.attrs)
          if (const auto* all = std::get_if<ir::Extents>(&attr))
            for (const ir::Extent& size : *all) note(note, size);
      }
    for (const auto& [left, right] : fusion_.storage().requirements) {
      note(note, left);
      note(note, right);
    }
    for (std::size_t i = 0; i < names.size(); ++i)
      if (!names[i].empty()) {
        names[i] = c_identifier(fusion_.storage().symbols[i].name, taken_);
        symbols_.push_back(names[i]);
      }
    return names;
  }

  std::string output_name(std::size_t i) const {
    const std::string& name = fusion_.outputs()[i].name;
    return name.empty() ? fmt::format("result{}", i) : name;
  }

  /// "int64_t B, const float *x, ...", and what the parameters are.
  std::vector<std::string> size_parameters() const {
    std::vector<std::string> all;
    for (const std::string& name : symbols_) all.push_back("int64_t " + name);
    return all;
  }
  std::vector<std::string> parameters() const {
    std::vector<std::string> all = size_parameters();
    for (std::size_t i = 0; i < inputs_.size(); ++i)
      all.push_back(fmt::format("{}{} *{}", memory_.overwritten(i) ? "" : "const ",
                                element_type(fusion_.val(fusion_.inputs()[i].val).dtype),
                                inputs_[i]));
    for (std::size_t i = 0; i < outputs_.size(); ++i)
      if (!outputs_[i].empty())
        all.push_back(fmt::format(
            "{} *{}", element_type(fusion_.val(fusion_.outputs()[i].val).dtype), outputs_[i]));
    all.push_back("void *workspace");
    all.push_back("size_t workspace_bytes");
    return all;
  }

  /// A function's head, broken between parameters.
  static std::string head(const std::string& begin, const std::vector<std::string>& parameters) {
    std::string text = begin + "(";
    const std::string indent(text.size(), ' ');
    std::size_t column = text.size();
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      const std::string next = parameters[i] + (i + 1 < parameters.size() ? "," : ")");
      if (i > 0) {
        const bool fits = column + next.size() < 98;
        text += fits ? " " : "\n" + indent;
        column = fits ? column + 1 : indent.size();
      }
      text += next;
      column += next.size();
    }
    return text;
  }
  std::string run_head() const { return head("int " + function_, parameters()); }
  std::string workspace_head() const {
    std::vector<std::string> all = size_parameters();
    all.push_back("size_t *bytes");
    return head("int " + function_ + "_workspace", all);
  }
  std::string code(std::string_view name) const {
    return upper(function_) + "_" + std::string(name);
  }

  std::string header() const;
  std::string describe_values() const;
  std::string size_text() const;
  std::string workspace_text() const;
  std::string message_text() const;
  std::string driver_text(const std::string& steps);
  std::string all_steps();
  std::string step(std::size_t group);
  std::string kernel_call(std::size_t group, const GroupKernel& kernel);
  std::string kernel_name(const loop::Kernel& kernel);
  std::string pointer(const Location& location) const;
  std::string pointer(ValId val) const { return pointer(memory_.location(val)); }
  std::string copies_of_inputs();
  std::string copies_at_the_end();
  std::string copy(const std::string& to, ValId from);

  const ir::Fusion& source_;
  const ir::Fusion& fusion_;
  std::span<const ProgramGroup> groups_;
  std::set<std::string> taken_;
  std::string function_;
  std::vector<std::string> symbols_;  // parameters
  ProgramMemory memory_;
  SizeTable sizes_;
  LibraryLoops library_;
  std::vector<std::string> inputs_, outputs_;        // parameters; empty for an output without one
  std::vector<std::string> offsets_;                 // of slots, then the end
  std::map<std::string, std::string> kernel_names_;  // by text under one name
  std::string kernels_;
  std::string scratch_bytes_ = "0";  // of row buffers, behind all slots
};

std::string Printer::describe_values() const {
  std::string text;
  auto line = [&](const std::string& name, ValId val, std::string_view more) {
    const ir::Val& v = fusion_.val(val);
    const std::string type = std::string(name_of(v.dtype)) + fusion_.to_string(v.shape);
    text += one_line(fmt::format("//   {:<12} {}{}", name, type, more)) + "\n";
  };
  for (std::size_t i = 0; i < inputs_.size(); ++i)
    line(inputs_[i], fusion_.inputs()[i].val,
         memory_.overwritten(i) ? ", read and overwritten" : ", read");
  for (std::size_t i = 0; i < outputs_.size(); ++i)
    if (!outputs_[i].empty()) line(outputs_[i], fusion_.outputs()[i].val, ", written");
  return text;
}

std::string Printer::header() const {
  const std::string guard = "SEGFUSE_" + upper(function_) + "_H";
  std::string text =
      one_line(fmt::format("// The program '{}' in C, written by segfuse.", fusion_.name())) + "\n";
  text +=
      "// C11 (the header C++ too); it needs memcpy, and libm for sin, cos and pow of f64, "
      "fmod and atan2.\n//\n";
  text += describe_values();
  if (!symbols_.empty())
    text += fmt::format("//   {:<12} sizes, from 0 on\n", fmt::join(symbols_, ", "));
  text += fmt::format(
      "//\n// Arrays are row-major without gaps; one that is written overlaps no other one, and "
      "one\n"
      "// without elements may be NULL. f16 and bf16 are their bits; a bool is a byte, 0 or 1.\n"
      "// `workspace` is any memory of at least as many bytes as {}_workspace() says\n"
      "// for the same sizes. It holds nothing between calls. Nothing else is kept: calls with "
      "other\n"
      "// workspaces may run at the same time.\n",
      function_);
  text += fmt::format("#ifndef {0}\n#define {0}\n\n#include <stddef.h>\n#include <stdint.h>\n\n",
                      guard);
  text += "#ifdef __cplusplus\nextern \"C\" {\n#endif\n\n";
  text += "enum {\n";
  for (const Code& one : kCodes)
    text += fmt::format("  {} = {},  // {}\n", code(one.name), &one - kCodes, one.message);
  text += "};\n\n";
  text += fmt::format(
      "// Bytes of workspace for these sizes. {} or {}.\n{};\n"
      "// Runs the program; one of the codes above.\n{};\n"
      "// A sentence about a code.\nconst char *{}_message(int code);\n\n",
      code("OK"), code("BAD_SIZE"), workspace_head(), run_head(), function_);
  return text + "#ifdef __cplusplus\n}\n#endif\n\n#endif\n";
}

std::string Printer::pointer(const Location& location) const {
  switch (location.kind) {
    case Location::Kind::kInput: return inputs_[location.index];
    case Location::Kind::kOutput: return outputs_[location.index];
    default:
      return offsets_[location.index] == "0"
                 ? "(void *)w"
                 : fmt::format("(void *)(w + {})", offsets_[location.index]);
  }
}

/// Equal kernels have one function.
std::string Printer::kernel_name(const loop::Kernel& kernel) {
  std::string& name = kernel_names_[print_c_function(kernel, "sf_kernel")];
  if (name.empty()) {
    name = fmt::format("sf_{}_{}", kernel.name, kernel_names_.size() - 1);
    kernels_ += print_c_function(kernel, name) + "\n";
  }
  return name;
}

std::string Printer::kernel_call(std::size_t group, const GroupKernel& kernel) {
  std::vector<std::string> buffers;
  for (const Operand& operand : kernel.operands) {
    const std::string memory =
        operand.val.valid()
            ? pointer(operand.val)
            : pointer({Location::Kind::kSlot, memory_.workspace(group, operand.workspace)});
    buffers.push_back(memory.starts_with("(void *)") ? memory : "(void *)" + memory);
  }
  buffers.emplace_back("&status");
  std::vector<std::string> sizes;
  for (const ir::Extent& size : kernel.kernel.sizes()) sizes.push_back(sizes_.of(size));
  std::string scratch = "0";
  for (const loop::KernelBuffer& buffer : kernel.kernel.buffers)
    if (buffer.kind == loop::KernelBuffer::Kind::kRow)
      scratch = sizes_.sum(scratch,
                           sizes_.rounded(sizes_.bytes(sizes_.of(buffer.elements), buffer.dtype)));
  scratch_bytes_ = sizes_.greater(scratch_bytes_, scratch);
  const std::string name = kernel_name(kernel.kernel);
  std::string text =
      fmt::format("  {{\n    void *const buffers[] = {{{}}};\n", fmt::join(buffers, ", "));
  if (!sizes.empty())
    text += fmt::format("    const int64_t sizes[] = {{{}}};\n", fmt::join(sizes, ", "));
  return text + fmt::format("    {}(buffers, {}, 0, {}, {});\n  }}\n", name,
                            sizes.empty() ? "NULL" : "sizes", sizes_.of(kernel.kernel.outer_count),
                            scratch == "0" ? "NULL" : fmt::format("w + {}", offsets_.back()));
}

std::string Printer::step(std::size_t number) {
  const ProgramGroup& group = groups_[number];
  if (group.kind == GroupKind::kView) return "";
  std::string text = fmt::format("  // Group {}: {} of {} operations.\n", number,
                                 name_of(group.kind), group.group.exprs.size());
  if (group.kind == GroupKind::kLibrary) {
    for (const ir::ExprId id : group.group.exprs)
      text += fmt::format(
          "  {}\n", library_.call(id, [&](ValId val) -> std::string { return pointer(val); }));
    return text;
  }
  for (const GroupKernel& kernel : group.lowered.kernels) text += kernel_call(number, kernel);
  return text;
}

std::string Printer::copy(const std::string& to, ValId from) {
  const ir::Val& val = fusion_.val(from);
  const std::string bytes = sizes_.bytes(sizes_.elements(val.shape), val.dtype);
  const std::string memory = pointer(from);
  if (memory == to) return "";
  return fmt::format("  if ({0} > 0) memcpy({1}, {2}, (size_t){0});\n", bytes, to, memory);
}

/// Outputs that are inputs in another shape, before anything overwrites those.
std::string Printer::copies_of_inputs() {
  std::string text;
  for (std::size_t i = 0; i < outputs_.size(); ++i) {
    const ValId made = memory_.root(fusion_.outputs()[i].val);
    if (!outputs_[i].empty() && fusion_.is_input(made))
      text += copy(outputs_[i], fusion_.outputs()[i].val);
  }
  return text;
}

/// Values that are several outputs, or have to be where an input is.
std::string Printer::copies_at_the_end() {
  std::string text;
  for (std::size_t i = 0; i < outputs_.size(); ++i) {
    const ValId val = fusion_.outputs()[i].val;
    if (!outputs_[i].empty() && !fusion_.is_input(memory_.root(val)))
      text += copy(outputs_[i], val);
  }
  for (const ir::Alias& alias : fusion_.aliases())
    text += copy(pointer(Location{Location::Kind::kInput, memory_.location(alias.input).index}),
                 alias.output);
  return text;
}

std::string Printer::all_steps() {
  std::string text = copies_of_inputs();
  for (std::size_t g = 0; g < groups_.size(); ++g) text += step(g);
  return text + copies_at_the_end();
}

std::string Printer::driver_text(const std::string& steps) {
  std::string missing;
  auto need = [&](const std::string& name, ValId val) {
    const std::string elements = sizes_.elements(fusion_.val(val).shape);
    if (elements == "0") return;
    missing += (missing.empty() ? "" : " ||\n      ") +
               (elements.find('[') == elements.npos &&
                        !std::isalpha(static_cast<unsigned char>(elements[0]))
                    ? fmt::format("{} == NULL", name)
                    : fmt::format("({} == NULL && {} > 0)", name, elements));
  };
  for (std::size_t i = 0; i < inputs_.size(); ++i) need(inputs_[i], fusion_.inputs()[i].val);
  for (std::size_t i = 0; i < outputs_.size(); ++i)
    if (!outputs_[i].empty()) need(outputs_[i], fusion_.outputs()[i].val);
  offsets_.push_back(sizes_.sum(offsets_.back(), scratch_bytes_));
  const std::string total = offsets_.back();
  std::string text = fmt::format("{} {{\n  int64_t n[{}];\n  int32_t status = 0;\n", run_head(),
                                 sizes_.count() + 1);
  std::string given;
  for (const std::string& name : symbols_) given += name + ", ";
  text += fmt::format("  if (sf_sizes({}n)) return {};\n", given, code("BAD_SIZE"));
  if (!missing.empty())
    text += fmt::format("  if ({})\n    return {};\n", missing, code("MISSING_ARRAY"));
  if (total != "0")
    text += fmt::format(
        "  if ({0} > 0 && (workspace == NULL || workspace_bytes < (size_t){0} + 63))\n    return "
        "{1};\n  // At a multiple of 64 bytes.\n"
        "  char *const w = (char *)workspace + (64 - (uintptr_t)workspace % 64) % 64;\n",
        total, code("SMALL_WORKSPACE"));
  else
    text += "  (void)workspace;\n  (void)workspace_bytes;\n";
  return text + steps +
         fmt::format("  return status == 0 ? {} : {};\n}}\n\n", code("OK"), code("BAD_INDEX"));
}

std::string Printer::size_text() const {
  std::vector<std::string> all = size_parameters();
  all.emplace_back("int64_t *n");
  const std::string body = sizes_.text();
  return size_functions(body) +
         fmt::format(
             "// Sizes, bytes and offsets; 1 if the sizes are impossible.\n{} {{\n{}{}}}\n\n",
             head("static int sf_sizes", all), sizes_.count() == 0 ? "  (void)n;\n" : "", body);
}

std::string Printer::workspace_text() const {
  const std::string& total = offsets_.back();
  std::string given;
  for (const std::string& name : symbols_) given += name + ", ";
  std::string text = fmt::format(
      "{} {{\n  int64_t n[{}];\n  if (bytes == NULL) return {};\n  *bytes = 0;\n"
      "  if (sf_sizes({}n)) return {};\n",
      workspace_head(), sizes_.count() + 1, code("MISSING_ARRAY"), given, code("BAD_SIZE"));
  if (total != "0")
    text += fmt::format(
        "  if ((uint64_t){0} > SIZE_MAX - 63) return {1};\n"
        "  *bytes = {0} > 0 ? (size_t){0} + 63 : 0;\n",
        total, code("BAD_SIZE"));
  return text + fmt::format("  return {};\n}}\n\n", code("OK"));
}

std::string Printer::message_text() const {
  std::string text =
      fmt::format("const char *{}_message(int code) {{\n  switch (code) {{\n", function_);
  for (const Code& one : kCodes)
    text += fmt::format("    case {}: return \"{}\";\n", code(one.name), one.message);
  return text + "    default: return \"no code of this program\";\n  }\n}\n";
}

}  // namespace

CProgram print_program(const ir::Fusion& source, const ir::Fusion& fusion,
                       std::span<const ProgramGroup> groups, std::span<const ir::Alias> in_place,
                       std::string_view name) {
  return Printer(source, fusion, groups, in_place, name).run();
}

}  // namespace segfuse::compiler::cpu
