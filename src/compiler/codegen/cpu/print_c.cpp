#include "compiler/codegen/cpu/print_c.h"

#include <fmt/core.h>

#include <algorithm>

#include "compiler/codegen/cpu/c_statements.h"
#include "compiler/codegen/cpu/prelude.h"

namespace segfuse::compiler::cpu {

using namespace loop;

namespace {

bool has_word(std::string_view text, std::string_view word) {
  for (std::size_t at = text.find(word); at != text.npos; at = text.find(word, at + 1)) {
    const bool begins = at == 0 || !is_word(text[at - 1]);
    const std::size_t end = at + word.size();
    if (begins && (end == text.size() || !is_word(text[end]))) return true;
  }
  return false;
}

std::string size_name(const Kernel& kernel, const ir::Extent& size) {
  return size.to_string([&](ir::SymbolId symbol) { return kernel.symbols.at(symbol.index); });
}

constexpr const char* kKinds[] = {"input", "output", "in and out", "row"};

/// Declarations of the buffers and sizes that `body` uses.
class Declarations {
 public:
  Declarations(const Kernel& kernel, const CNames& names, const std::string& body)
      : kernel_(kernel), names_(names), body_(body) {}

  std::string text() {
    int position = 0;
    for (std::uint32_t i = 0; i < kernel_.buffers.size(); ++i) {
      const KernelBuffer& buffer = kernel_.buffers[i];
      if (buffer.kind == KernelBuffer::Kind::kRow) {
        row(buffer, names_.buffer({i}));
      } else {
        global(buffer, names_.buffer({i}), position++);
      }
    }
    if (has_word(body_, "status"))
      globals_ += fmt::format("  int32_t *const status = (int32_t *)buffers[{}];\n", position);
    std::string sizes;
    const std::string used = body_ + rows_;
    const std::vector<ir::Extent> all = kernel_.sizes();
    for (std::size_t i = 0; i < all.size(); ++i)
      if (has_word(used, fmt::format("n{}", i)))
        sizes += fmt::format("  const int64_t n{} = sizes[{}];  // {}\n", i, i,
                             size_name(kernel_, all[i]));
    if (!rows_.empty()) sizes += "  char *row_memory = (char *)scratch;\n";
    std::string unused;
    if (globals_.empty()) unused += " (void)buffers;";
    if (sizes.find("sizes[") == sizes.npos) unused += " (void)sizes;";
    if (rows_.empty()) unused += " (void)scratch;";
    return globals_ + sizes + rows_ + (unused.empty() ? "" : " " + unused + "\n");
  }

 private:
  void global(const KernelBuffer& buffer, const std::string& name, int position) {
    if (!has_word(body_, name)) return;
    const std::string type =
        std::string(buffer.kind == KernelBuffer::Kind::kInput ? "const " : "") +
        std::string(element_type(buffer.dtype)) + " *";
    globals_ +=
        fmt::format("  {}const {} = ({})buffers[{}];  // {} {}\n", type, name, type, position,
                    kKinds[static_cast<int>(buffer.kind)], segfuse::name_of(buffer.dtype));
  }

  /// Row buffers follow one another, each at a multiple of 64 bytes.
  void row(const KernelBuffer& buffer, const std::string& name) {
    const std::string_view type = element_type(buffer.dtype);
    rows_ += fmt::format("  {} *const {} = ({} *)row_memory;  // row {}\n", type, name, type,
                         segfuse::name_of(buffer.dtype));
    rows_ += fmt::format("  row_memory += ({} * {} + 63) / 64 * 64;\n",
                         names_.size(buffer.elements), size_of(buffer.dtype));
    if (!has_word(body_, name)) rows_ += fmt::format("  (void){};\n", name);
  }

  const Kernel& kernel_;
  const CNames& names_;
  const std::string& body_;
  std::string globals_, rows_;
};

std::string function(const Kernel& kernel, std::string_view linkage = "") {
  const Varying varying(kernel);
  const CNames names(kernel, varying);
  const std::string body = CStatements(kernel, varying, names).outer_loop();
  std::string text = fmt::format("// Kernel {}", kernel.name);
  const std::string schedule = to_string(kernel.schedule);
  text += schedule.empty() ? ".\n" : ": " + schedule + ".\n";
  text += fmt::format(
      "{}void {}(void *const *buffers, const int64_t *sizes, int64_t begin, int64_t end,\n"
      "{}void *scratch) {{\n",
      linkage, kernel.name, std::string(linkage.size() + kernel.name.size() + 6, ' '));
  return text + Declarations(kernel, names, body).text() + body + "}\n";
}

}  // namespace

std::string print_c(const Kernel& kernel) {
  const std::string text = function(kernel);
  return prelude_for(text) + text;
}

std::string print_c_function(const Kernel& kernel, std::string_view name) {
  Kernel renamed = kernel;
  renamed.name = name;
  return function(renamed, "static ");
}

}  // namespace segfuse::compiler::cpu
