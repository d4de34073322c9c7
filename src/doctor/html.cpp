#include "doctor/html.h"

#include <fmt/core.h>

#include "base/console/markup.h"

namespace segfuse::doctor {

namespace {

constexpr std::string_view kStyle =
    "body{font:14px/1.5 sans-serif;margin:2em auto;max-width:1000px;color:#222;padding:0 1em}"
    "h1{font-size:1.4em}h2{font-size:1.1em;margin-top:2em}"
    "table{border-collapse:collapse}td,th{padding:.15em .8em;text-align:right;"
    "border-bottom:1px solid #eee}td:first-child,th:first-child,td.words{text-align:left}"
    ".key span{display:inline-block;margin-right:1.2em}"
    ".key i{display:inline-block;width:.9em;height:.9em;margin-right:.35em;vertical-align:-.1em}"
    "svg{max-width:100%;height:auto}";

}  // namespace

std::string html_page(std::string_view title, std::string_view content) {
  return fmt::format(
      "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\n"
      "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n"
      "<title>{}</title>\n<style>{}</style></head><body><main>\n{}</main></body></html>\n",
      escape_markup(title), kStyle, content);
}

}  // namespace segfuse::doctor
