#include "doctor/kernel/ptx.h"

#include <fmt/core.h>

#include <algorithm>
#include <map>
#include <set>

#include "base/text.h"
#include "segfuse/error.h"

namespace segfuse::doctor {

namespace {

/// Barriers of a block when a register names the barrier.
constexpr std::uint64_t kAllBarriers = 16;
constexpr std::uint64_t kTooMany = std::uint64_t{1} << 40;

/// Comments become blanks; lines stay.
std::string without_comments(std::string_view text) {
  std::string result(text);
  for (std::size_t i = 0; i + 1 < result.size();) {
    if (result[i] == '"') {
      i = std::min(result.find('"', i + 1), result.size() - 1) + 1;
    } else if (result[i] == '/' && result[i + 1] == '/') {
      while (i < result.size() && result[i] != '\n') result[i++] = ' ';
    } else if (result[i] == '/' && result[i + 1] == '*') {
      const std::size_t end = std::min(result.find("*/", i + 2), result.size());
      for (; i < std::min(end + 2, result.size()); ++i)
        if (result[i] != '\n') result[i] = ' ';
    } else {
      ++i;
    }
  }
  return result;
}

bool is_name(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
         c == '$' || c == '%';
}

std::vector<std::string_view> words_of(std::string_view text) {
  std::vector<std::string_view> words;
  for (std::size_t i = 0; i < text.size();) {
    std::size_t end = i;
    while (end < text.size() && (is_name(text[end]) || text[end] == '.')) ++end;
    if (end > i) words.push_back(text.substr(i, end - i));
    i = std::max(end, i + 1);
  }
  return words;
}

struct Variable {
  std::string name;
  std::uint64_t bytes = 0;
};

std::uint64_t bytes_of_type(std::string_view type) {
  const std::size_t digits = type.find_first_of("0123456789");
  if (type == ".pred" || digits == std::string_view::npos) return 1;
  const std::string_view number = type.substr(digits);
  const auto bits = parse_int(number.substr(0, number.find_first_not_of("0123456789")));
  return bits && *bits >= 8 && *bits <= 256 ? static_cast<std::uint64_t>(*bits) / 8 : 1;
}

/// ".shared .align 4 .b8 name[16][4]": its name and bytes.
Variable read_variable(std::string_view statement) {
  Variable variable;
  std::string_view type;
  std::uint64_t vector = 1;
  const std::string_view head = statement.substr(0, statement.find_first_of("[="));
  for (const std::string_view word : words_of(head)) {
    if (word == ".v2") vector = 2;
    if (word == ".v4") vector = 4;
    if (word.starts_with('.')) type = word;
    variable.name = word;
  }
  variable.bytes = bytes_of_type(type) * vector;
  std::size_t at = statement.find('[');
  while (at != std::string_view::npos && variable.bytes < kTooMany) {
    const std::size_t end = statement.find(']', at);
    if (end == std::string_view::npos) break;
    variable.bytes *= static_cast<std::uint64_t>(std::clamp<std::int64_t>(
        parse_int(trim(statement.substr(at + 1, end - at - 1))).value_or(0), 0, 1 << 30));
    at = statement.find('[', end);
  }
  return variable;
}

/// ".reg .b32 %r<6>, %x": how many.
std::uint64_t count_registers(std::string_view statement) {
  std::uint64_t count = 0;
  for (const std::string_view part : split(statement, ',')) {
    const std::size_t open = part.find('<');
    const std::size_t close = part.find('>');
    if (open == std::string_view::npos || close == std::string_view::npos || close < open) {
      ++count;
      continue;
    }
    count += static_cast<std::uint64_t>(std::clamp<std::int64_t>(
        parse_int(trim(part.substr(open + 1, close - open - 1))).value_or(0), 0, 1 << 30));
  }
  return count;
}

/// A function or kernel with what stands in it.
struct Function {
  KernelInfo info;
  bool entry = false;
  std::uint64_t barriers = 0;
  std::vector<std::pair<std::string, std::string>> atomics;  ///< instruction, result's register
  std::map<std::string, std::uint64_t> registers;            ///< how often each is named
  std::set<std::string> words;  ///< of operands: variables and functions that it may name

