#include "doctor/fork/read/images.h"

#include <elf.h>

#include <algorithm>
#include <cstring>
#include <span>

#include "base/code/demangle.h"
#include "doctor/elf.h"
#include "doctor/fork/page.h"
#include "segfuse/error.h"

namespace segfuse::doctor {

namespace {

constexpr std::uint16_t kMaxParts = 64;
/// So much of a file's front says that it is the one that was loaded: headers and build id.
constexpr std::size_t kFront = 1024;

template <class Record>
bool read_record(const MemoryReader& memory, std::uint64_t address, Record& record) {
  return memory.read(address, std::as_writable_bytes(std::span(&record, 1))) == sizeof record;
}

const Vma* vma_at(const std::vector<Vma>& vmas, std::uint64_t address) {
  const auto found =
      std::upper_bound(vmas.begin(), vmas.end(), address,
                       [](std::uint64_t at, const Vma& vma) { return at < vma.end; });
  return found == vmas.end() || address < found->begin ? nullptr : &*found;
}

/// A loader has put the part there, rather than somebody who only reads the file.
bool is_loaded(const std::vector<Vma>& vmas, const Vma& head, const Elf64_Phdr& part,
               std::uint64_t bias) {
  if (part.p_filesz == 0) return true;
  const std::uint64_t last = page_begin(bias + part.p_vaddr + part.p_filesz - 1);
  const Vma* vma = vma_at(vmas, last);
  return vma != nullptr && vma->inode == head.inode && vma->name == head.name && !vma->shared &&
         vma->offset + (last - vma->begin) == page_begin(part.p_offset + part.p_filesz - 1);
}

void add_variables(const MemoryReader& memory, const std::vector<Vma>& vmas, const Vma& head,
                   std::vector<Variables>& all) {
  Elf64_Ehdr file{};
  if (!read_record(memory, head.begin, file) || std::memcmp(file.e_ident, ELFMAG, SELFMAG) != 0 ||
      file.e_ident[EI_CLASS] != ELFCLASS64 || file.e_phentsize != sizeof(Elf64_Phdr) ||
      file.e_phnum > kMaxParts || file.e_phoff > kPage)
    return;
  std::vector<Elf64_Phdr> parts(file.e_phnum);
  const auto bytes = std::as_writable_bytes(std::span(parts));
  if (memory.read(head.begin + file.e_phoff, bytes) != bytes.size()) return;
  const auto first = std::find_if(parts.begin(), parts.end(), [](const Elf64_Phdr& part) {
    return part.p_type == PT_LOAD && part.p_offset < kPage;
  });
  if (first == parts.end()) return;
  const std::uint64_t bias = head.begin - page_begin(first->p_vaddr);
  for (const Elf64_Phdr& part : parts) {
    if (part.p_type != PT_LOAD || (part.p_flags & PF_W) == 0 || part.p_memsz < part.p_filesz ||
        part.p_memsz == 0 || part.p_memsz > (std::uint64_t{1} << 46))
      continue;
    const std::uint64_t begin = bias + part.p_vaddr;
    if (is_loaded(vmas, head, part, bias))
      all.push_back({.file = head.name,
                     .bias = bias,
                     .head = head.begin,
                     .begin = begin,
                     .file_end = begin + part.p_filesz,
                     .end = begin + part.p_memsz});
  }
}

}  // namespace

std::vector<Variables> find_variables(const MemoryReader& memory, const std::vector<Vma>& vmas) {
  std::vector<Variables> all;
  for (const Vma& vma : vmas)
    if (vma.inode != 0 && vma.offset == 0 && vma.readable && !vma.shared && !vma.device &&
        vma.name.starts_with('/'))
      add_variables(memory, vmas, vma, all);
  std::sort(all.begin(), all.end(),
            [](const Variables& a, const Variables& b) { return a.begin < b.begin; });
  return all;
}

const Variables* variables_at(const std::vector<Variables>& all, std::uint64_t address) {
  const auto found =
      std::upper_bound(all.begin(), all.end(), address,
                       [](std::uint64_t at, const Variables& v) { return at < v.last_page_end(); });
  return found == all.end() || address < found->first_page() ? nullptr : &*found;
}

std::vector<std::string> names_in(const Variables& part, std::string_view text, std::uint64_t begin,
                                  std::uint64_t end, std::size_t most, std::size_t& count) {
  count = 0;
  std::vector<std::string> names;
  Elf elf;
  try {
    elf = parse_elf(text, part.file);
  } catch (const DataError&) {
    return names;  // another file's text, or none
  }
  std::vector<ElfObject> inside;
  for (const ElfObject& object : elf.objects)
    if (const std::uint64_t at = part.bias + object.value;
        at < end && at + std::max<std::uint64_t>(object.size, 1) > begin)
      inside.push_back(object);
  // Aliases name one variable; the first of them in the alphabet is shown.
  std::sort(inside.begin(), inside.end(), [](const ElfObject& a, const ElfObject& b) {
    return a.value != b.value ? a.value < b.value : a.name < b.name;
  });
  inside.erase(
      std::unique(inside.begin(), inside.end(),
                  [](const ElfObject& a, const ElfObject& b) { return a.value == b.value; }),
      inside.end());
  count = inside.size();
  for (std::size_t i = 0; i < std::min(most, count); ++i)
    names.push_back(demangled(std::string(inside[i].name)));
  return names;
}

std::string file_of_variables(const Process& process, const Variables& part) {
  std::optional<std::string> text = process.try_read("root" + part.file);
  if (!text || text->size() < kFront) return "";
  std::string front(kFront, '\0');
  if (process.read(part.head, std::as_writable_bytes(std::span(front))) != kFront ||
      text->compare(0, kFront, front) != 0)
    return "";
  return std::move(*text);
}

}  // namespace segfuse::doctor
