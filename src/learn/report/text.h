#pragma once
// Text of the report: its data inside the page, and numbers as a reader wants them.

#include <string>
#include <string_view>

#include "learn/report/report.h"

namespace segfuse::learn {

/// JSON text that may stand inside a script element: no `<` is left in it, so neither the end of
/// the element nor a comment can begin. Parses to the same value.
std::string json_for_script(std::string_view json);

/// A value as the tables and tiles show it; a dash when it is not finite.
std::string format_value(double value, ReportUnit unit);

/// `value` with that many significant digits; NaN stays NaN.
double round_significant(double value, int digits);

}  // namespace segfuse::learn
