#pragma once
// The text form of a Fusion: for golden tests, for bug reports, and for `segfuse compile FILE.sf`.
// docs/ir.md has its grammar.

#include <string>
#include <string_view>

#include "ir/fusion.h"

namespace segfuse::ir {

/// The whole Fusion, dead expressions included: sizes, inputs, expressions in topological order,
/// outputs, aliases. Values are numbered in the order of the text, sizes stand in normal form, so
/// the text does not depend on ids. Attached data is left out.
std::string print(const Fusion& fusion);

/// The Fusion of a text. print(parse(text)) == text for every printed text. Comments go from '#' to
/// the end of the line, line ends are blanks, value names may be words, and the types of results
/// may be left out; where they stand they are checked. Constants can be found again by
/// Fusion::constant(). DataError "SOURCE:LINE:COLUMN: found X, expected Y" (columns are bytes from
/// 1), also for what an operation's rule refuses.
Fusion parse(std::string_view text, std::string_view source = "<text>");

}  // namespace segfuse::ir
