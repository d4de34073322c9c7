#pragma once
// XML as label files have it, read with suspicion. Entities of a document type are never expanded:
// the parser knows the five of XML itself and numbered characters only.

#include <cstdint>
#include <pugixml.hpp>
#include <string_view>
#include <vector>

namespace segfuse::data {

class XmlFile {
 public:
  /// `text` is UTF-8. DataError with the line where it is not XML, or has another root.
  XmlFile(std::string_view text, std::string_view name, const char* root);

  const pugi::xml_node& root() const { return root_; }
  std::int64_t line_of(const pugi::xml_node& node) const;

  /// An attribute or the text of a child element; DataError where it is missing.
  std::string_view attribute(const pugi::xml_node& node, const char* key) const;
  std::string_view child_text(const pugi::xml_node& node, const char* key) const;

 private:
  std::string_view name_;
  std::vector<std::size_t> lines_;  // where they begin
  pugi::xml_document document_;
  pugi::xml_node root_;
};

/// Text between tags or quotes.
std::string xml_escaped(std::string_view text);

}  // namespace segfuse::data
