#include "doctor/memory/model_device.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>

#include "segfuse/error.h"

namespace segfuse::doctor {

void* ModelDevice::new_moment() {
  if (unused_.empty()) {
    moments_.push_back(std::make_unique<Moment>());
    return moments_.back().get();
  }
  Moment* const moment = unused_.back();
  unused_.pop_back();
  *moment = {};
  return moment;
}

runtime::StreamHandle ModelDevice::create_stream() { return runtime::StreamHandle(new_moment()); }
void ModelDevice::destroy_stream(runtime::StreamHandle stream) noexcept {
  unused_.push_back(&at(stream));
}
runtime::EventHandle ModelDevice::create_event() { return runtime::EventHandle(new_moment()); }
void ModelDevice::destroy_event(runtime::EventHandle event) noexcept {
  unused_.push_back(&at(event));
}

void ModelDevice::synchronize(runtime::StreamHandle stream) {
  ++counts_.host_waits;
  now_ = std::max(now_, at(stream).time);
}

void ModelDevice::synchronize_event(runtime::EventHandle event) {
  ++counts_.host_waits;
  now_ = std::max(now_, at(event).time);
}

void ModelDevice::record(runtime::StreamHandle stream, runtime::EventHandle event) {
  ++counts_.records;
  at(event).time = std::max(now_, at(stream).time);
}

void ModelDevice::wait(runtime::StreamHandle stream, runtime::EventHandle event) {
  ++counts_.waits;
  at(stream).time = std::max(at(stream).time, at(event).time);
}

bool ModelDevice::query(runtime::EventHandle event) {
  ++counts_.queries;
  return at(event).time <= now_;
}

// A range begins at `at`, if any covers it.
void ModelDevice::split(std::uintptr_t at) {
  auto next = ranges_.lower_bound(at);
  if (next == ranges_.begin()) return;
  const auto before = std::prev(next);
  if (before->second.end <= at) return;
  Range rest = before->second;
  before->second.end = at;
  ranges_.emplace_hint(next, at, rest);
}

bool ModelDevice::touch(const runtime::MemoryAccess& access, double begin, double end) {
  if (access.bytes == 0) return false;
  const auto from = reinterpret_cast<std::uintptr_t>(access.address);
  const std::uintptr_t to = from + access.bytes;
  split(from);
  split(to);
  bool conflict = false;
  std::uintptr_t known = from;
  const auto use = [&](Range& range) {
    conflict = conflict || begin < range.written || (access.write && begin < range.read);
    double& last = access.write ? range.written : range.read;
    last = std::max(last, end);
  };
  for (auto range = ranges_.lower_bound(from); known < to; ++range) {
    const bool inside = range != ranges_.end() && range->first < to;
    const std::uintptr_t gap_end = inside ? range->first : to;
    if (known < gap_end) {
      range = ranges_.emplace(known, Range{gap_end, 0, 0}).first;
      use(range->second);
      known = gap_end;
      continue;
    }
    use(range->second);
    known = range->second.end;
  }
  return conflict;
}

void ModelDevice::launch(runtime::StreamHandle stream, runtime::Work /*work*/,
                         std::span<const runtime::MemoryAccess> accesses) {
  ++counts_.launches;
  const double begin = std::max(now_, at(stream).time);
  const double end = begin + duration_;
  at(stream).time = end;
  finish_ = std::max(finish_, end);
  bool conflict = false;
  for (const runtime::MemoryAccess& access : accesses)
    conflict = touch(access, begin, end) || conflict;
  counts_.conflicts += conflict ? 1 : 0;
}

void ModelDevice::copy(runtime::StreamHandle stream, void* to, const void* from,
                       std::size_t bytes) {
  const std::array accesses = {
      runtime::MemoryAccess{static_cast<std::byte*>(const_cast<void*>(from)), bytes, false, ""},
      runtime::MemoryAccess{static_cast<std::byte*>(to), bytes, true, ""}};
  launch(stream, {}, accesses);
}

void ModelDevice::fill(runtime::StreamHandle stream, void* at, std::uint8_t /*value*/,
                       std::size_t bytes) {
  const runtime::MemoryAccess access{static_cast<std::byte*>(at), bytes, true, ""};
  launch(stream, {}, {&access, 1});
}

std::byte* ModelDevice::reserve(std::size_t bytes) {
  const std::uintptr_t address = next_address_;
  next_address_ += bytes;
  return reinterpret_cast<std::byte*>(address);
}

void ModelDevice::map(std::byte* /*address*/, std::size_t bytes) {
  if (bytes > options_.limit - mapped_) throw runtime::NoMemory();
  ++counts_.maps;
  mapped_ += bytes;
  peak_mapped_ = std::max(peak_mapped_, mapped_);
}

void ModelDevice::unmap(std::byte* /*address*/, std::size_t bytes) { mapped_ -= bytes; }

std::byte* ModelDevice::allocate_pinned(std::size_t bytes) {
  throw UsageError(
      fmt::format("model: {} bytes of pinned memory were requested; a model has no memory", bytes));
}

}  // namespace segfuse::doctor
