#include "doctor/fork/judge/owner.h"

#include <fmt/ranges.h>

#include <algorithm>

#include "doctor/fork/page.h"
#include "doctor/fork/read/python_heap.h"
#include "doctor/record.h"

namespace segfuse::doctor {

namespace {

/// fork() itself needs some stack below the place it is called from.
constexpr std::uint64_t kBelowStackPointer = 8192;

bool is_driver(const Vma& vma) {
  return vma.device || vma.name.starts_with("anon_inode:") ||
         (vma.name.starts_with("/dev/") && !vma.name.starts_with("/dev/shm/") &&
          !vma.name.starts_with("/dev/zero")) ||
         vma.name.starts_with("[v") || vma.name.starts_with("[uprobes") ||
         vma.name.starts_with("/[aio]");
}

bool is_memfd(const std::string& name) { return name.starts_with("/memfd:"); }

/// "name" of "/memfd:name (deleted)".
std::string memfd_name(const std::string& name) {
  std::string inner = name.substr(7);
  if (const std::size_t at = inner.rfind(" (deleted)"); at != std::string::npos) inner.resize(at);
  return inner;
}

bool is_libc(const std::string& path) {
  const std::string_view file = std::string_view(path).substr(path.rfind('/') + 1);
  return file.starts_with("libc.so") || file.starts_with("libc-2.") ||
         file.starts_with("ld-linux") || file.starts_with("ld-musl");
}

std::string plural(std::uint64_t count, const char* one, const char* many) {
  return fmt::format("{} {}", count, count == 1 ? one : many);
}

}  // namespace

const char* owner_name(OwnerKind kind) {
  switch (kind) {
    case OwnerKind::kHeapChunk: return "heap chunk";
    case OwnerKind::kArenaHeader: return "arena header";
    case OwnerKind::kArenaChunk: return "arena chunk";
    case OwnerKind::kMmappedChunk: return "mmapped chunk";
    case OwnerKind::kPythonPool: return "Python pool";
    case OwnerKind::kThreadStack: return "thread stack";
    case OwnerKind::kMainStack: return "main stack";
    case OwnerKind::kBss: return ".bss";
    case OwnerKind::kData: return ".data";
    case OwnerKind::kFile: return "file mapping";
    case OwnerKind::kMemfd: return "memfd";
    case OwnerKind::kSlab: return "slab";
    case OwnerKind::kShared: return "shared memory";
    case OwnerKind::kDriver: return "driver mapping";
    case OwnerKind::kWhole: return "own mapping";
    case OwnerKind::kAnonymous: break;
  }
  return "anonymous";
}

Owners::Owners(const Process& process, const std::vector<Vma>& vmas, std::vector<Mapping> mappings)
    : memory_(&process), vmas_(&vmas), mappings_(std::move(mappings)), mmapped_(process) {}

void Owners::find_ends() {
  threads_ = find_threads(*memory_, *vmas_, mappings_);
  variables_ = find_variables(*memory_, *vmas_);
  std::vector<std::uint64_t> ends;
  for (const ThreadPlace& thread : threads_)
    if (thread.stack_end != 0) ends.insert(ends.end(), {thread.stack_begin, thread.stack_end});
  for (const Variables& part : variables_) ends.push_back(part.last_page_end());
  mappings_ = cut_mappings(mappings_, *vmas_, std::move(ends));
}

std::string Owners::thread_name(int id) const {
  for (const ThreadPlace& thread : threads_)
    if (thread.id == id && !thread.name.empty()) return fmt::format("{} ({})", id, thread.name);
  return std::to_string(id);
}

Owner Owners::of(std::uint64_t begin, std::uint64_t end, std::size_t index) {
  const Mapping& mapping = mappings_[index];
  const Vma& vma = (*vmas_)[mapping.first];
  if (is_driver(vma))
    return {.kind = OwnerKind::kDriver,
            .sentence = fmt::format("a driver's: {}", vma.name.empty() ? "unnamed" : vma.name)};
  if (vma.name == "[heap]") return in_heap(begin, end, mapping);
  if (auto stack = in_stack(begin, end, mapping)) return *stack;
  if (!vma.name.empty() && (is_memfd(vma.name) || vma.shared)) return in_file(begin, end, mapping);
  // Before variables: such a pool's mapping may touch a library's.
  if (vma.name.empty() && !vma.shared && vma.writable)
    if (auto python = in_python(begin, end)) return *python;
  if (auto program = in_program(begin, end, index)) return *program;
  if (!vma.name.empty() && vma.name[0] != '[') return in_file(begin, end, mapping);
  if (!vma.shared && vma.writable)
    if (auto arena = in_arena(begin, end)) return *arena;
  return in_anonymous(begin, end, mapping);
}

const ChunkWalk& Owners::chunks_of(std::uint64_t first, std::uint64_t end) {
  const auto [found, missing] = walks_.try_emplace(first);
  if (missing) {
    found->second = walk_chunks(*memory_, first, end);
    if (!found->second.complete) consistent_ = false;
  }
  return found->second;
}

void Owners::describe_chunks(Owner& owner, std::uint64_t begin, std::uint64_t end,
                             const ChunkWalk& walk) const {
  auto chunk = std::partition_point(walk.chunks.begin(), walk.chunks.end(),
                                    [&](const Chunk& c) { return c.end() <= begin; });
  std::uint64_t live = 0;
  std::uint64_t touched = 0;
  const Chunk* first_live = nullptr;
  for (; chunk != walk.chunks.end() && chunk->begin < end; ++chunk) {
    ++touched;
    if (chunk->begin >= begin) ++owner.headers;
    if (chunk->live) {
      ++live;
      if (first_live == nullptr) first_live = &*chunk;
    } else if (chunk->end() == walk.chunks.back().end()) {
      owner.unused_heap = true;
    }
  }
  if (touched == 0) {
    owner.sentence += walk.complete ? ", not yet handed out"
                                    : ", whose blocks do not add up (another allocator's, or "
                                      "changing while it was read)";
    return;
  }
  owner.live = live;
  if (first_live != nullptr) {
    owner.whole_chunk = live == 1 && owner.headers == 0;
    owner.sentence += fmt::format(", block {:#x} of {}{}", first_live->begin + 16,
                                  in_words(first_live->bytes - 8),
                                  live > 1 ? fmt::format(" and {} more in use", live - 1) : "");
  }
  owner.sentence +=
      fmt::format("; {} in these pages, {} in use", plural(touched, "block", "blocks"), live);
}

Owner Owners::in_heap(std::uint64_t begin, std::uint64_t end, const Mapping& mapping) {
  Owner owner{.kind = OwnerKind::kHeapChunk, .sentence = "malloc's main heap"};
  describe_chunks(owner, begin, end, chunks_of(mapping.begin, mapping.end));
  return owner;
}

std::optional<Owner> Owners::in_arena(std::uint64_t begin, std::uint64_t end) {
  const std::optional<ArenaHeap> heap = arena_heap_of(*memory_, begin);
  if (!heap) return std::nullopt;
  const ChunkWalk& walk = chunks_of(heap->first_chunk, heap->end);
  // Two words in front that look right are no proof; a heap that adds up is.
  if (walk.chunks.empty()) return std::nullopt;
  Owner owner;
  const std::optional<int> thread = thread_of_arena(*memory_, threads_, heap->arena);
  owner.sentence = fmt::format(
      "malloc arena {:#x} of {}", heap->arena,
      thread ? "thread " + thread_name(*thread) : std::string("a thread that was not found"));
  const bool header = heap->holds_arena && begin < heap->arena_end && end > heap->arena;
  owner.kind = header ? OwnerKind::kArenaHeader : OwnerKind::kArenaChunk;
  if (header) owner.sentence += ", its header";
  describe_chunks(owner, begin, std::min(end, heap->end), walk);
  if (header) owner.whole_chunk = false;
  return owner;
}

std::optional<Owner> Owners::in_stack(std::uint64_t begin, std::uint64_t end,
                                      const Mapping& mapping) {
  const bool main = (*vmas_)[mapping.first].name == "[stack]";
  for (const ThreadPlace& thread : threads_) {
    const auto inside = [&](std::uint64_t address) {
      return address >= mapping.begin && address < mapping.end;
    };
    // Elsewhere it runs on a stack of its own making (sigaltstack), of which only this is known.
    const bool elsewhere = thread.descriptor != 0 && !main && !inside(thread.descriptor);
    if (elsewhere && (thread.stack_pointer < begin || thread.stack_pointer >= end)) continue;
    if (!main && !inside(thread.stack_pointer) && !inside(thread.descriptor)) continue;
    if (main && thread.id != threads_.front().id && !inside(thread.stack_pointer)) continue;
    Owner owner{.kind = main ? OwnerKind::kMainStack : OwnerKind::kThreadStack};
    owner.sentence = fmt::format("stack of thread {}", thread_name(thread.id));
    const std::uint64_t pointer = inside(thread.stack_pointer)
                                      ? thread.stack_pointer
                                      : std::max(thread.descriptor, mapping.begin);
    owner.live_stack = pointer != 0 && end + kBelowStackPointer > pointer;
    if (thread.stack_pointer != 0 && inside(thread.stack_pointer))
      owner.sentence +=
          fmt::format(", which stood at {:#x}: {}", thread.stack_pointer,
                      owner.live_stack ? "frames that it returns to" : "below what it uses now");
    return owner;
  }
  if (main) return Owner{.kind = OwnerKind::kMainStack, .sentence = "stack of the first thread"};
  return std::nullopt;
}

/// The file whose writable part the mapping is, or follows without a gap; null without.
const Vma* Owners::file_before(std::size_t index) const {
  const Mapping& mapping = mappings_[index];
  const Vma& vma = (*vmas_)[mapping.first];
  const Vma* file = nullptr;
  if (vma.inode != 0) {
    file = &vma;
  } else if (index > 0 && vma.name.empty()) {
    const Mapping& before = mappings_[index - 1];
    const Vma& last = (*vmas_)[before.last];
    if (before.end == mapping.begin && last.inode != 0 && !last.shared) file = &last;
  }
  if (file == nullptr || is_memfd(file->name)) return nullptr;
  // Only a program or a library has its code mapped, too.
  const bool program = std::any_of(vmas_->begin(), vmas_->end(), [&](const Vma& other) {
    return other.inode == file->inode && other.name == file->name && other.offset == 0 &&
           &other != &vma && !other.shared;
  });
  return program ? file : nullptr;
}

/// ": counters, table and 3 more"; empty where the file has no symbols for them.
std::string Owners::names_of(const Variables& part, std::uint64_t begin, std::uint64_t end) {
  constexpr std::size_t kMaxNamed = 4;
  const auto [file, missing] = files_.try_emplace(part.head);
  if (missing) file->second = file_of_variables(*memory_, part);
  std::size_t count = 0;
  const std::vector<std::string> names = names_in(part, file->second, begin, end, kMaxNamed, count);
  if (names.empty()) return "";
  std::string text = fmt::format(": {}", fmt::join(names, ", "));
  if (count > names.size()) text += fmt::format(" and {} more", count - names.size());
  return text;
}

std::optional<Owner> Owners::in_program(std::uint64_t begin, std::uint64_t end, std::size_t index) {
  const Mapping& mapping = mappings_[index];
  const Vma& vma = (*vmas_)[mapping.first];
  if (vma.shared || !vma.writable || (vma.inode == 0 && !vma.name.empty())) return std::nullopt;
  const bool bss = vma.inode == 0;
  Owner owner{.kind = bss ? OwnerKind::kBss : OwnerKind::kData};
  const char* const what = bss ? "zero-initialised" : "initialised";
  if (const Variables* part = variables_at(variables_, begin)) {
    owner.of_libc = is_libc(part->file);
    owner.sentence = fmt::format("{} variables of {}", what, part->file);
    const std::string names = names_of(*part, begin, end);
    owner.sentence += names.empty() ? fmt::format(", {:#x} after the start of its variables",
                                                  begin - std::min(begin, part->begin))
                                    : names;
    return owner;
  }
  // Where memory cannot be read, what follows a file is taken for its variables.
  if (bss && memory_->memory_is_readable()) return std::nullopt;
  const Vma* file = file_before(index);
  if (file == nullptr) return std::nullopt;
  owner.of_libc = is_libc(file->name);
  owner.sentence = fmt::format("{} variables of {}, {:#x} after the start of their mapping", what,
                               file->name, begin - mapping.begin);
  return owner;
}

Owner Owners::in_file(std::uint64_t begin, std::uint64_t end, const Mapping& mapping) const {
  const Vma& vma = (*vmas_)[mapping.first];
  Owner owner{.kind = OwnerKind::kFile};
  if (is_memfd(vma.name)) {
    const std::string name = memfd_name(vma.name);
    const bool slab = name.starts_with("reg:");
    owner.kind = slab ? OwnerKind::kSlab : OwnerKind::kMemfd;
    owner.sentence =
        slab ? fmt::format("registered memory of '{}', which owns its pages", name.substr(4))
             : fmt::format("memfd '{}'", name);
  } else if (vma.name.starts_with("/dev/shm/") || vma.name.starts_with("/SYSV") ||
             vma.name.starts_with("/dev/zero")) {
    owner.kind = OwnerKind::kShared;
    owner.sentence = "shared memory " + vma.name;
  } else {
    owner.sentence = fmt::format("{} mapping of {}", vma.shared ? "shared" : "private", vma.name);
  }
  owner.whole_chunk = begin == mapping.begin && end == mapping.end;
  return owner;
}

bool Owners::is_guarded(const Mapping& mapping) const {
  const auto bars = [&](std::size_t index, std::uint64_t edge, bool below) {
    const Vma& vma = (*vmas_)[index];
    return !vma.readable && !vma.writable && (below ? vma.end == edge : vma.begin == edge);
  };
  return mapping.first > 0 && mapping.last + 1 < vmas_->size() &&
         bars(mapping.first - 1, mapping.begin, true) && bars(mapping.last + 1, mapping.end, false);
}

std::optional<Owner> Owners::in_python(std::uint64_t begin, std::uint64_t end) const {
  constexpr int kMaxPools = 4096;
  constexpr std::uint64_t kMinPool = 4096;  // bytes of a pool, where one begins
  Owner owner{.kind = OwnerKind::kPythonPool};
  std::uint64_t live = 0;
  std::uint64_t pools = 0;
  std::uint64_t block_bytes = 0;
  std::uint64_t at = begin;
  for (int i = 0; i < kMaxPools && at < end; ++i) {
    const std::optional<PythonPool> pool = python_pool_of(*memory_, at);
    at = pool ? pool->end() : (at | (kMinPool - 1)) + 1;
    if (!pool) continue;
    ++pools;
    block_bytes = pool->block_bytes;
    if (pool->begin >= begin) ++owner.headers;
    for (const std::uint64_t block : pool->live)
      if (block < end && block + pool->block_bytes > begin) ++live;
  }
  if (pools == 0) return std::nullopt;
  owner.live = live;
  owner.sentence =
      pools == 1
          ? fmt::format("a pool of Python's for objects of up to {} bytes, {} of them in use here",
                        block_bytes, live)
          : fmt::format("{} pools of Python's for small objects, {} of them in use here", pools,
                        live);
  return owner;
}

Owner Owners::in_anonymous(std::uint64_t begin, std::uint64_t end, const Mapping& mapping) {
  const Vma& vma = (*vmas_)[mapping.first];
  const bool whole = begin == mapping.begin && end == mapping.end;
  if (!vma.shared && !vma.huge) {
    if (const auto chunk = mmapped_.covering(begin, mapping.begin, mapping.end)) {
      Owner owner{.kind = OwnerKind::kMmappedChunk, .live = 1};
      owner.headers = chunk->begin >= begin && chunk->begin < end ? 1 : 0;
      // Without the page of its header, the block's owner alone is concerned.
      owner.whole_chunk =
          begin <= chunk->begin + kPage && end >= chunk->end() - kPage && end <= chunk->end();
      owner.sentence = fmt::format("malloc block {:#x} of {}, which has a mapping of its own",
                                   chunk->begin + 16, in_words(chunk->bytes - 16));
      return owner;
    }
  }
  if (whole && is_guarded(mapping))
    return {.kind = OwnerKind::kSlab,
            .sentence = "an anonymous mapping between pages without rights, as slabs have",
            .whole_chunk = true};
  if (whole)
    return {.kind = vma.shared ? OwnerKind::kShared : OwnerKind::kWhole,
            .sentence = "an anonymous mapping, the whole of it",
            .whole_chunk = true};
  return {.kind = OwnerKind::kAnonymous,
          .sentence = fmt::format("{} in an anonymous mapping of {}: of an allocator that is not "
                                  "glibc's, or a mapping that touches its neighbours",
                                  in_words(end - begin), in_words(mapping.end - mapping.begin))};
}

}  // namespace segfuse::doctor
