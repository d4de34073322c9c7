// Places a relocatable ELF file for x86-64 into memory. Only what our compiler flags produce is
// understood (position-independent, small code model, no thread-local data); the rest is refused.

#include <dlfcn.h>
#include <elf.h>
#include <fmt/core.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <limits>
#include <map>
#include <span>
#include <system_error>

#include "base/sizes.h"
#include "jit/code.h"

namespace segfuse::jit {
namespace {

constexpr std::size_t kStubBytes = 16;
/// jmp *2(%rip); two bytes of nothing; the address.
constexpr unsigned char kStub[8] = {0xFF, 0x25, 0x02, 0, 0, 0, 0x66, 0x90};

/// A function of this process, of libm or of libgcc (conversions of 16-bit floats).
void* process_symbol(const char* name) {
  if (void* found = dlsym(RTLD_DEFAULT, name)) return found;
  static void* const libraries[] = {dlopen("libm.so.6", RTLD_NOW | RTLD_LOCAL),
                                    dlopen("libgcc_s.so.1", RTLD_NOW | RTLD_LOCAL)};
  for (void* library : libraries)
    if (library != nullptr)
      if (void* found = dlsym(library, name)) return found;
  return nullptr;
}

/// Where a section goes: pages that run, that are read, that are written.
enum Part { kRun, kRead, kWrite, kParts, kNowhere };

Part part_of(const Elf64_Shdr& section) {
  if ((section.sh_flags & SHF_ALLOC) == 0 || section.sh_size == 0) return kNowhere;
  if ((section.sh_flags & SHF_EXECINSTR) != 0) return kRun;
  return (section.sh_flags & SHF_WRITE) != 0 ? kWrite : kRead;
}

class Placer {
 public:
  Placer(std::string_view name, std::string_view object) : name_(name), object_(object) {}

  struct Placed {
    std::byte* base;
    std::size_t size;
    std::vector<std::pair<std::string, void*>> symbols;
  };

  Placed place() {
    read_header();
    read_symbols();
    count_outside();
    lay_out();
    std::byte* const base = map();
    try {
      copy_sections();
      for (const Elf64_Shdr& section : sections_)
        if (section.sh_type == SHT_RELA) relocate(section);
      protect();
      return {base, size_, own_symbols()};
    } catch (...) {
      ::munmap(base, size_);
      throw;
    }
  }

 private:
  [[noreturn]] void refuse(const std::string& what) const {
    throw InternalError(fmt::format("the machine code of '{}' cannot be loaded: {}", name_, what));
  }

  std::string_view bytes(std::size_t offset, std::size_t size) const {
    if (offset > object_.size() || size > object_.size() - offset)
      refuse("the object file is cut short");
    return object_.substr(offset, size);
  }
  template <class T>
  T read(std::size_t offset) const {
    T value;
    std::memcpy(&value, bytes(offset, sizeof value).data(), sizeof value);
    return value;
  }
  template <class T>
  std::vector<T> read_table(const Elf64_Shdr& section) const {
    const std::string_view content = bytes(section.sh_offset, section.sh_size);
    std::vector<T> table(content.size() / sizeof(T));
    if (!table.empty()) std::memcpy(table.data(), content.data(), table.size() * sizeof(T));
    return table;
  }

  void read_header() {
    const auto header = read<Elf64_Ehdr>(0);
    if (std::memcmp(header.e_ident, ELFMAG, SELFMAG) != 0 ||
        header.e_ident[EI_CLASS] != ELFCLASS64 || header.e_ident[EI_DATA] != ELFDATA2LSB ||
        header.e_type != ET_REL || header.e_machine != EM_X86_64 ||
        header.e_shentsize != sizeof(Elf64_Shdr))
      refuse("it is not a relocatable ELF file for x86-64");
    for (std::size_t i = 0; i < header.e_shnum; ++i)
      sections_.push_back(read<Elf64_Shdr>(header.e_shoff + i * sizeof(Elf64_Shdr)));
    places_.resize(sections_.size());
    for (const Elf64_Shdr& section : sections_) {
      if ((section.sh_flags & SHF_TLS) != 0) refuse("it has thread-local data");
      if (runs_on_loading(section, header.e_shstrndx))
        refuse("it has functions that run on loading");
    }
  }

  bool runs_on_loading(const Elf64_Shdr& section, std::size_t names) const {
    if (names >= sections_.size()) return false;
    const std::string_view all = bytes(sections_[names].sh_offset, sections_[names].sh_size);
    const std::string_view name = all.substr(std::min<std::size_t>(section.sh_name, all.size()));
    return section.sh_type == SHT_INIT_ARRAY || name.starts_with(".ctors");
  }

