#include "doctor/hook/symbols.h"

#include <elf.h>
#include <link.h>

#include <cstdint>
#include <cstring>

namespace segfuse::hook {
namespace {

struct Tables {
  const ElfW(Sym) * symbols = nullptr;
  const char* names = nullptr;
  const std::uint32_t* hash = nullptr;
  const ElfW(Half) * versions = nullptr;
};

Tables tables_of(const dl_phdr_info& object) {
  Tables tables;
  const ElfW(Dyn)* entry = nullptr;
  for (int i = 0; i < object.dlpi_phnum; ++i)
    if (object.dlpi_phdr[i].p_type == PT_DYNAMIC)
      entry = reinterpret_cast<const ElfW(Dyn)*>(object.dlpi_addr + object.dlpi_phdr[i].p_vaddr);
  if (entry == nullptr) return tables;
  for (; entry->d_tag != DT_NULL; ++entry) {
    // The loader has made addresses of them, but for the kernel's own object.
    const auto at = entry->d_un.d_ptr >= object.dlpi_addr ? entry->d_un.d_ptr
                                                          : object.dlpi_addr + entry->d_un.d_ptr;
    if (entry->d_tag == DT_SYMTAB) tables.symbols = reinterpret_cast<const ElfW(Sym)*>(at);
    if (entry->d_tag == DT_STRTAB) tables.names = reinterpret_cast<const char*>(at);
    if (entry->d_tag == DT_GNU_HASH) tables.hash = reinterpret_cast<const std::uint32_t*>(at);
    if (entry->d_tag == DT_VERSYM) tables.versions = reinterpret_cast<const ElfW(Half)*>(at);
  }
  return tables;
}

std::uint32_t hash_of(const char* name) {
  std::uint32_t hash = 5381;
  for (; *name != '\0'; ++name) hash = hash * 33 + static_cast<unsigned char>(*name);
  return hash;
}

/// By the table of hashes: buckets of chains, whose last entry has its lowest bit set.
const ElfW(Sym) * find_in(const Tables& tables, const char* name) {
  if (tables.symbols == nullptr || tables.names == nullptr || tables.hash == nullptr)
    return nullptr;
  const std::uint32_t buckets = tables.hash[0];
  const std::uint32_t first = tables.hash[1];
  const std::uint32_t* const bucket = tables.hash + 4 + tables.hash[2] * (sizeof(ElfW(Addr)) / 4);
  const std::uint32_t* const chain = bucket + buckets;
  if (buckets == 0) return nullptr;
  const std::uint32_t wanted = hash_of(name);
  const ElfW(Sym)* found = nullptr;
  for (std::uint32_t i = bucket[wanted % buckets]; i >= first; ++i) {
    const ElfW(Sym)& symbol = tables.symbols[i];
    const bool same = ((chain[i - first] ^ wanted) >> 1) == 0 &&
                      std::strcmp(tables.names + symbol.st_name, name) == 0;
    if (same && symbol.st_shndx != SHN_UNDEF && symbol.st_value != 0) {
      constexpr ElfW(Half) kHidden = 0x8000;  // an old version
      const bool hidden = tables.versions != nullptr && (tables.versions[i] & kHidden) != 0;
      if (found == nullptr || !hidden) found = &symbol;
    }
    if ((chain[i - first] & 1) != 0) break;
  }
  return found;
}

struct Search {
  const char* name;
  const char* const* files;
  std::size_t count;
  void* found;
};

int look(dl_phdr_info* object, std::size_t, void* data) {
  auto& search = *static_cast<Search*>(data);
  const char* const path = object->dlpi_name == nullptr ? "" : object->dlpi_name;
  const char* const slash = std::strrchr(path, '/');
  const char* const file = slash == nullptr ? path : slash + 1;
  for (std::size_t i = 0; i < search.count; ++i) {
    if (std::strncmp(file, search.files[i], std::strlen(search.files[i])) != 0) continue;
    if (const auto* symbol = find_in(tables_of(*object), search.name)) {
      search.found = reinterpret_cast<void*>(object->dlpi_addr + symbol->st_value);
      return 1;
    }
  }
  return 0;
}

}  // namespace

void* find_symbol(const char* name, const char* const* files, std::size_t count) noexcept {
  Search search{name, files, count, nullptr};
  dl_iterate_phdr(look, &search);
  return search.found;
}

}  // namespace segfuse::hook
