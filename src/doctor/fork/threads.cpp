#include "doctor/fork/threads.h"

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cstring>
#include <map>
#include <thread>

#include "base/text.h"

namespace segfuse::doctor {

namespace {

constexpr std::uint64_t kPage = 4096;
/// Words that are looked at, at the upper end of a stack and below a thread's descriptor.
constexpr std::uint64_t kSearched = 4 * kPage;
/// Of the thread's number in glibc's struct pthread on x86-64.
constexpr std::uint64_t kNumberOffset = 0x2d0;

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

/// A descriptor begins with its own address, twice with one word between.
void find_descriptor(const MemoryReader& memory, const Mapping& mapping,
                     std::map<int, std::uint64_t>& descriptors) {
  const std::uint64_t begin = mapping.end - std::min(mapping.end - mapping.begin, kSearched);
  const std::vector<std::uint64_t> words = words_of(memory, begin, mapping.end);
  for (std::size_t i = 0; i + 3 <= words.size(); i += 8) {
    const std::uint64_t address = begin + i * 8;
    const std::size_t number = i + kNumberOffset / 8;
    if (words[i] != address || words[i + 2] != address || number >= words.size()) continue;
    descriptors[static_cast<int>(words[number] & 0x7fffffff)] = address;
  }
}

}  // namespace

std::vector<ThreadPlace> find_threads(const Process& process, const std::vector<Vma>& vmas,
                                      const std::vector<Mapping>& mappings) {
  std::vector<ThreadPlace> threads;
  for (const std::string& entry : process.list("task")) {
    ThreadPlace thread;
    thread.id = static_cast<int>(parse_int(entry).value_or(0));
    if (thread.id == 0) continue;
    thread.stack_pointer = stack_pointer_of(process, entry);
    thread.name = trim(process.try_read("task/" + entry + "/comm").value_or(""));
    threads.push_back(std::move(thread));
  }
  std::sort(threads.begin(), threads.end(),
            [](const ThreadPlace& a, const ThreadPlace& b) { return a.id < b.id; });
  if (threads.size() < 2) return threads;

  // A thread's stack stands above a page without rights; its first page says nothing.
  std::map<int, std::uint64_t> descriptors;
  for (const Mapping& mapping : mappings) {
    const Vma& vma = vmas[mapping.first];
    if (!vma.name.empty() || !vma.writable || vma.shared || mapping.first == 0) continue;
    const Vma& below = vmas[mapping.first - 1];
    if (below.end == vma.begin && !below.readable) find_descriptor(process, mapping, descriptors);
  }
  for (ThreadPlace& thread : threads)
    if (const auto found = descriptors.find(thread.id); found != descriptors.end())
      thread.descriptor = found->second;
  return threads;
}

std::optional<int> thread_of_arena(const MemoryReader& memory,
                                   const std::vector<ThreadPlace>& threads, std::uint64_t arena) {
  for (const ThreadPlace& thread : threads) {
    if (thread.descriptor < kSearched) continue;
    for (const std::uint64_t word : words_of(memory, thread.descriptor - kPage, thread.descriptor))
      if (word == arena) return thread.id;
  }
  return std::nullopt;
}

}  // namespace segfuse::doctor