  /// Whether anybody reads what an instruction returned into `name`.
  bool reads(const std::string& name) const {
    const auto found = registers.find(name);
    return found != registers.end() && found->second > 1;
  }
};

bool is_float(std::string_view part) {
  return part == "f16" || part == "f16x2" || part == "bf16" || part == "bf16x2" || part == "f32" ||
         part == "f64";
}

std::string order_of(const std::string& instruction, bool result_is_read) {
  const std::vector<std::string_view> parts = split(instruction, '.');
  const auto has = [&](auto matches) { return std::any_of(parts.begin(), parts.end(), matches); };
  const bool sums = has([](std::string_view part) { return part == "add"; }) && has(is_float);
  const bool swaps = has([](std::string_view part) { return part == "exch" || part == "cas"; });
  if (sums || swaps) return "dependent";
  return result_is_read ? "returned" : "independent";
}

bool is_atomic(std::string_view opcode) {
  return opcode.starts_with("atom.") || opcode.starts_with("red.") ||
         opcode.starts_with("cp.reduce.") || opcode.starts_with("multimem.red.");
}

class Reader {
 public:
  Reader(std::string_view text, const std::string& file)
      : text_(without_comments(text)), file_(file) {}

  std::vector<KernelInfo> read() {
    std::size_t at = 0;
    while (at < text_.size()) at = read_top(at);
    if (!versioned_)
      throw DataError(fmt::format(
          "{}:1: expected PTX, which begins with .version, found something else", file_));
    std::vector<KernelInfo> kernels;
    for (const auto& [name, function] : functions_)
      if (function.entry) kernels.push_back(kernel_of(name));
    return kernels;
  }

 private:
  std::size_t line_of(std::size_t at) const {
    return 1 + static_cast<std::size_t>(std::count(
                   text_.begin(), text_.begin() + static_cast<std::ptrdiff_t>(at), '\n'));
  }

  /// One statement or function at the top; returns where the next begins.
  std::size_t read_top(std::size_t at) {
    const std::size_t end = std::min(text_.find_first_of(";{\n", at), text_.size());
    const std::string_view line = trim(std::string_view(text_).substr(at, end - at));
    if (line.starts_with(".version")) versioned_ = true;
    if (line.starts_with(".target")) {
      const auto words = words_of(line);
      if (words.size() > 1) target_ = words[1];
    }
    if (line.empty() || line.starts_with(".version") || line.starts_with(".target") ||
        line.starts_with(".address_size") || line.starts_with(".file") || line.starts_with(".loc"))
      return end + 1;
    // Heads of functions and variables may go over several lines.
    const std::size_t stop = std::min(text_.find_first_of(";{", at), text_.size());
    const std::string_view head = trim(std::string_view(text_).substr(at, stop - at));
    const bool function = head.find(".entry") != std::string_view::npos ||
                          head.find(".func") != std::string_view::npos;
    if (stop < text_.size() && text_[stop] == '{') return read_block(head, stop, function);
    if (!function && head.find(".shared") != std::string_view::npos) {
      const Variable variable = read_variable(head);
      // Without a size: asked for at the launch.
      shared_[variable.name] = head.find(".extern") == std::string_view::npos ? variable.bytes : 0;
    }
    return stop + 1;
  }

  std::size_t read_block(std::string_view head, std::size_t open, bool function) {
    std::size_t depth = 0;
    std::size_t end = open;
    for (; end < text_.size(); ++end) {
      if (text_[end] == '{') ++depth;
      if (text_[end] == '}' && --depth == 0) break;
    }
    if (end == text_.size())
      throw DataError(fmt::format("{}:{}: this brace is never closed", file_, line_of(open)));
    if (function) read_function(head, std::string_view(text_).substr(open + 1, end - open - 1));
    return end + 1;
  }

  void read_function(std::string_view head, std::string_view body) {
    Function function;
    const std::size_t entry = head.find(".entry");
    function.entry = entry != std::string_view::npos;
    // ".func (.param .b32 result) name (...)": what it returns comes first.
    std::string_view rest = head.substr(function.entry ? entry + 6 : head.find(".func") + 5);
    rest = trim(rest);
    if (rest.starts_with('(')) rest = rest.substr(std::min(rest.find(')'), rest.size() - 1) + 1);
    const auto words = words_of(rest);
    const auto named = std::find_if(words.begin(), words.end(),
                                    [](std::string_view word) { return !word.starts_with('.'); });
    if (named == words.end()) return;
    function.info.name = *named;
    function.info.has_text = true;
    for (const char* bound : {".maxntid", ".reqntid"})
      if (const std::size_t at = head.find(bound); at != std::string_view::npos)
        function.info.max_threads = product(head.substr(at + 8));
    for (const std::string_view statement : split(body, ';')) read_statement(function, statement);
    functions_[function.info.name] = std::move(function);
  }

  /// "128, 1, 1"
  static std::uint64_t product(std::string_view text) {
    std::uint64_t threads = 1;
    for (const std::string_view part : split(text.substr(0, text.find_first_of("\n.")), ','))
      threads *= static_cast<std::uint64_t>(
          std::clamp<std::int64_t>(parse_int(trim(part)).value_or(1), 1, 1 << 16));
    return std::min<std::uint64_t>(threads, 1 << 20);
  }

