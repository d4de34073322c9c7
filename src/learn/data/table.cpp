#include <fmt/core.h>

#include <algorithm>

#include "base/text.h"
#include "learn/data/labels/fields.h"
#include "segfuse/error.h"

namespace segfuse::data {
namespace {

/// Reads CSV records character by character; a quoted field may hold separators and line ends.
class CsvParser {
 public:
  CsvParser(std::string_view text, char separator, std::string_view name)
      : text_(text), separator_(separator), name_(name) {}

  std::vector<TableRow> parse() {
    std::vector<TableRow> rows;
    while (at_ < text_.size()) {
      TableRow row{{}, line_};
      do row.fields.push_back(field());
      while (take(separator_));
      end_line();
      if (row.fields.size() > 1 || !row.fields[0].empty()) rows.push_back(std::move(row));
    }
    return rows;
  }

 private:
  bool at_end() const { return at_ >= text_.size(); }
  bool take(char c) {
    if (at_end() || text_[at_] != c) return false;
    ++at_;
    return true;
  }

  std::string field() {
    if (take('"')) return quoted_field();
    const std::size_t begin = at_;
    while (!at_end() && text_[at_] != separator_ && text_[at_] != '\n' && text_[at_] != '\r') ++at_;
    return std::string(trim(text_.substr(begin, at_ - begin)));
  }

  std::string quoted_field() {
    const std::int64_t opened = line_;
    std::string out;
    while (true) {
      if (at_end())
        throw DataError(fmt::format("{}:{}: a quoted field is never closed; expected a closing \"",
                                    name_, opened));
      const char c = text_[at_++];
      if (c == '"' && !take('"')) break;
      if (c == '\n') ++line_;
      out.push_back(c);
    }
    if (!at_end() && text_[at_] != separator_ && text_[at_] != '\n' && text_[at_] != '\r')
      throw DataError(fmt::format(
          "{}:{}: text after a closing quote; double the quotes inside a field", name_, line_));
    return out;
  }

  void end_line() {
    const bool carriage = take('\r');
    if (take('\n') || carriage) ++line_;
  }

  std::string_view text_;
  char separator_;
  std::string_view name_;
  std::size_t at_ = 0;
  std::int64_t line_ = 1;
};

}  // namespace

std::vector<TableRow> parse_table(std::string_view text, char separator, std::string_view name) {
  if (separator != '\t' || text.starts_with('"')) return CsvParser(text, separator, name).parse();
  std::vector<TableRow> rows;
  std::int64_t number = 0;
  for (const std::string_view line : split_lines(text)) {
    ++number;
    if (trim(line).empty()) continue;
    TableRow row{{}, number};
    for (const std::string_view field : split(line, separator))
      row.fields.emplace_back(trim(field));
    rows.push_back(std::move(row));
  }
  return rows;
}

char find_separator(std::string_view text, std::string_view name,
                    const std::function<bool(const TableRow&)>& understood) {
  const char own = extension_of(name) == ".tsv" ? '\t' : ',';
  const std::size_t begin = std::min(text.find_first_not_of("\r\n"), text.size());
  const std::string_view line = text.substr(begin, text.find_first_of("\r\n", begin) - begin);
  for (const char separator : {own, ';', '\t', ','}) {
    try {
      const std::vector<TableRow> rows = parse_table(line, separator, name);
      if (!rows.empty() && understood(rows[0])) return separator;
    } catch (const DataError&) {  // quotes that are none with this separator
    }
  }
  return own;
}

}  // namespace segfuse::data
