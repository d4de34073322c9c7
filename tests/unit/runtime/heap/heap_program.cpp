#include "unit/runtime/heap/heap_program.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "runtime/memory/size_class.h"
#include "segfuse/error.h"

namespace segfuse::runtime {

namespace {

/// Kernels write all words and check some at each end, and some between.
template <class Visit>
void some_words(const std::byte* address, std::size_t bytes, const Visit& visit) {
  const auto* const begin = reinterpret_cast<const std::uint64_t*>(address);
  const std::size_t count = bytes / sizeof(std::uint64_t);
  const std::size_t stride = count <= 128 ? 1 : 61;
  for (std::size_t i = 0; i < count; i += stride) visit(begin[i]);
  if (count > 0) visit(begin[count - 1]);
}

}  // namespace

Program random_program(std::uint64_t seed, const ProgramShape& shape) {
  std::mt19937_64 random(seed);
  const auto below = [&](int n) { return static_cast<int>(random() % static_cast<unsigned>(n)); };
  using Kind = Step::Kind;
  Program program;
  while (static_cast<int>(program.size()) < shape.steps) {
    Step step;
    step.stream = below(shape.streams);
    step.slot = below(shape.slots);
    step.other = below(shape.slots);
    step.third = below(2) == 0 ? -1 : below(shape.slots);
    // Sizes of all magnitudes.
    step.bytes = 8 + random() % (shape.most_bytes >> below(12));
    const int dice = below(100);
    if (dice < 32) {
      step.kind = Kind::kAllocate;
    } else if (dice < 62) {
      step.kind = Kind::kLaunch;
    } else if (dice < 66) {
      step.kind = Kind::kCopy;
    } else if (dice < 69) {
      step.kind = Kind::kFill;
    } else if (dice < 84) {
      step.kind = Kind::kDrop;
    } else if (dice < 87) {
      step.kind = Kind::kShare;
    } else if (dice < 91) {
      if (!shape.unseen) continue;
      step.kind = below(2) == 0 ? Kind::kUnseen : Kind::kRecord;
    } else if (dice < 95) {
      if (!shape.syncs) continue;
      step.kind = Kind::kSync;
    } else if (dice < 96) {
      if (!shape.recreate) continue;
      step.kind = Kind::kRecreate;
    } else if (dice < 98) {
      if (!shape.trims) continue;
      step.kind = Kind::kTrim;
    } else {
      if (!shape.limits) continue;
      step.kind = Kind::kLimit;
      step.bytes = (1 + static_cast<std::size_t>(below(8))) << 19;
    }
    program.push_back(step);
    if (step.kind == Kind::kAllocate && shape.use_at_once) {
      step.kind = Kind::kLaunch;
      step.other = step.third = -1;
      program.push_back(step);
    }
  }
  return program;
}

std::string to_string(const Program& program) {
  static constexpr std::array kNames = {"allocate", "launch", "copy", "fill",     "drop", "share",
                                        "unseen",   "record", "sync", "recreate", "trim", "limit"};
  std::string text;
  for (std::size_t i = 0; i < program.size(); ++i) {
    const Step& s = program[i];
    text += fmt::format("{:3} {} stream {} slot {} other {} third {} bytes {}\n", i,
                        kNames[static_cast<std::size_t>(s.kind)], s.stream, s.slot, s.other,
                        s.third, s.bytes);
  }
  return text;
}

Runner::Runner(Device& device, const std::byte* base, RunOptions options)
    : device_(device),
      base_(base),
      options_(std::move(options)),
      timeline_(std::make_unique<Timeline>()),
      executor_(std::make_unique<Executor>(*timeline_)),
      heap_(std::make_unique<Heap>(device, *timeline_, options_.heap)),
      slots_(static_cast<std::size_t>(options_.slots)),
      wrong_(std::make_shared<std::atomic<std::uint64_t>>(0)),
      checked_(std::make_shared<std::atomic<std::uint64_t>>(0)) {
  for (int i = 0; i < options_.streams; ++i) streams_.push_back(timeline_->create(device));
}

Runner::~Runner() {
  slots_.clear();
  heap_.reset();
  timeline_.reset();
}

void Runner::run(const Program& program) {
  for (std::size_t i = 0; i < program.size(); ++i) {
    try {
      step(program[i]);
    } catch (const std::exception& error) {
      if (!options_.caught || !options_.caught(i, error)) throw;
    }
    if (options_.verify) heap_->verify();
    const TimelineCounts counts = timeline_->counts();
    trace_.values.insert(trace_.values.end(), {counts.waits, counts.records});
    if (options_.after) options_.after(i, *heap_);
  }
}

Work Runner::kernel(const std::vector<const Slot*>& read, const Slot& written,
                    std::uint64_t value) {
  struct Read {
    std::byte* address;
    std::size_t bytes;
    std::uint64_t expected;
  };
  std::vector<Read> inputs;
  for (const Slot* slot : read)
    inputs.push_back({slot->buffer.address(), slot->buffer.bytes(), *slot->expected});
  return {"kernel",
          [inputs, wrong = wrong_, checked = checked_, value, address = written.buffer.address(),
           bytes = written.buffer.bytes()](StreamHandle) {
            for (const Read& input : inputs)
              some_words(input.address, input.bytes, [&](std::uint64_t word) {
                *checked += 1;
                if (word != input.expected) *wrong += 1;
              });
            std::fill_n(reinterpret_cast<std::uint64_t*>(address), bytes / sizeof(value), value);
          }};
}

void Runner::launch(const Step& step) {
  Slot& written = slots_[static_cast<std::size_t>(step.slot)];
  if (!written.buffer) return;
  std::vector<const Slot*> read;
  std::vector<Use> uses;
  for (const int number : {step.other, step.third}) {
    if (number < 0) continue;
    const Slot& slot = slots_[static_cast<std::size_t>(number)];
    if (!slot.buffer || slot.expected == nullptr || *slot.expected == 0 ||
        slot.buffer.same_memory(written.buffer))
      continue;
    read.push_back(&slot);
    uses.push_back(reads(slot.buffer));
  }
  uses.push_back(writes(written.buffer));
  const std::uint64_t value = fresh();
  executor_->launch(stream(step.stream), kernel(read, written, value), uses);
  *written.expected = value;
}

void Runner::unseen(const Step& step) {
  Slot& slot = slots_[static_cast<std::size_t>(step.slot)];
  if (!slot.buffer) return;
  const StreamId on = stream(step.stream);
  if (step.kind == Step::Kind::kUnseen) {
    const Borrow loan = slot.buffer.borrow(*timeline_, on);
    const std::uint64_t value = fresh();
    const MemoryAccess access{loan.address(), loan.bytes(), true, "lent"};
    device_.launch(timeline_->handle(on), kernel({}, slot, value), std::span(&access, 1));
    *slot.expected = value;
    return;
  }
  if (*slot.expected == 0) return;
  // The reader orders itself behind the last write, as code outside has to.
  const Slot nothing;
  const MemoryAccess access{slot.buffer.address(), slot.buffer.bytes(), false, "recorded"};
  executor_->wait_written(slot.buffer);
  device_.launch(timeline_->handle(on), kernel({&slot}, nothing, 0), std::span(&access, 1));
  slot.buffer.record_stream(*timeline_, on);
}

void Runner::step(const Step& step) {
  using Kind = Step::Kind;
  Slot& slot = slots_[static_cast<std::size_t>(step.slot)];
  switch (step.kind) {
    case Kind::kAllocate: {
      const std::size_t bytes = step.bytes / sizeof(std::uint64_t) * sizeof(std::uint64_t);
      Buffer buffer = heap_->allocate(bytes, stream(step.stream), "slot");
      trace_.values.push_back(static_cast<std::uint64_t>(buffer.address() - base_));
      slot = {std::move(buffer), std::make_shared<std::uint64_t>(0)};
      break;
    }
    case Kind::kLaunch: return launch(step);
    case Kind::kCopy: {
      const Slot& from = slots_[static_cast<std::size_t>(step.other)];
      if (!slot.buffer || !from.buffer || *from.expected == 0 ||
          slot.buffer.same_memory(from.buffer) || slot.buffer.bytes() > from.buffer.bytes())
        break;
      executor_->copy(stream(step.stream), slot.buffer, 0, from.buffer, 0, slot.buffer.bytes());
      *slot.expected = *from.expected;
      break;
    }
    case Kind::kFill:
      if (!slot.buffer) break;
      executor_->fill(stream(step.stream), slot.buffer, 0x5A);
      *slot.expected = 0x5A5A5A5A5A5A5A5AULL;
      break;
    case Kind::kDrop: slot = {}; break;
    case Kind::kShare: slot = slots_[static_cast<std::size_t>(step.other)]; break;
    case Kind::kUnseen:
    case Kind::kRecord: return unseen(step);
    case Kind::kSync: timeline_->synchronize(stream(step.stream)); break;
    case Kind::kRecreate: {
      timeline_->retire(stream(step.stream));
      stream(step.stream) = timeline_->create(device_);
      break;
    }
    case Kind::kTrim: heap_->trim(); break;
    case Kind::kLimit: heap_->set_limits(0, step.bytes); break;
  }
}

void Runner::finish() {
  for (Slot& slot : slots_) slot = {};
  for (const StreamId id : streams_) timeline_->synchronize(id);
  heap_->trim();
}

std::size_t Runner::live_handles() const {
  return static_cast<std::size_t>(
      std::ranges::count_if(slots_, [](const Slot& slot) { return bool(slot.buffer); }));
}

std::pair<std::size_t, std::size_t> Runner::live_bytes() const {
  std::set<const std::byte*> seen;
  std::size_t rounded = 0;
  std::size_t requested = 0;
  for (const Slot& slot : slots_) {
    if (!slot.buffer || !seen.insert(slot.buffer.address()).second) continue;
    rounded += rounded_bytes(slot.buffer.bytes());
    requested += slot.buffer.bytes();
  }
  return {rounded, requested};
}

}  // namespace segfuse::runtime