  void read_symbols() {
    for (const Elf64_Shdr& section : sections_) {
      if (section.sh_type != SHT_SYMTAB) continue;
      symbols_ = read_table<Elf64_Sym>(section);
      if (section.sh_link >= sections_.size()) refuse("its symbols have no names");
      const Elf64_Shdr& names = sections_[section.sh_link];
      names_ = bytes(names.sh_offset, names.sh_size);
    }
  }

  const Elf64_Sym& symbol(std::size_t index) const {
    if (index >= symbols_.size()) refuse("a relocation names no symbol");
    return symbols_[index];
  }
  std::string name_of(const Elf64_Sym& symbol) const {
    if (symbol.st_name >= names_.size()) refuse("a symbol has no name");
    const std::string_view rest = names_.substr(symbol.st_name);
    return std::string(rest.substr(0, rest.find('\0')));
  }

  static bool by_table(std::uint32_t type) {
    return type == R_X86_64_GOTPCREL || type == R_X86_64_GOTPCRELX ||
           type == R_X86_64_REX_GOTPCRELX;
  }

  /// Finds what gets a stub (called, and far away perhaps) or a place in the table of addresses.
  void count_outside() {
    for (const Elf64_Shdr& section : sections_) {
      if (section.sh_type != SHT_RELA || !is_placed(section.sh_info)) continue;
      for (const Elf64_Rela& entry : read_table<Elf64_Rela>(section)) {
        const std::size_t index = ELF64_R_SYM(entry.r_info);
        const auto type = static_cast<std::uint32_t>(ELF64_R_TYPE(entry.r_info));
        if (by_table(type)) table_.try_emplace(index, table_.size());
        if (type == R_X86_64_PLT32 && symbol(index).st_shndx == SHN_UNDEF)
          stubs_.try_emplace(index, stubs_.size());
      }
    }
  }

  bool is_placed(std::size_t section) const {
    return section < sections_.size() && part_of(sections_[section]) != kNowhere;
  }

  void lay_out() {
    const auto page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
    for (const Part part : {kRun, kRead, kWrite}) {
      begins_[part] = size_;
      for (std::size_t i = 0; i < sections_.size(); ++i) {
        if (part_of(sections_[i]) != part) continue;
        const std::size_t unit = std::max<std::size_t>(1, sections_[i].sh_addralign);
        if (unit > page || sections_[i].sh_size > std::size_t{1} << 30)
          refuse("a section is too large or too much aligned");
        places_[i] = round_up(size_, unit);
        size_ = places_[i] + sections_[i].sh_size;
      }
      if (part == kRun) {
        stubs_at_ = round_up(size_, kStubBytes);
        size_ = stubs_at_ + stubs_.size() * kStubBytes;
      }
      if (part == kRead) {
        table_at_ = round_up(size_, sizeof(void*));
        size_ = table_at_ + table_.size() * sizeof(void*);
      }
      size_ = round_up(size_, page);
    }
    begins_[kParts] = size_;
    if (size_ == 0) refuse("it is empty");
  }

  std::byte* map() {
    void* const memory =
        ::mmap(nullptr, size_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED)
      throw DeviceError(fmt::format("out of memory: no {} bytes for the machine code of '{}': {}",
                                    size_, name_, std::generic_category().message(errno)));
    return base_ = static_cast<std::byte*>(memory);
  }

  void copy_sections() {
    for (std::size_t i = 0; i < sections_.size(); ++i) {
      if (!is_placed(i) || sections_[i].sh_type == SHT_NOBITS) continue;
      const std::string_view content = bytes(sections_[i].sh_offset, sections_[i].sh_size);
      std::memcpy(base_ + places_[i], content.data(), content.size());
    }
    for (const auto& [index, slot] : stubs_) {
      std::byte* const stub = base_ + stubs_at_ + slot * kStubBytes;
      const std::uint64_t target = address_of(index);
      std::memcpy(stub, kStub, sizeof kStub);
      std::memcpy(stub + sizeof kStub, &target, sizeof target);
    }
    for (const auto& [index, slot] : table_) {
      const std::uint64_t target = address_of(index);
      std::memcpy(base_ + table_at_ + slot * sizeof target, &target, sizeof target);
    }
  }

  std::uint64_t address_of(std::size_t index) const {
    const Elf64_Sym& found = symbol(index);
    if (found.st_shndx == SHN_ABS) return found.st_value;
    if (found.st_shndx == SHN_UNDEF) {
      const std::string name = name_of(found);
      void* const address = process_symbol(name.c_str());
      if (address == nullptr && ELF64_ST_BIND(found.st_info) != STB_WEAK)
        refuse("it needs '" + name + "', which this process does not have");
      return reinterpret_cast<std::uint64_t>(address);
    }
    if (!is_placed(found.st_shndx) || found.st_value > sections_[found.st_shndx].sh_size)
      refuse("a symbol lies outside of its section");
    return reinterpret_cast<std::uint64_t>(base_) + places_[found.st_shndx] + found.st_value;
  }

