#pragma once
// The C text that every kernel for the CPU builds on, in pieces: types, loads and stores,
// arithmetic, elementary functions. Its sources are prelude/*.h; docs/codegen.md has the bounds.

#include <string>
#include <string_view>
#include <vector>

namespace segfuse::compiler::cpu {

/// Whether a name in C may hold it.
inline bool is_word(char c) {
  return c == '_' || (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}

/// A part of the prelude: what it defines, what it needs beyond the names that stand in its text
/// (names that macros paste together), and its text. It may use pieces before it.
struct PreludePiece {
  std::vector<std::string> names;
  std::vector<std::string> needs;
  std::string text;
};

/// All pieces in order; the first one is needed by every text.
const std::vector<PreludePiece>& prelude_pieces();

/// The pieces that `text` and, through them, other pieces use, in order: put before `text`, it
/// compiles by itself.
std::string prelude_for(std::string_view text);

/// A file of prelude/ after the files that it includes (cmake/embed.cmake writes the definition).
std::string prelude_source(std::string_view name);

}  // namespace segfuse::compiler::cpu
