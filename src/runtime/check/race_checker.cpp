#include "runtime/check/race_checker.h"

#include <algorithm>

#include "base/mutex.h"
#include "runtime/check/listener.h"

namespace segfuse::runtime {
namespace {

AccessHistory::Range range_of(const void* address, std::size_t bytes) {
  const auto first = reinterpret_cast<std::uintptr_t>(address);
  return {first, first + bytes};
}

bool same_use(const Finding::Use& a, const Finding::Use& b) {
  return a.stream == b.stream && a.operation == b.operation;
}

}  // namespace

RaceChecker::RaceChecker(Device& device, CheckMode mode) : device_(device), mode_(mode) {}

std::vector<Finding> RaceChecker::findings() const {
  const MutexLock lock(mutex_);
  return findings_;
}

std::uint64_t RaceChecker::count() const {
  const MutexLock lock(mutex_);
  return count_;
}

void RaceChecker::name_stream(StreamHandle handle, std::string name) {
  const MutexLock lock(mutex_);
  if (const Stream* stream = find(handle)) stream_names_[stream->number] = std::move(name);
}

RaceChecker::Stream* RaceChecker::find(StreamHandle handle) {
  const auto found = streams_.find(handle);
  return found == streams_.end() ? nullptr : &found->second;
}

/// A slot whose work can race with nothing to come, or a new one.
std::size_t RaceChecker::free_slot() {
  const auto done = std::ranges::find_if(left_, [&](std::size_t slot) SEGFUSE_REQUIRES(mutex_) {
    return ticks_[slot] <= component(host_, slot);
  });
  if (done != left_.end()) {
    const std::size_t slot = *done;
    left_.erase(done);
    return slot;
  }
  ticks_.push_back(0);
  return ticks_.size() - 1;
}

StreamHandle RaceChecker::create_stream() {
  const MutexLock lock(mutex_);
  const StreamHandle handle = device_.create_stream();
  add(handle);
  return handle;
}

RaceChecker::Stream& RaceChecker::add(StreamHandle handle) {
  Stream stream;
  stream.slot = free_slot();
  stream.number = ++made_;
  return streams_[handle] = std::move(stream);
}

/// Takes up a stream that others have made. Throws the device's error if there is no such stream.
RaceChecker::Stream& RaceChecker::known(StreamHandle handle) {
  Stream* const found = find(handle);
  if (found != nullptr && !found->foreign) return *found;
  const std::uint64_t identity = device_.identity(handle);
  if (found != nullptr && found->identity == identity) return *found;
  if (found != nullptr) left_.push_back(found->slot);
  Stream& stream = add(handle);
  stream.foreign = true;
  stream.identity = identity;
  return stream;
}

void RaceChecker::destroy_stream(StreamHandle handle) noexcept {
  const MutexLock lock(mutex_);
  device_.destroy_stream(handle);
  const Stream* const stream = find(handle);
  if (stream == nullptr) return;
  left_.push_back(stream->slot);
  streams_.erase(handle);
}

/// What the next operation of the stream is ordered after.
VectorClock RaceChecker::clock_of(const Stream& stream) const {
  VectorClock clock = host_;
  join(clock, stream.clock);
  if (clock.size() <= stream.slot) clock.resize(stream.slot + 1);
  return clock;
}

bool RaceChecker::idle(StreamHandle handle) {
  const MutexLock lock(mutex_);
  const VectorClock seen = clock_of(known(handle));
  const bool is_idle = device_.idle(handle);
  if (is_idle) join(host_, seen);
  return is_idle;
}

void RaceChecker::synchronize(StreamHandle handle) {
  VectorClock seen;
  {
    const MutexLock lock(mutex_);
    if (handle) seen = clock_of(known(handle));
  }
  // A synchronisation that throws has waited as well.
  std::exception_ptr failure;
  try {
    device_.synchronize(handle);
  } catch (...) {
    failure = std::current_exception();
  }
  {
    const MutexLock lock(mutex_);
    join(host_, seen);
  }
  if (failure != nullptr) std::rethrow_exception(failure);
}

void RaceChecker::drain() {
  VectorClock seen;
  {
    const MutexLock lock(mutex_);
    seen = ticks_;
  }
  std::exception_ptr failure;
  try {
    device_.drain();
  } catch (...) {
    failure = std::current_exception();
  }
  {
    const MutexLock lock(mutex_);
    join(host_, seen);
  }
  if (failure != nullptr) std::rethrow_exception(failure);
}

EventHandle RaceChecker::create_event() {
  const MutexLock lock(mutex_);
  const EventHandle event = device_.create_event();
  events_[event] = nullptr;
  return event;
}

void RaceChecker::destroy_event(EventHandle event) noexcept {
  const MutexLock lock(mutex_);
  device_.destroy_event(event);
  events_.erase(event);
}

void RaceChecker::record(StreamHandle handle, EventHandle event) {
  const MutexLock lock(mutex_);
  device_.record(handle, event);
  const Stream* const stream = find(handle);
  if (stream == nullptr) return;
  events_[event] =
      std::make_shared<const Record>(Record{clock_of(*stream), stream->number, stream->operations});
  remember({Operation::Kind::kRecord, stream->number, stream->operations, 0, 0, 0});
}

void RaceChecker::wait(StreamHandle handle, EventHandle event) {
  const MutexLock lock(mutex_);
  device_.wait(handle, event);
  const auto found = events_.find(event);
  if (found == events_.end() || found->second == nullptr) return;
  Stream& stream = known(handle);
  const Record& record = *found->second;
  join(stream.clock, record.clock);
  remember({Operation::Kind::kWait, stream.number, stream.operations, 0, record.stream,
            record.operation});
}

bool RaceChecker::query(EventHandle event) {
  const MutexLock lock(mutex_);
  const bool complete = device_.query(event);
  const auto found = events_.find(event);
  if (complete && found != events_.end() && found->second != nullptr)
    join(host_, found->second->clock);
  return complete;
}

void RaceChecker::synchronize_event(EventHandle event) {
  std::shared_ptr<const Record> record;
  {
    const MutexLock lock(mutex_);
    if (const auto found = events_.find(event); found != events_.end()) record = found->second;
  }
  std::exception_ptr failure;
  try {
    device_.synchronize_event(event);
  } catch (...) {
    failure = std::current_exception();
  }
  if (record != nullptr) {
    const MutexLock lock(mutex_);
    join(host_, record->clock);
  }
  if (failure != nullptr) std::rethrow_exception(failure);
}

void RaceChecker::launch(StreamHandle stream, Work work, std::span<const MemoryAccess> accesses) {
  const std::string text = work.name;
  submit(stream, text, accesses, [&] { device_.launch(stream, std::move(work), accesses); });
}

void RaceChecker::copy(StreamHandle stream, void* to, const void* from, std::size_t bytes) {
  auto* const source = static_cast<std::byte*>(const_cast<void*>(from));
  const MemoryAccess accesses[] = {{source, bytes, false, {}},
                                   {static_cast<std::byte*>(to), bytes, true, {}}};
  submit(stream, "copy", accesses, [&] { device_.copy(stream, to, from, bytes); });
}

void RaceChecker::fill(StreamHandle stream, void* at, std::uint8_t value, std::size_t bytes) {
  const MemoryAccess accesses[] = {{static_cast<std::byte*>(at), bytes, true, {}}};
  submit(stream, "fill", accesses, [&] { device_.fill(stream, at, value, bytes); });
}

void RaceChecker::read(StreamHandle stream, void* to, const void* from, std::size_t bytes) {
  auto* const source = static_cast<std::byte*>(const_cast<void*>(from));
  const MemoryAccess access{source, bytes, false, {}};
  submit(stream, "read", {&access, 1}, [&] { device_.read(stream, to, from, bytes); });
}

void RaceChecker::submit(StreamHandle handle, std::string_view work,
                         std::span<const MemoryAccess> accesses, const Enqueue& enqueue) {
  const MutexLock lock(mutex_);
  if (!handle) return enqueue();  // the device's error
  Stream* const stream = &known(handle);
  VectorClock clock = clock_of(*stream);
  PastUse use;
  use.slot = stream->slot;
  use.tick = ++clock[stream->slot];
  use.stream = stream->number;
  use.operation = stream->operations + 1;
  use.work = intern(work);
  tell_operation();
  std::vector<Finding> found = check(use, accesses, clock);
  if (mode_ == CheckMode::kThrow) report(std::move(found), true);
  enqueue();  // nothing has changed if it throws
  ticks_[stream->slot] = use.tick;
  stream->operations = use.operation;
  remember({Operation::Kind::kWork, use.stream, use.operation, use.work, 0, 0});
  for (const MemoryAccess& access : accesses) {
    use.write = access.write;
    use.buffer = intern(access.buffer);
    accesses_.add(range_of(access.address, access.bytes), use, clock, host_);
  }
  stream->clock = std::move(clock);
  if (mode_ == CheckMode::kCollect) report(std::move(found), false);
}

std::vector<Finding> RaceChecker::check(const PastUse& use, std::span<const MemoryAccess> accesses,
                                        const VectorClock& clock) const {
  std::vector<Finding> found;
  for (const MemoryAccess& access : accesses) {
    Finding::Use later = describe(use);
    later.buffer = access.buffer;
    later.write = access.write;
    check_conflicts(found, Finding::Kind::kRace, later, access, clock);
    if (reserved_.overlaps(access.address, access.bytes) &&
        !mapped_.covers(access.address, access.bytes)) {
      Finding& finding = found.emplace_back();
      finding.kind = Finding::Kind::kNoMemory;
      finding.later = later;
      finding.address = reinterpret_cast<std::uintptr_t>(access.address);
      finding.bytes = access.bytes;
    }
  }
  return found;
}

/// Adds one finding for each earlier operation, however many parts of memory they share.
void RaceChecker::check_conflicts(std::vector<Finding>& found, Finding::Kind kind,
                                  const Finding::Use& later, const MemoryAccess& access,
                                  const VectorClock& clock) const {
  accesses_.conflicts(
      range_of(access.address, access.bytes), access.write, clock,
      [&](const PastUse& use, AccessHistory::Range part) SEGFUSE_REQUIRES(mutex_) {
        const Finding::Use earlier = describe(use);
        auto finding = std::ranges::find_if(found, [&](const Finding& f) {
          return f.kind == kind && same_use(f.earlier, earlier);
        });
        if (finding == found.end()) {
          finding = found.insert(found.end(), Finding{kind, earlier, later, part.first, 0, {}});
          finding->bytes = part.second - part.first;
          return;
        }
        const std::uintptr_t end = std::max(finding->address + finding->bytes, part.second);
        finding->address = std::min(finding->address, part.first);
        finding->bytes = end - finding->address;
        // The pair with the stronger conflict is the one to show.
        if (earlier.write && later.write) finding->earlier = earlier, finding->later = later;
      });
}

void RaceChecker::report(std::vector<Finding> found, bool may_throw) {
  for (Finding& finding : found) {
    if (count_ < kFindingsWithHistory) finding.history = history();
    ++count_;
    if (findings_.size() >= kMaxFindings) continue;
    findings_.push_back(finding);
    tell_race(finding);
  }
  if (may_throw && !found.empty()) throw RaceFound(std::move(found.front()));
}

Finding::Use RaceChecker::describe(const PastUse& use) const {
  const auto name = stream_names_.find(use.stream);
  return {use.stream,       name == stream_names_.end() ? "" : name->second, use.operation,
          texts_[use.work], use.buffer == 0 ? "" : texts_[use.buffer],       use.write};
}

void RaceChecker::host_access(const MemoryAccess& access) {
  const MutexLock lock(mutex_);
  Finding::Use later;
  later.buffer = access.buffer;
  later.write = access.write;
  std::vector<Finding> found;
  check_conflicts(found, Finding::Kind::kHost, later, access, host_);
  report(std::move(found), mode_ == CheckMode::kThrow);
}

void RaceChecker::hand_back(std::byte* address, std::size_t bytes,
                            std::span<const StreamHandle> streams) {
  const MutexLock lock(mutex_);
  VectorClock over = host_;
  for (const StreamHandle stream : streams) join(over, clock_of(known(stream)));
  accesses_.forget_before(range_of(address, bytes), over);
}

/// Memory may be taken away when the host has seen all of its uses complete.
void RaceChecker::check_release(const std::byte* address, std::size_t bytes, bool may_throw) {
  Finding::Use later;
  later.write = true;
  std::vector<Finding> found;
  check_conflicts(found, Finding::Kind::kReleased, later,
                  {const_cast<std::byte*>(address), bytes, true, {}}, host_);
  report(std::move(found), may_throw);
}

std::byte* RaceChecker::reserve(std::size_t bytes) {
  const MutexLock lock(mutex_);
  std::byte* const address = device_.reserve(bytes);
  reserved_.add(address, bytes);
  return address;
}

void RaceChecker::unreserve(std::byte* address, std::size_t bytes) noexcept {
  const MutexLock lock(mutex_);
  check_release(address, bytes, false);
  device_.unreserve(address, bytes);
  reserved_.remove(address, bytes);
  mapped_.remove(address, bytes);
  accesses_.forget(range_of(address, bytes));
}

void RaceChecker::map(std::byte* address, std::size_t bytes) {
  const MutexLock lock(mutex_);
  device_.map(address, bytes);
  mapped_.add(address, bytes);
}

void RaceChecker::unmap(std::byte* address, std::size_t bytes) {
  const MutexLock lock(mutex_);
  check_release(address, bytes, mode_ == CheckMode::kThrow);
  device_.unmap(address, bytes);
  mapped_.remove(address, bytes);
}

std::byte* RaceChecker::allocate_pinned(std::size_t bytes) {
  const MutexLock lock(mutex_);
  return device_.allocate_pinned(bytes);
}

void RaceChecker::release_pinned(std::byte* address, std::size_t bytes) noexcept {
  const MutexLock lock(mutex_);
  check_release(address, bytes, false);
  device_.release_pinned(address, bytes);
  accesses_.forget(range_of(address, bytes));
}

/// A number for a text; 0 is the empty one.
std::uint32_t RaceChecker::intern(std::string_view text) {
  if (text.empty()) return 0;
  const auto [found, is_new] =
      ids_.try_emplace(std::string(text), static_cast<std::uint32_t>(texts_.size()));
  if (is_new) texts_.emplace_back(text);
  return found->second;
}

void RaceChecker::remember(PastOperation operation) {
  if (recent_.size() < kHistory)
    recent_.push_back(operation);
  else
    recent_[remembered_ % kHistory] = operation;
  ++remembered_;
}

std::vector<Operation> RaceChecker::history() const {
  std::vector<Operation> operations;
  const std::size_t first = remembered_ < kHistory ? 0 : remembered_ % kHistory;
  for (std::size_t i = 0; i < recent_.size(); ++i) {
    const PastOperation& past = recent_[(first + i) % recent_.size()];
    operations.push_back({past.kind, past.stream, past.operation,
                          past.name == 0 ? "" : texts_[past.name], past.from_stream,
                          past.from_operation});
  }
  return operations;
}

}  // namespace segfuse::runtime
