#include "support/sim/step_engine.h"

#include <fmt/core.h>

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "runtime/address_set.h"

namespace segfuse::runtime::sim {

StepEngine::StepEngine(std::shared_ptr<Schedule> schedule, AccessCheck check)
    : schedule_(std::move(schedule)), check_(std::move(check)) {}

StreamHandle StepEngine::create_stream() {
  const Guard guard(mutex_);
  auto stream = std::make_shared<Stream>();
  stream->number = next_number_++;
  stream->handle = streams_.add(stream);
  all_.push_back(stream);
  return stream->handle;
}

void StepEngine::destroy_stream(StreamHandle handle) noexcept {
  const Guard guard(mutex_);
  const std::shared_ptr<Stream> stream = streams_.remove(handle);
  if (stream == nullptr) return;
  stream->closing = true;
  stream->held = false;
  settle();
}

void StepEngine::push(Stream& stream, StreamItem item) {
  stream.items.push_back(std::move(item));
  ++stream.enqueued;
  settle();
}

/// Does the records and waits whose turn has come, and skips the work of failed streams.
void StepEngine::settle() {
  bool changed = true;
  while (changed) {
    changed = false;
    for (const auto& stream : all_)
      while (settle_first(*stream)) changed = true;
  }
  std::erase_if(all_, [](const auto& stream) { return stream->closing && stream->items.empty(); });
}

bool StepEngine::settle_first(Stream& stream) {
  if (stream.items.empty() || stream.begun || stream.held) return false;
  StreamItem& item = stream.items.front();
  if (item.record != nullptr) {
    item.record->failure = stream.failure;
    item.record->done = true;
  } else if (item.wait != nullptr) {
    if (!item.wait->done) return false;
    if (stream.failure == nullptr) stream.failure = item.wait->failure;
  } else if (stream.failure == nullptr) {
    return false;
  }
  const StreamItem done = std::move(item);  // dropped last: that may come back here
  stream.items.pop_front();
  ++stream.done;
  return true;
}

void StepEngine::take(Stream& stream) {
  stepping_ = true;
  stream.begun ? end(stream) : begin(stream);
  stepping_ = false;
}

void StepEngine::begin(Stream& stream) {
  stream.begun = true;
  try {
    const StreamWork& work = stream.items.front().work;
    for (const MemoryAccess& access : work.accesses)
      if (const std::string complaint = check_(access); !complaint.empty())
        throw DeviceError(
            fmt::format("sim: '{}' on stream {} {}", work.name, stream.number, complaint));
    if (work.run) run_work(stream);
  } catch (...) {
    stream.failure = std::current_exception();
  }
}

/// Runs the work and puts the former content of what it declared as written back.
void StepEngine::run_work(Stream& stream) {
  const StreamWork& work = stream.items.front().work;
  AddressSet written;
  for (const MemoryAccess& access : work.accesses)
    if (access.write) written.add(access.address, access.bytes);
  std::vector<Write> writes;
  for (const auto& [first, last] : written.ranges()) {
    auto* const address = reinterpret_cast<std::byte*>(first);
    writes.push_back({address, {address, address + (last - first)}});
  }
  const auto exchange = [&] {
    for (Write& write : writes)
      std::ranges::swap_ranges(write.content, std::span(write.address, write.content.size()));
  };
  try {
    work.run(stream.handle);
  } catch (...) {
    exchange();
    throw;
  }
  exchange();
  stream.writes = std::move(writes);
}

void StepEngine::end(Stream& stream) {
  for (const Write& write : std::exchange(stream.writes, {}))
    std::ranges::copy(write.content, write.address);
  stream.begun = false;
  const StreamItem done = std::move(stream.items.front());
  stream.items.pop_front();
  ++stream.done;
  settle();
}

std::vector<Step> StepEngine::steps() const {
  std::vector<Step> found;
  for (const auto& stream : all_) {
    if (stream->items.empty() || stream->held) continue;
    const StreamItem& item = stream->items.front();
    if (item.wait != nullptr) continue;
    found.push_back({stream->number, !stream->begun, false, item.work.name, item.work.accesses});
  }
  return found;
}

StepEngine::Stream* StepEngine::stream_of(int number) const {
  const auto found = std::ranges::find(all_, number, [](const auto& s) { return s->number; });
  return found == all_.end() ? nullptr : found->get();
}

/// The stream whose step the host waits for when it waits for `number`.
int StepEngine::wanted_stream(int number) const {
  for (;;) {
    const Stream* const stream = stream_of(number);
    if (stream == nullptr || stream->items.empty()) return number;
    const auto& wait = stream->items.front().wait;
    if (wait == nullptr) return number;
    number = wait->stream;
  }
}

void StepEngine::let_device(Moment moment) {
  if (stepping_) return;  // work that is dropped frees its memory
  for (;;) {
    const std::vector<Step> offered = steps();
    if (offered.empty()) break;
    const auto choice = schedule_->choose(moment, offered);
    choices_.push_back(choice ? offered[*choice].stream : kHost);
    if (!choice) break;
    take(*stream_of(choices_.back()));
  }
  schedule_->host_continues();
}

void StepEngine::wait_for(int number, const std::function<bool()>& is_done) {
  if (stepping_) throw DeviceError("sim: work of a stream waits for the device");
  while (!is_done()) {
    std::vector<Step> offered = steps();
    if (offered.empty()) report_deadlock(number);
    const int wanted = wanted_stream(number);
    for (Step& step : offered) step.wanted = step.stream == wanted;
    const auto choice = schedule_->choose(Moment::kWait, offered);
    SEGFUSE_CHECK(choice.has_value(), "the schedule lets a host go on that has to wait");
    choices_.push_back(offered[*choice].stream);
    take(*stream_of(choices_.back()));
  }
  schedule_->host_continues();
}

void StepEngine::report_deadlock(int number) const {
  const int cause = wanted_stream(number);
  throw DeviceError(fmt::format(
      "sim: deadlock: the host waits for stream {}, which cannot go on before stream {}, which is "
      "held",
      number, cause));
}

void StepEngine::synchronize(StreamHandle handle) {
  const Guard guard(mutex_);
  const std::shared_ptr<Stream> stream = streams_.find(handle);
  const std::uint64_t target = stream->enqueued;
  wait_for(stream->number, [&] { return stream->done >= target; });
  if (stream->failure != nullptr) std::rethrow_exception(std::exchange(stream->failure, nullptr));
}

bool StepEngine::idle(StreamHandle handle) {
  const Guard guard(mutex_);
  const std::shared_ptr<Stream> stream = streams_.find(handle);
  let_device(Moment::kObserve);
  return stream->done == stream->enqueued;
}

std::uint64_t StepEngine::identity(StreamHandle handle) {
  return static_cast<std::uint64_t>(number(handle)) + 1;
}

void StepEngine::drain() {
  const Guard guard(mutex_);
  const auto streams = all_;
  for (const auto& stream : streams) {
    const std::uint64_t target = stream->enqueued;
    wait_for(stream->number, [&] { return stream->done >= target; });
  }
}

EventHandle StepEngine::create_event() {
  const Guard guard(mutex_);
  return events_.add(std::make_shared<StreamEvent>());
}

void StepEngine::destroy_event(EventHandle event) noexcept {
  const Guard guard(mutex_);
  events_.remove(event);
}

void StepEngine::record(StreamHandle handle, EventHandle event) {
  const Guard guard(mutex_);
  Stream& stream = *streams_.find(handle);
  StreamEvent& found = *events_.find(event);
  auto recording = std::make_shared<Recording>();
  recording->stream = stream.number;
  found.last = recording;
  push(stream, {{}, std::move(recording), nullptr});
  let_device(Moment::kSubmit);
}

void StepEngine::wait(StreamHandle handle, EventHandle event) {
  const Guard guard(mutex_);
  Stream& stream = *streams_.find(handle);
  const std::shared_ptr<Recording> recording = events_.find(event)->last;
  if (recording == nullptr) return;
  push(stream, {{}, nullptr, recording});
  let_device(Moment::kSubmit);
}

bool StepEngine::query(EventHandle event) {
  const Guard guard(mutex_);
  const std::shared_ptr<Recording> recording = events_.find(event)->last;
  let_device(Moment::kObserve);
  return recording == nullptr || recording->done;
}

void StepEngine::synchronize_event(EventHandle event) {
  const Guard guard(mutex_);
  const std::shared_ptr<Recording> recording = events_.find(event)->last;
  if (recording == nullptr) return;
  wait_for(recording->stream, [&] { return recording->done; });
  if (recording->failure != nullptr) std::rethrow_exception(recording->failure);
}

void StepEngine::enqueue(StreamHandle handle, StreamWork work) {
  const Guard guard(mutex_);
  push(*streams_.find(handle), {std::move(work), nullptr, nullptr});
  let_device(Moment::kSubmit);
}

void StepEngine::hold(StreamHandle handle, bool held) {
  const Guard guard(mutex_);
  streams_.find(handle)->held = held;
  settle();
}

void StepEngine::observe() {
  const Guard guard(mutex_);
  let_device(Moment::kObserve);
}

bool StepEngine::step(StreamHandle handle) {
  const Guard guard(mutex_);
  const std::shared_ptr<Stream> stream = streams_.find(handle);
  const std::vector<Step> offered = steps();
  if (std::ranges::find(offered, stream->number, &Step::stream) == offered.end()) return false;
  choices_.push_back(stream->number);
  take(*stream);
  return true;
}

std::vector<int> StepEngine::choices() const {
  const Guard guard(mutex_);
  return choices_;
}

int StepEngine::number(StreamHandle stream) const {
  const Guard guard(mutex_);
  return streams_.find(stream)->number;
}

}  // namespace segfuse::runtime::sim