  void relocate(const Elf64_Shdr& relocations) {
    if (!is_placed(relocations.sh_info)) return;
    const Elf64_Shdr& section = sections_[relocations.sh_info];
    for (const Elf64_Rela& entry : read_table<Elf64_Rela>(relocations)) {
      const auto type = static_cast<std::uint32_t>(ELF64_R_TYPE(entry.r_info));
      const std::size_t width = type == R_X86_64_64 || type == R_X86_64_PC64 ? 8 : 4;
      if (section.sh_type == SHT_NOBITS || entry.r_offset > section.sh_size ||
          width > section.sh_size - entry.r_offset)
        refuse("a relocation lies outside of its section");
      std::byte* const place = base_ + places_[relocations.sh_info] + entry.r_offset;
      apply(place, type, ELF64_R_SYM(entry.r_info), static_cast<std::uint64_t>(entry.r_addend));
    }
  }

  void apply(std::byte* place, std::uint32_t type, std::size_t index, std::uint64_t addend) {
    const auto own = reinterpret_cast<std::uint64_t>(place);
    const auto base = reinterpret_cast<std::uint64_t>(base_);
    if (type == R_X86_64_64) return store(place, address_of(index) + addend);
    if (type == R_X86_64_PC64) return store(place, address_of(index) + addend - own);
    std::uint64_t target = 0;
    if (const auto stub = stubs_.find(index); type == R_X86_64_PLT32 && stub != stubs_.end())
      target = base + stubs_at_ + stub->second * kStubBytes;
    else if (type == R_X86_64_PLT32 || type == R_X86_64_PC32)
      target = address_of(index);
    else if (by_table(type))
      target = base + table_at_ + table_.at(index) * sizeof(void*);
    else
      refuse("it has a relocation of type " + std::to_string(type));
    const auto distance = static_cast<std::int64_t>(target + addend - own);
    if (distance < std::numeric_limits<std::int32_t>::min() ||
        distance > std::numeric_limits<std::int32_t>::max())
      refuse("'" + name_of(symbol(index)) + "' is too far away");
    store(place, static_cast<std::int32_t>(distance));
  }

  template <class T>
  static void store(std::byte* place, T value) {
    std::memcpy(place, &value, sizeof value);
  }

  void protect() const {
    const int rights[kParts] = {PROT_READ | PROT_EXEC, PROT_READ, PROT_READ | PROT_WRITE};
    for (const Part part : {kRun, kRead, kWrite}) {
      const std::size_t end = begins_[part + 1];
      if (end > begins_[part] &&
          ::mprotect(base_ + begins_[part], end - begins_[part], rights[part]) != 0)
        refuse("the system does not let memory run as code: " +
               std::generic_category().message(errno));
    }
  }

  std::vector<std::pair<std::string, void*>> own_symbols() const {
    std::vector<std::pair<std::string, void*>> found;
    for (std::size_t i = 0; i < symbols_.size(); ++i) {
      const Elf64_Sym& entry = symbols_[i];
      if (ELF64_ST_BIND(entry.st_info) == STB_LOCAL || entry.st_shndx == SHN_UNDEF) continue;
      found.emplace_back(name_of(entry), reinterpret_cast<void*>(address_of(i)));
    }
    std::ranges::sort(found);
    return found;
  }

  std::string_view name_;
  std::string_view object_;
  std::vector<Elf64_Shdr> sections_;
  std::vector<std::size_t> places_;  // by section: offset from base_
  std::vector<Elf64_Sym> symbols_;
  std::string_view names_;
  std::map<std::size_t, std::size_t> stubs_;  // symbol to slot
  std::map<std::size_t, std::size_t> table_;  // symbol to slot
  std::size_t begins_[kParts + 1] = {};
  std::size_t stubs_at_ = 0;
  std::size_t table_at_ = 0;
  std::size_t size_ = 0;
  std::byte* base_ = nullptr;
};

}  // namespace

CpuCode::CpuCode(std::string_view name, std::string_view object) : name_(name) {
  Placer::Placed placed = Placer(name, object).place();
  base_ = placed.base;
  size_ = placed.size;
  symbols_ = std::move(placed.symbols);
}

CpuCode::~CpuCode() { ::munmap(base_, size_); }

void* CpuCode::symbol(std::string_view name) const {
  const auto found = std::ranges::lower_bound(
      symbols_, name, {}, [](const auto& entry) { return std::string_view(entry.first); });
  if (found != symbols_.end() && found->first == name) return found->second;
  throw InternalError(fmt::format("the machine code of '{}' has no function '{}'", name_, name));
}

std::vector<std::string> CpuCode::symbols() const {
  std::vector<std::string> names;
  for (const auto& [name, address] : symbols_) names.push_back(name);
  return names;
}

}  // namespace segfuse::jit
