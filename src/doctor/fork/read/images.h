#pragma once
// Programs and libraries that a process has loaded: where their variables begin and end, and what
// these are called.

#include <cstdint>
#include <string>
#include <vector>

#include "doctor/fork/read/process.h"
#include "doctor/fork/read/smaps.h"

namespace segfuse::doctor {

/// The variables of one file: what its writable PT_LOAD says.
struct Variables {
  std::string file;
  std::uint64_t bias = 0;      ///< from addresses in the file to those in memory
  std::uint64_t head = 0;      ///< where the file's first page is in memory
  std::uint64_t begin = 0;     ///< of the initialised ones
  std::uint64_t file_end = 0;  ///< behind them; zero-initialised ones follow
  std::uint64_t end = 0;

  /// Ends of pages.
  std::uint64_t first_page() const { return begin & ~std::uint64_t{4095}; }
  std::uint64_t last_page_end() const { return (end + 4095) & ~std::uint64_t{4095}; }
};

/// By address. A file that is mapped without having been loaded has none.
std::vector<Variables> find_variables(const MemoryReader& memory, const std::vector<Vma>& vmas);

/// Those with a page at `address`; null without.
const Variables* variables_at(const std::vector<Variables>& all, std::uint64_t address);

/// Names of variables of `part` that lie in [begin, end), by address, out of the symbols of the
/// file `text`; at most `most`, and in `count` how many there are.
std::vector<std::string> names_in(const Variables& part, std::string_view text, std::uint64_t begin,
                                  std::uint64_t end, std::size_t most, std::size_t& count);

/// The text of the file, as the process sees it; empty if it is not there or another one by now.
std::string file_of_variables(const Process& process, const Variables& part);

}  // namespace segfuse::doctor
