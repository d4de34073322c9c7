#include "doctor/fork/read/smaps.h"

#include <fmt/core.h>

#include <algorithm>
#include <charconv>

#include "base/text.h"
#include "segfuse/error.h"

namespace segfuse::doctor {

namespace {

/// Takes what it reads off the front of a line.
class Cursor {
 public:
  explicit Cursor(std::string_view rest) : rest_(rest) {}

  bool number(std::uint64_t& value, int base) {
    const auto [end, error] =
        std::from_chars(rest_.data(), rest_.data() + rest_.size(), value, base);
    if (error != std::errc{}) return false;
    rest_.remove_prefix(static_cast<std::size_t>(end - rest_.data()));
    return true;
  }
  bool skip(char c) {
    if (rest_.empty() || rest_.front() != c) return false;
    rest_.remove_prefix(1);
    return true;
  }
  void skip_blanks() {
    while (skip(' ') || skip('\t')) {
    }
  }
  std::string_view take(std::size_t count) {
    const std::string_view taken = rest_.substr(0, count);
    rest_.remove_prefix(taken.size());
    return taken;
  }
  std::string_view rest() const { return rest_; }

 private:
  std::string_view rest_;
};

/// "begin-end rwxp offset major:minor inode   name"
bool read_head(std::string_view line, Vma& vma) {
  Cursor cursor(line);
  std::uint64_t device = 0;
  if (!cursor.number(vma.begin, 16) || !cursor.skip('-') || !cursor.number(vma.end, 16) ||
      !cursor.skip(' '))
    return false;
  const std::string_view rights = cursor.take(4);
  if (rights.size() != 4 || vma.end <= vma.begin) return false;
  vma.readable = rights[0] == 'r';
  vma.writable = rights[1] == 'w';
  vma.shared = rights[3] == 's';
  if (!cursor.skip(' ') || !cursor.number(vma.offset, 16) || !cursor.skip(' ') ||
      !cursor.number(device, 16) || !cursor.skip(':') || !cursor.number(device, 16) ||
      !cursor.skip(' ') || !cursor.number(vma.inode, 10))
    return false;
  cursor.skip_blanks();
  vma.name = cursor.rest();
  return true;
}

void read_flags(std::string_view flags, Vma& vma) {
  for (const Field& field : split_fields(flags)) {
    if (field.text == "dc") vma.kept = true;
    if (field.text == "wf") vma.wiped = true;
    if (field.text == "dp") vma.droppable = true;
    if (field.text == "io" || field.text == "pf") vma.device = true;
    if (field.text == "ht") vma.huge = true;
    if (field.text == "nr") vma.no_reserve = true;
    if (field.text == "ac") vma.accounted = true;
  }
}

void read_field(std::string_view line, Vma& vma) {
  const std::size_t colon = line.find(':');
  if (colon == std::string_view::npos) return;
  const std::string_view key = line.substr(0, colon);
  if (key == "VmFlags") return read_flags(line.substr(colon + 1), vma);
  if (key == "THPeligible") vma.huge_eligible = line.find('1', colon) != std::string_view::npos;
  std::uint64_t Vma::* target = nullptr;
  if (key == "KernelPageSize") target = &Vma::page;
  if (key == "Rss") target = &Vma::resident;
  if (key == "Anonymous") target = &Vma::anonymous;
  if (key == "AnonHugePages") target = &Vma::transparent_huge;
  if (key == "Private_Hugetlb") target = &Vma::private_huge;
  if (target == nullptr) return;
  Cursor cursor(line.substr(colon + 1));
  cursor.skip_blanks();
  std::uint64_t kilobytes = 0;
  if (cursor.number(kilobytes, 10) && kilobytes < (std::uint64_t{1} << 53))
    vma.*target = kilobytes << 10;
}

bool one_mapping(const Vma& a, const Vma& b) {
  if (a.end != b.begin || a.name != b.name || a.inode != b.inode || a.readable != b.readable ||
      a.writable != b.writable || a.shared != b.shared || a.huge != b.huge ||
      a.device != b.device || a.no_reserve != b.no_reserve || a.droppable != b.droppable)
    return false;
  return a.inode == 0 || a.offset + a.bytes() == b.offset;
}

}  // namespace

std::uint64_t Vma::in_huge_pages() const {
  constexpr std::uint64_t kHuge = std::uint64_t{2} << 20;
  const std::uint64_t first = (begin + kHuge - 1) & ~(kHuge - 1);
  const std::uint64_t last = end & ~(kHuge - 1);
  const bool split = huge_eligible && transparent_huge == 0 && first < last;
  return split ? std::min(last - first, anonymous) : transparent_huge;
}

std::vector<Vma> parse_smaps(std::string_view text) {
  std::vector<Vma> vmas;
  std::size_t number = 0;
  while (!text.empty()) {
    const std::size_t end = text.find('\n');
    const std::string_view line = text.substr(0, end);
    text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
    ++number;
    if (line.empty()) continue;
    const bool head = (line[0] >= '0' && line[0] <= '9') || (line[0] >= 'a' && line[0] <= 'f');
    if (!head) {
      if (!vmas.empty()) read_field(line, vmas.back());
      continue;
    }
    Vma vma;
    if (!read_head(line, vma))
      throw DataError(
          fmt::format("smaps:{}: expected 'begin-end rights offset device inode', found '{}'",
                      number, line.substr(0, 80)));
    vmas.push_back(std::move(vma));
  }
  for (Vma& vma : vmas)
    if (vma.page < kPage || (vma.page & (vma.page - 1)) != 0) vma.page = kPage;
  return vmas;
}

std::vector<Mapping> join_mappings(const std::vector<Vma>& vmas) {
  std::vector<Mapping> mappings;
  for (std::size_t i = 0; i < vmas.size(); ++i) {
    if (i > 0 && one_mapping(vmas[i - 1], vmas[i])) {
      mappings.back().last = i;
      mappings.back().end = vmas[i].end;
    } else {
      mappings.push_back({i, i, vmas[i].begin, vmas[i].end});
    }
  }
  return mappings;
}

std::vector<Mapping> cut_mappings(const std::vector<Mapping>& mappings,
                                  const std::vector<Vma>& vmas, std::vector<std::uint64_t> places) {
  std::sort(places.begin(), places.end());
  std::vector<Mapping> parts;
  for (const Mapping& mapping : mappings) {
    Mapping rest = mapping;
    const bool anonymous = vmas[mapping.first].inode == 0 && vmas[mapping.first].name.empty();
    for (auto place = std::upper_bound(places.begin(), places.end(), rest.begin);
         anonymous && place != places.end() && *place < rest.end; ++place) {
      if (*place == rest.begin) continue;  // named twice
      Mapping part = rest;
      part.end = *place;
      while (vmas[part.last].begin >= *place) --part.last;
      parts.push_back(part);
      rest.begin = *place;
      rest.first = part.last + (vmas[part.last].end == *place ? 1 : 0);
    }
    parts.push_back(rest);
  }
  return parts;
}

}  // namespace segfuse::doctor
