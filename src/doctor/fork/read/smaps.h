#pragma once
// /proc/PID/smaps as values, and neighbouring mappings joined to what was one before flags cut it.

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "doctor/fork/page.h"

namespace segfuse::doctor {

/// One mapping, as the kernel keeps it. Bytes throughout.
struct Vma {
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
  std::uint64_t offset = 0;
  std::uint64_t inode = 0;
  std::string name;  ///< path, "[heap]", "/memfd:NAME (deleted)"; empty: anonymous
  bool readable = false;
  bool writable = false;
  bool shared = false;

  std::uint64_t page = kPage;
  std::uint64_t resident = 0;
  std::uint64_t anonymous = 0;
  std::uint64_t transparent_huge = 0;
  bool huge_eligible = false;      ///< may have transparent huge pages
  std::uint64_t private_huge = 0;  ///< in pages of the pool

  // Of VmFlags.
  bool kept = false;        ///< dc: children do not get it (MADV_DONTFORK)
  bool wiped = false;       ///< wf: children read zeros (MADV_WIPEONFORK)
  bool droppable = false;   ///< dp: the kernel may empty it; it is wiped in children by its nature
  bool device = false;      ///< io or pf: a driver's, never copied as memory is
  bool huge = false;        ///< ht: pages of the pool
  bool no_reserve = false;  ///< nr
  bool accounted = false;   ///< ac: counts towards the limit of committed memory

  std::uint64_t bytes() const { return end - begin; }
  /// What is likely to be in huge pages. A fork() of a pinned one splits it: from then on it is
  /// mapped, and counted, page by page, and copied as slowly as before.
  std::uint64_t in_huge_pages() const;
};

/// DataError "smaps:line: ..." for a first line of a mapping that is none. Fields and flags that
/// are not known are passed over; a last mapping that is cut short keeps what was read.
std::vector<Vma> parse_smaps(std::string_view text);

/// Mappings [first, last] that are one by all that madvise does not change. After cut_mappings(),
/// the first and the last of them may reach beyond it.
struct Mapping {
  std::size_t first = 0;
  std::size_t last = 0;
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
};
std::vector<Mapping> join_mappings(const std::vector<Vma>& vmas);
/// Cuts anonymous mappings where something is known to end: the kernel joins memory of different
/// owners that touches. `places` in any order.
std::vector<Mapping> cut_mappings(const std::vector<Mapping>& mappings,
                                  const std::vector<Vma>& vmas, std::vector<std::uint64_t> places);

}  // namespace segfuse::doctor
