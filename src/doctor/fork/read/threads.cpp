#include "doctor/fork/read/threads.h"

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cstring>
#include <map>
#include <set>
#include <span>
#include <thread>

#include "base/text.h"
#include "doctor/fork/page.h"

namespace segfuse::doctor {

namespace {

/// Words that are looked at, at the upper end of a mapping and below a thread's descriptor.
constexpr std::uint64_t kSearched = 16384;
/// Above a stack pointer: frames of a thread, and all that touches its stack.
constexpr std::uint64_t kMaxAbovePointer = std::uint64_t{64} << 20;
// Of glibc's struct pthread on x86-64.
constexpr std::uint64_t kListOffset = 0x2c0;    ///< of all threads
constexpr std::uint64_t kNumberOffset = 0x2d0;  ///< the thread's
constexpr std::uint64_t kDescriptor = 0x900;    ///< bytes of it
constexpr std::size_t kMaxThreads = 65536;
constexpr std::uint64_t kMinStack = 16384;  ///< PTHREAD_STACK_MIN

/// "number arguments... sp pc" of /proc/PID/task/TID/syscall; 0 while the thread runs.
std::uint64_t stack_pointer_of(const Process& process, const std::string& thread) {
  for (int attempt = 0; attempt < 3; ++attempt) {
    const std::optional<std::string> text = process.try_read("task/" + thread + "/syscall");
    if (!text) return 0;
    const std::vector<Field> fields = split_fields(trim(*text));
    if (fields.size() >= 3) {
      std::string_view word = fields[fields.size() - 2].text;
      if (word.starts_with("0x")) word.remove_prefix(2);
      std::uint64_t value = 0;
      std::from_chars(word.data(), word.data() + word.size(), value, 16);
      return value;
    }
    std::this_thread::sleep_for(std::chrono::microseconds(200));
  }
  return 0;
}

std::vector<std::uint64_t> words_of(const MemoryReader& memory, std::uint64_t begin,
                                    std::uint64_t end) {
  std::vector<std::uint64_t> words((end - begin) / 8);
  const std::size_t read = memory.read(begin, std::as_writable_bytes(std::span(words)));
  words.resize(read / 8);
  return words;
}

/// A descriptor begins with its own address, twice with one word between. Number of its thread.
std::optional<int> number_of_descriptor(std::span<const std::uint64_t> words,
                                        std::uint64_t address) {
  constexpr std::size_t kNumber = kNumberOffset / 8;
  if (words.size() <= kNumber || words[0] != address || words[2] != address) return std::nullopt;
  return static_cast<int>(words[kNumber] & 0x7fffffff);
}

/// Descriptors by number in [begin, end), which begins at a multiple of 64; up to that of `wanted`.
void find_descriptors(const MemoryReader& memory, std::uint64_t begin, std::uint64_t end,
                      std::map<int, std::uint64_t>& descriptors, int wanted) {
  constexpr std::uint64_t kBlock = 1U << 14;
  for (std::uint64_t at = begin; at < end; at += kBlock) {
    // The number lies behind the words that a descriptor begins with.
    const std::vector<std::uint64_t> words =
        words_of(memory, at, std::min(end, at + kBlock + kDescriptor));
    for (std::size_t i = 0; i < std::min<std::size_t>(words.size(), kBlock / 8); i += 8)
      if (const auto number = number_of_descriptor(std::span(words).subspan(i), at + i * 8)) {
        descriptors[*number] = at + i * 8;
        if (*number == wanted) return;
      }
    if (words.empty()) return;
  }
}

/// All threads are in two lists, which begin and end in the loader's variables.
void follow_lists(const MemoryReader& memory, std::map<int, std::uint64_t>& descriptors) {
  std::set<std::uint64_t> seen;
  std::vector<std::uint64_t> open;
  for (const auto& [number, descriptor] : descriptors) open.push_back(descriptor + kListOffset);
  while (!open.empty() && seen.size() < kMaxThreads) {
    const std::uint64_t entry = open.back();
    open.pop_back();
    if (entry < kPage || !seen.insert(entry).second) continue;
    const std::uint64_t descriptor = entry - kListOffset;
    const std::vector<std::uint64_t> words =
        words_of(memory, descriptor, descriptor + kNumberOffset + 8);
    if (const auto number = number_of_descriptor(words, descriptor))
      descriptors.try_emplace(*number, descriptor);
    for (const std::uint64_t next : words_of(memory, entry, entry + 8)) open.push_back(next);
  }
}

/// Address and size of its stack are two neighbouring words of a descriptor.
void find_stack(const MemoryReader& memory, ThreadPlace& thread) {
  const std::uint64_t descriptor = thread.descriptor;
  const std::vector<std::uint64_t> words =
      words_of(memory, descriptor + kNumberOffset + 8, descriptor + kDescriptor);
  thread.stack_end = page_begin(descriptor + kDescriptor + kPage - 1);
  for (std::size_t i = 0; i + 1 < words.size(); ++i) {
    const std::uint64_t begin = words[i];
    const std::uint64_t bytes = words[i + 1];
    if (begin >= descriptor || bytes < kMinStack || bytes > (std::uint64_t{1} << 46)) continue;
    const std::uint64_t end = begin + bytes;
    if (end < descriptor + kNumberOffset || end > thread.stack_end + kPage) continue;
    thread.stack_begin = page_begin(begin);
    thread.stack_end = page_begin(end + kPage - 1);
    return;
  }
}

/// The number that the thread itself knows: /proc may be of an outer container.
int number_inside(const Process& process, const std::string& thread, int number) {
  const std::optional<std::string> status = process.try_read("task/" + thread + "/status");
  const std::size_t at = status ? status->find("\nNSpid:") : std::string::npos;
  if (at == std::string::npos) return number;
  const std::size_t end = std::min(status->find('\n', at + 1), status->size());
  const std::vector<Field> fields =
      split_fields(std::string_view(*status).substr(at + 1, end - at - 1));
  return fields.empty() ? number : static_cast<int>(parse_int(fields.back().text).value_or(number));
}

const Mapping* mapping_at(const std::vector<Mapping>& mappings, std::uint64_t address) {
  const auto found =
      std::upper_bound(mappings.begin(), mappings.end(), address,
                       [](std::uint64_t at, const Mapping& mapping) { return at < mapping.end; });
  return found == mappings.end() || address < found->begin ? nullptr : &*found;
}

/// Where no stack pointer helps: upper ends of what may be a stack.
void search_ends(const MemoryReader& memory, const std::vector<Vma>& vmas,
                 const std::vector<Mapping>& mappings, std::map<int, std::uint64_t>& descriptors) {
  for (const Mapping& mapping : mappings) {
    const Vma& vma = vmas[mapping.first];
    if (!vma.name.empty() || !vma.writable || vma.shared || mapping.first == 0) continue;
    // A thread's stack stands above a page without rights.
    const Vma& below = vmas[mapping.first - 1];
    if (below.end != vma.begin || below.readable) continue;
    for (std::size_t i = mapping.first; i <= mapping.last && i < mapping.first + 8; ++i)
      find_descriptors(memory, vmas[i].end - std::min(vmas[i].bytes(), kSearched), vmas[i].end,
                       descriptors, 0);
    find_descriptors(memory, mapping.end - std::min(mapping.end - mapping.begin, kSearched),
                     mapping.end, descriptors, 0);
  }
}

}  // namespace

std::vector<ThreadPlace> find_threads(const Process& process, const std::vector<Vma>& vmas,
                                      const std::vector<Mapping>& mappings) {
  std::vector<ThreadPlace> threads;
  std::vector<int> numbers;
  for (const std::string& entry : process.list("task")) {
    ThreadPlace thread;
    thread.id = static_cast<int>(parse_int(entry).value_or(0));
    if (thread.id == 0) continue;
    thread.stack_pointer = stack_pointer_of(process, entry);
    thread.name = trim(process.try_read("task/" + entry + "/comm").value_or(""));
    threads.push_back(std::move(thread));
  }
  std::sort(threads.begin(), threads.end(), [&](const ThreadPlace& a, const ThreadPlace& b) {
    return std::pair(a.id != process.pid(), a.id) < std::pair(b.id != process.pid(), b.id);
  });

  std::map<int, std::uint64_t> descriptors;
  for (const ThreadPlace& thread : threads) {
    numbers.push_back(number_inside(process, std::to_string(thread.id), thread.id));
    const Mapping* mapping = mapping_at(mappings, thread.stack_pointer);
    if (mapping == nullptr || !vmas[mapping->first].name.empty() || vmas[mapping->first].shared)
      continue;
    const std::uint64_t begin = thread.stack_pointer & ~std::uint64_t{63};
    find_descriptors(process, begin, std::min(mapping->end, begin + kMaxAbovePointer), descriptors,
                     numbers.back());
  }
  // The first thread has the kernel's stack, but in a child that another thread forked.
  const auto place_in_stack = [&](std::size_t i) {
    const Mapping* mapping = mapping_at(mappings, threads[i].stack_pointer);
    return i > 0 || (mapping != nullptr && vmas[mapping->first].name.empty());
  };
  const auto all_found = [&] {
    for (std::size_t i = 0; i < numbers.size(); ++i)
      if (place_in_stack(i) && !descriptors.contains(numbers[i])) return false;
    return true;
  };
  if (all_found() && descriptors.empty()) return threads;
  if (descriptors.empty()) search_ends(process, vmas, mappings, descriptors);
  if (!all_found()) follow_lists(process, descriptors);
  if (!all_found()) search_ends(process, vmas, mappings, descriptors);
  for (std::size_t i = 0; i < threads.size(); ++i)
    if (const auto found = descriptors.find(numbers[i]);
        found != descriptors.end() && place_in_stack(i)) {
      threads[i].descriptor = found->second;
      find_stack(process, threads[i]);
    }
  return threads;
}

std::optional<int> thread_of_arena(const MemoryReader& memory,
                                   const std::vector<ThreadPlace>& threads, std::uint64_t arena) {
  for (const ThreadPlace& thread : threads) {
    if (thread.descriptor < kSearched) continue;
    for (const std::uint64_t word :
         words_of(memory, thread.descriptor - kSearched, thread.descriptor))
      if (word == arena) return thread.id;
  }
  return std::nullopt;
}

}  // namespace segfuse::doctor