  static void read_statement(Function& function, std::string_view statement) {
    // Braces, labels and the predicate stand before the instruction.
    while (true) {
      statement = trim(statement);
      while (!statement.empty() &&
             (statement[0] == '{' || statement[0] == '}' || statement[0] == '\n'))
        statement = trim(statement.substr(1));
      const std::size_t first = statement.find_first_of(": \t\n");
      if (first == std::string_view::npos) break;
      const bool label = statement[first] == ':';
      // Line directives end with their line, not with a semicolon.
      const bool directive = statement.substr(0, first) == ".loc";
      if (!label && !directive && statement[0] != '@') break;
      const std::size_t end = directive ? statement.find('\n') : first;
      if (end == std::string_view::npos) return;
      statement = statement.substr(end + 1);
    }
    if (statement.empty()) return;
    if (statement.starts_with(".reg")) {
      function.info.declared_registers += count_registers(statement.substr(4));
    } else if (statement.starts_with(".local")) {
      function.info.local_bytes =
          std::min(kTooMany, function.info.local_bytes + read_variable(statement).bytes);
    } else if (statement.starts_with(".shared")) {
      function.info.shared_bytes =
          std::min(kTooMany, function.info.shared_bytes + read_variable(statement).bytes);
    } else {
      read_instruction(function, statement);
    }
  }

  static void read_instruction(Function& function, std::string_view statement) {
    const std::size_t end = std::min(statement.find_first_of(" \t\n"), statement.size());
    const std::string_view opcode = statement.substr(0, end);
    const std::string_view operands = statement.substr(end);
    if (opcode.starts_with("ld.local")) ++function.info.local_loads;
    if (opcode.starts_with("st.local")) ++function.info.local_stores;
    if (is_atomic(opcode)) {
      const auto words = words_of(operands);
      const bool returns = opcode.starts_with("atom.") && !words.empty();
      function.atomics.emplace_back(opcode, returns ? std::string(words[0]) : "");
    }
    if ((opcode.starts_with("bar.") && !opcode.starts_with("bar.warp")) ||
        (opcode.starts_with("barrier.") && !opcode.starts_with("barrier.cluster"))) {
      // "bar.red.popc.u32 d, id, p": the barrier's number comes second.
      const auto words = words_of(operands);
      const bool reduces = opcode.find(".red") != std::string_view::npos;
      const std::size_t place = reduces ? 1 : 0;
      const auto id = place < words.size() ? parse_int(words[place]) : std::nullopt;
      function.barriers =
          std::max(function.barriers,
                   id && *id >= 0 && *id < 16 ? static_cast<std::uint64_t>(*id) + 1 : kAllBarriers);
    }
    for (const std::string_view word : words_of(operands))
      if (word.starts_with('%'))
        ++function.registers[std::string(word)];
      else
        function.words.emplace(word);
  }

  /// With all that it calls.
  KernelInfo kernel_of(const std::string& name) {
    std::set<std::string> reached;
    std::vector<std::string> open = {name};
    KernelInfo kernel = functions_[name].info;
    kernel.architecture = target_;
    kernel.declared_registers = kernel.local_bytes = kernel.local_loads = kernel.local_stores = 0;
    kernel.shared_bytes = 0;
    std::map<std::pair<std::string, std::string>, std::uint64_t> atomics;
    std::set<std::string> shared;
    std::uint64_t barriers = 0;
    while (!open.empty()) {
      const std::string next = open.back();
      open.pop_back();
      if (!reached.insert(next).second) continue;
      const Function& function = functions_[next];
      kernel.declared_registers += function.info.declared_registers;
      kernel.local_bytes += function.info.local_bytes;
      kernel.local_loads += function.info.local_loads;
      kernel.local_stores += function.info.local_stores;
      kernel.shared_bytes += function.info.shared_bytes;
      barriers = std::max(barriers, function.barriers);
      for (const auto& [instruction, result] : function.atomics)
        ++atomics[{instruction, order_of(instruction, function.reads(result))}];
      for (const std::string& word : function.words) {
        if (functions_.count(word) > 0) open.push_back(word);
        if (shared_.count(word) > 0) shared.insert(word);
      }
    }
    for (const std::string& variable : shared) kernel.shared_bytes += shared_[variable];
    kernel.barriers = barriers;
    for (const auto& [kind, count] : atomics)
      kernel.atomics.push_back({kind.first, count, kind.second});
    return kernel;
  }

  std::string text_;
  const std::string& file_;
  bool versioned_ = false;
  std::string target_;
  std::map<std::string, Function> functions_;
  std::map<std::string, std::uint64_t> shared_;  ///< variables of the whole module
};

}  // namespace

std::vector<KernelInfo> read_ptx(std::string_view text, const std::string& file) {
  return Reader(text, file).read();
}

}  // namespace segfuse::doctor
