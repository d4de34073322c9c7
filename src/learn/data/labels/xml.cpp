#include "learn/data/labels/xml.h"

#include <fmt/core.h>

#include <algorithm>

#include "base/console/markup.h"
#include "learn/data/text.h"
#include "segfuse/error.h"

namespace segfuse::data {
namespace {

std::int64_t line_at(const std::vector<std::size_t>& lines, std::ptrdiff_t offset) {
  const auto at = static_cast<std::size_t>(std::max<std::ptrdiff_t>(offset, 0));
  return std::ranges::upper_bound(lines, at) - lines.begin();
}

}  // namespace

XmlFile::XmlFile(std::string_view text, std::string_view name, const char* root)
    : name_(name), lines_{0} {
  for (std::size_t i = 0; i < text.size(); ++i)
    if (text[i] == '\n') lines_.push_back(i + 1);
  const pugi::xml_parse_result result = document_.load_buffer(
      text.data(), text.size(), pugi::parse_default | pugi::parse_trim_pcdata, pugi::encoding_utf8);
  if (!result)
    throw DataError(fmt::format("{}:{}: this is not XML: {}", name, line_at(lines_, result.offset),
                                result.description()));
  root_ = document_.document_element();
  if (std::string_view(root_.name()) != root)
    throw DataError(fmt::format("{}:{}: the outermost element is {}; expected \"{}\"", name,
                                line_of(root_), shown(root_.name()), root));
}

std::int64_t XmlFile::line_of(const pugi::xml_node& node) const {
  return line_at(lines_, node.offset_debug());
}

std::string_view XmlFile::attribute(const pugi::xml_node& node, const char* key) const {
  const pugi::xml_attribute found = node.attribute(key);
  if (!found)
    throw DataError(fmt::format("{}:{}: the element {} has no attribute {}", name_, line_of(node),
                                shown(node.name()), key));
  return found.value();
}

std::string_view XmlFile::child_text(const pugi::xml_node& node, const char* key) const {
  const pugi::xml_node child = node.child(key);
  if (!child)
    throw DataError(fmt::format("{}:{}: the element {} has no {}", name_, line_of(node),
                                shown(node.name()), shown(key)));
  return child.child_value();
}

std::string xml_escaped(std::string_view text) {
  std::string out;
  for (const char c : escape_entities(text)) {
    switch (c) {
      case '\n': out += "&#10;"; break;
      case '\r': out += "&#13;"; break;
      case '\t': out += "&#9;"; break;
      default:
        if (static_cast<unsigned char>(c) < ' ')
          throw UsageError(fmt::format(
              "{} has a control character, which cannot stand in XML; write a TextGrid or a CSV "
              "file instead",
              shown(text)));
        out.push_back(c);
    }
  }
  return out;
}

}  // namespace segfuse::data
