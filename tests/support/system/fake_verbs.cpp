// What a verbs library with an adapter does when memory is registered, without the adapter: whole
// pages are kept from children, once, however many registrations lie in them.

#include <sys/mman.h>

#include <cstdint>
#include <cstdlib>
#include <map>

namespace {

struct Region {
  void* context;
  void* domain;
  void* address;
  std::size_t bytes;
};

constexpr std::uintptr_t kPage = 4096;
std::map<std::uintptr_t, int>& counts() {
  static std::map<std::uintptr_t, int> counts;
  return counts;
}

template <class Change>
void for_pages(void* address, std::size_t bytes, const Change& change) {
  const auto begin = reinterpret_cast<std::uintptr_t>(address);
  for (std::uintptr_t page = begin & ~(kPage - 1); page < begin + bytes; page += kPage)
    change(reinterpret_cast<void*>(page), counts()[page]);
}

}  // namespace

extern "C" {

int ibv_fork_init() { return 0; }

Region* ibv_reg_mr(void* domain, void* address, std::size_t bytes, int) {
  for_pages(address, bytes, [](void* page, int& count) {
    if (count++ == 0) madvise(page, kPage, MADV_DONTFORK);
  });
  auto* region = static_cast<Region*>(std::malloc(sizeof(Region)));
  *region = {nullptr, domain, address, bytes};
  return region;
}

int ibv_dereg_mr(Region* region) {
  for_pages(region->address, region->bytes, [](void* page, int& count) {
    if (--count == 0) madvise(page, kPage, MADV_DOFORK);
  });
  std::free(region);
  return 0;
}
}
