#include "doctor/html.h"

namespace segfuse::doctor {

namespace {

constexpr std::string_view kStyle =
    "body{font:14px/1.5 sans-serif;margin:2em auto;max-width:1000px;color:#222;padding:0 1em}"
    "h1{font-size:1.4em}h2{font-size:1.1em;margin-top:2em}"
    "table{border-collapse:collapse}td,th{padding:.15em .8em;text-align:right;"
    "border-bottom:1px solid #eee}td:first-child,th:first-child{text-align:left}"
    ".key span{display:inline-block;margin-right:1.2em}"
    ".key i{display:inline-block;width:.9em;height:.9em;margin-right:.35em;vertical-align:-.1em}"
    "svg{max-width:100%;height:auto}";

}  // namespace

std::string_view html_style() { return kStyle; }

}  // namespace segfuse::doctor
