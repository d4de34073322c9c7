#include "semicrf/cuda/split/run.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <set>

namespace segfuse::semicrf {

Staging::~Staging() {
  if (memory_ != nullptr) queue_->release_pinned(memory_, bytes_);
}

std::byte* Staging::of(std::size_t bytes) {
  if (bytes <= bytes_) return memory_;
  if (memory_ != nullptr) queue_->release_pinned(memory_, bytes_);
  memory_ = nullptr;
  bytes_ = 0;
  memory_ = queue_->allocate_pinned(bytes);
  bytes_ = bytes;
  return memory_;
}

template <class T>
void Member::write(T* to, const std::vector<T>& values) const {
  const std::size_t bytes = sizeof(T) * values.size();
  std::byte* const pinned = staging->of(bytes);
  std::memcpy(pinned, values.data(), bytes);
  queue().copy(to, pinned, bytes, stream);
  queue().synchronize(stream);
}

void Member::give(const Member& other, void* to, const void* from, std::size_t bytes) const {
  constexpr std::size_t kMaxBytes = std::size_t{64} << 20;
  for (std::size_t at = 0; at < bytes; at += kMaxBytes) {
    const std::size_t n = std::min(kMaxBytes, bytes - at);
    std::byte* const pinned = staging->of(n);
    queue().copy(pinned, static_cast<const std::byte*>(from) + at, n, stream);
    queue().synchronize(stream);
    other.queue().copy(static_cast<std::byte*>(to) + at, pinned, n, other.stream);
    other.queue().synchronize(other.stream);
  }
}

void Reads::run() {
  if (parts_.empty()) return;
  std::size_t total = 0;
  for (const Part& part : parts_) total += part.bytes;
  std::byte* const pinned = parts_[0].member->staging->of(total);
  std::size_t at = 0;
  for (const Part& part : parts_) {
    part.member->queue().copy(pinned + at, part.from, part.bytes, part.member->stream);
    at += part.bytes;
  }
  std::set<const Member*> waited;
  for (const Part& part : parts_)
    if (waited.insert(part.member).second) part.member->queue().synchronize(part.member->stream);
  at = 0;
  for (const Part& part : parts_) {
    std::memcpy(part.to, pinned + at, part.bytes);
    at += part.bytes;
  }
  parts_.clear();
}

namespace {

void enter_round(Member& member, const ChunkCut& cut, std::size_t round) {
  const ChunkRange& forward = member.part.forward[round];
  const ChunkRange& backward = member.part.backward[round];
  Call& call = member.call;
  apply(share_of(member.part, cut, round), call);
  call.chunks.round = static_cast<int>(round);
  call.part.chunk[0] = forward.begin;
  call.part.chunk_end[0] = forward.end;
  call.part.chunk[1] = backward.begin;
  call.part.chunk_end[1] = backward.end;
}

/// What a chunk lacks of the one before it.
struct Ratio {
  double value = 1.0;
  int exponent = 0;
};

/// What a member's passes left.
struct Passed {
  int flags = 0;
  std::vector<int> exponents;
  struct Pass {
    std::vector<double> ratios;
    std::vector<int> ratio_exponents;
  };
  std::array<Pass, 2> passes;  ///< of the member's chunks
};

std::vector<Passed> read_passes(const std::vector<Member>& members, int directions) {
  std::vector<Passed> out(members.size());
  Reads reads;
  for (std::size_t i = 0; i < members.size(); ++i) {
    const Call& call = members[i].call;
    reads.add(members[i], call.lattice.flags, out[i].flags);
    reads.add(members[i], call.factors.exponents, 4, out[i].exponents);
    for (int direction = 0; direction < directions; ++direction) {
      Passed::Pass& pass = out[i].passes[static_cast<std::size_t>(direction)];
      const std::int64_t place = std::int64_t{direction} * call.chunks.count;
      const std::int64_t n = call.part.chunk_end[direction] - call.part.chunk[direction];
      reads.add(members[i], call.chunks.ratio + place, n, pass.ratios);
      reads.add(members[i], call.chunks.ratio_exponent + place, n, pass.ratio_exponents);
    }
  }
  reads.run();
  return out;
}

/// The ratios of a pass as far as a member has them.
void collect(const Member& member, const Passed& passed, int direction,
             std::vector<Ratio>& ratios) {
  const Passed::Pass& pass = passed.passes[static_cast<std::size_t>(direction)];
  const int begin = member.call.part.chunk[direction];
  const int end = member.call.part.chunk_end[direction];
  ratios.resize(std::max(ratios.size(), static_cast<std::size_t>(end)));
  for (int chunk = begin + 1; chunk < end; ++chunk) {
    const auto at = static_cast<std::size_t>(chunk - begin);
    ratios[static_cast<std::size_t>(chunk)] = {pass.ratios[at], pass.ratio_exponents[at]};
  }
}

/// The product of the ratios up to a chunk, formed as join_chunks does (kernels/sum/chunks.cuh).
Ratio product(const std::vector<Ratio>& ratios, int chunk) {
  Ratio all;
  for (int i = 1; i <= chunk; ++i) {
    all.value *= ratios[static_cast<std::size_t>(i)].value;
    all.exponent += ratios[static_cast<std::size_t>(i)].exponent;
    const auto bits = std::bit_cast<std::uint64_t>(all.value);
    const int excess = static_cast<int>(bits >> 52 & 0x7ff) - 1023;
    all.value = std::ldexp(all.value, -excess);
    all.exponent += excess;
  }
  return all;
}

int redo_flag(int direction, std::size_t round) {
  return (direction == 0 ? gpu::kRedoForward : gpu::kRedoBackward)
         << (gpu::kRoundBits * static_cast<int>(round));
}

/// The flags of all members; `exact` is set where the row left the linear domain's range.
int flags_of(const std::vector<Passed>& all, bool& exact) {
  int flags = 0;
  for (const Passed& member : all) {
    flags |= member.flags;
    exact = exact || member.exponents[2] != 0;
  }
  exact = exact || (flags & gpu::kNeedsExact) != 0;
  return flags;
}

template <class T>
void adopt(const Member& member) {
  member.engine->launch(member.engine->common<T>("adopt_row"), {1}, {1}, member.call,
                        member.stream);
}

/// The passes, until all chunks of all members fit together.
template <class T>
bool pass_in_rounds(std::vector<Member>& members, const ChunkCuts& cuts, int directions) {
  int flags = 0;
  for (std::size_t round = 0; round < cuts.size() && cuts[round].is_cut(); ++round) {
    for (Member& member : members) {
      enter_round(member, cuts[round], round);
      member.engine->pass_chunks<T>(member.call, side(directions), member.stream);
    }
    bool exact = false;
    const int before = flags;
    const std::vector<Passed> passed = read_passes(members, directions);
    flags = flags_of(passed, exact);
    if (exact) return false;
    bool again = false;
    for (int direction = 0; direction < directions; ++direction) {
      const bool due = round == 0 || (before & redo_flag(direction, round - 1)) != 0;
      const bool redo = (flags & redo_flag(direction, round)) != 0;
      again = again || (due && redo);
      if (!due || redo) continue;
      std::vector<Ratio> ratios;
      for (std::size_t i = 0; i < members.size(); ++i)
        collect(members[i], passed[i], direction, ratios);
      for (Member& member : members) {
        const Ratio carried = product(ratios, member.call.part.chunk[direction]);
        member.call.part.ratio[direction] = carried.value;
        member.call.part.ratio_exponent[direction] = carried.exponent;
      }
    }
    for (Member& member : members) {
      member.call.part.flags = flags;
      adopt<T>(member);
      member.engine->join_chunks<T>(member.call, side(directions), member.stream);
    }
    if (!again) return true;
  }
  return false;
}

/// What the last member knows of the row's end, to all.
template <class T>
void finish(std::vector<Member>& members, SplitCudaEngine::Partition& result) {
  std::vector<double> sums(members.size());
  Reads reads;
  for (std::size_t i = 0; i < members.size(); ++i) {
    const Member& member = members[i];
    member.engine->launch(member.engine->common<T>("part_exponents"), {1}, {512}, member.call,
                          member.stream);
    reads.add(member, static_cast<const double*>(member.call.lattice.partition), sums[i]);
  }
  reads.run();
  double shift = 0.0;
  for (const double sum : sums) shift += sum;
  Member& last = members.back();
  last.call.part.shift = shift - sums.back();
  last.engine->launch(last.engine->common<T>("finish_rows"), {1}, {512}, last.call, last.stream);
  unsigned char status = 0;
  double partition = 0.0;
  double weight = 0.0;
  int scale = 0;
  reads.add(last, last.log_partition, result.log_partition);
  reads.add(last, last.status, status);
  reads.add(last, last.call.lattice.partition, partition);
  reads.add(last, last.call.row_weight, weight);
  reads.add(last, last.call.lattice.last_scale, scale);
  reads.run();
  result.status = static_cast<RowStatus>(status);
  for (Member& member : members) {
    member.call.part.partition = partition;
    member.call.part.weight = weight;
    member.call.part.last_scale = scale;
    adopt<T>(member);
  }
}

template <class T>
void frames_of(std::vector<Member>& members) {
  const std::int64_t classes = members[0].call.sizes.classes;
  std::vector<std::vector<double>> own(members.size());
  Reads reads;
  for (std::size_t i = 0; i < members.size(); ++i) {
    const Member& member = members[i];
    const int slices = member.part.slice_end - member.part.slice;
    member.engine->cover_slices<T>(member.call, side(slices), member.stream);
    reads.add(member, member.call.cover + member.part.slice * classes, slices * classes, own[i]);
  }
  reads.run();
  std::vector<double> covers;
  for (const std::vector<double>& of_member : own)
    covers.insert(covers.end(), of_member.begin(), of_member.end());
  for (const Member& member : members) {
    member.write(member.call.cover, covers);
    member.engine->frames_of_slices<T>(member.call, side(member.part.slice_end - member.part.slice),
                                       member.stream);
  }
}

/// The first member writes the results for the row's beginning, the last one those for its end.
template <class T>
void ends_of(std::vector<Member>& members, T* final) {
  Member& last = members.back();
  members[0].engine->ends<T>(members[0].call, members[0].stream);
  last.engine->ends<T>(last.call, last.stream);
  if (final == nullptr) return;
  std::vector<T> values;
  Reads reads;
  reads.add(last, static_cast<const T*>(last.final), last.call.sizes.classes, values);
  reads.run();
  members[0].write(final, values);
}

/// Slots of the others to the first member.
void gather_slots(const Member& member, const Member& first, double* const Call::* partial,
                  std::int64_t size, std::int64_t end) {
  const std::int64_t begin = member.part.slice * size;
  member.give(first, first.call.*partial + begin, member.call.*partial + begin,
              sizeof(double) * static_cast<std::size_t>(end * size - begin));
}

template <class T>
void counts_of(std::vector<Member>& members, const DeviceWanted& wanted) {
  const gpu::Sizes& n = members[0].call.sizes;
  const auto end_of = [](const Member& member) { return slot_end(member.part, member.call); };
  for (const Member& member : members)
    member.engine->count_slots<T>(member.call, wanted, side(end_of(member) - member.part.slice),
                                  member.stream);
  for (const Member& member : members) {
    if (&member == &members[0]) continue;
    if (wanted.transition)
      gather_slots(member, members[0], &Call::transition_partial,
                   std::int64_t{n.classes} * n.classes, end_of(member));
    if (wanted.duration)
      gather_slots(member, members[0], &Call::duration_partial,
                   std::int64_t{n.max_duration} * n.classes, end_of(member));
  }
  members[0].engine->reduce<T>(members[0].call, members[0].stream);
}

/// Waits for all members; throws the first fault of the row, after clearing those of all.
void check_all(const std::vector<Member>& members) {
  constexpr unsigned long long kNone = ~0ull;
  std::vector<std::vector<unsigned long long>> own(members.size());
  Reads reads;
  for (std::size_t i = 0; i < members.size(); ++i)
    reads.add(members[i], members[i].engine->faults.words(), gpu::kFaults, own[i]);
  reads.run();
  std::array<unsigned long long, gpu::kFaults> seen;
  seen.fill(kNone);
  for (std::size_t i = 0; i < members.size(); ++i) {
    const Member& member = members[i];
    for (std::size_t kind = 0; kind < seen.size(); ++kind)
      seen[kind] = std::min(seen[kind], own[i][kind]);
    if (std::ranges::all_of(own[i], [](unsigned long long at) { return at == kNone; })) continue;
    member.queue().fill(member.engine->faults.words(), 0xff, sizeof seen, member.stream);
    member.queue().synchronize(member.stream);
  }
  for (int kind = 0; kind < gpu::kFaults; ++kind)
    if (const unsigned long long index = seen[static_cast<std::size_t>(kind)]; index != kNone)
      throw DataError(
          fmt::format("semicrf: {}", describe_fault(kind, index, members[0].call.sizes)));
}

/// Makes an array of what a member holds one of the whole row, of which it may touch that alone.
template <class U>
void count_from(U*& array, std::int64_t first) {
  if (array != nullptr) array -= first;
}

}  // namespace

SplitPlan plan_split(CudaEngine::State& engine, Call call, int devices) {
  SplitPlan plan;
  if (devices < 2 || call.sizes.by_duration != 0) return plan;
  DeviceWanted all;
  all.frames = all.transition = all.duration = true;
  cut_into_slices(call, all);
  plan.cuts = engine.cuts_of(call);
  if (engine.teams_wanted(call)) {
    apply(plan.cuts[0], call);
    plan_team(call, all, *engine.gpu);
    if (call.team.members == 0) return plan;
  }
  plan.parts = split_row(call, plan.cuts, devices);
  return plan;
}

template <class T>
void prepare_member(Member& member, const SplitPlan& plan, const DeviceWanted& wanted) {
  Call& call = member.call;
  const std::int64_t frames = member.part.held.begin;
  const std::int64_t cells = frames * call.sizes.classes;
  call.part.frame = static_cast<int>(frames);
  call.part.frame_end = static_cast<int>(member.part.held.end);
  call.part.slice = member.part.slice;
  call.part.slice_end = member.part.slice_end;
  call.part.ends =
      (member.part.own.begin == 0 ? 1 : 0) | (member.part.own.end == call.sizes.frames ? 2 : 0);
  cut_into_slices(call, wanted);
  const ChunkCuts own = shares_of(member.part, plan.cuts);
  apply(own[0], call);
  if (member.engine->teams_wanted(call)) plan_team(call, wanted, member.queue());
  member.workspace = std::make_unique<gpu::Workspace>(member.queue(), member.stream);
  plan_workspace(*member.workspace, call, wanted, own);
  T* final = nullptr;
  member.workspace->add(member.log_partition, 1);
  member.workspace->add(member.status, 1);
  member.workspace->add(final, call.sizes.classes);
  member.workspace->allocate();
  member.final = final;
  call.rows.log_partition = {member.log_partition, 1};
  call.rows.status = {member.status, 1};
  if ((call.part.ends & 2) != 0 && wanted.ends) call.gradients.final = {final, {1, 0, 0}};
  for (double** const array :
       {&call.factors.emission, &call.factors.start, &call.factors.end, &call.lattice.alpha,
        &call.lattice.gamma, &call.lattice.delta, &call.lattice.beta})
    count_from(*array, cells);
  count_from(call.factors.frame_exponent, frames);
  count_from(call.lattice.forward_scale, frames);
  count_from(call.lattice.backward_scale, frames);
  count_from(call.lattice.forward_ratio, frames);
  count_from(call.lattice.backward_ratio, frames);
  call.faults = member.engine->faults.words();
  member.engine->sizes = call.sizes;
}

template <class T>
void run_parts(std::vector<Member>& members, const ChunkCuts& cuts, const DeviceWanted& wanted,
               SplitCudaEngine::Partition& result) {
  T* const final = static_cast<T*>(members[0].call.gradients.final.data);
  for (const Member& member : members) {
    member.engine->prepare<T>(member.call, member.stream);
    if (member.engine->teams_wanted(member.call))
      member.engine->prepare_teams<T>(member.call, member.stream);
  }
  if (!pass_in_rounds<T>(members, cuts, wanted.any() ? 2 : 1)) return;
  finish<T>(members, result);
  if (result.status != RowStatus::kOk && wanted.any()) return;
  if (wanted.frames) frames_of<T>(members);
  if (wanted.ends) ends_of<T>(members, final);
  if (wanted.transition || wanted.duration) counts_of<T>(members, wanted);
  result.split = true;
}

template <class T>
bool run_split(std::vector<Member>& members, const ChunkCuts& cuts, const DeviceWanted& wanted,
               SplitCudaEngine::Partition& result) {
  try {
    run_parts<T>(members, cuts, wanted, result);
  } catch (...) {
    for (const Member& member : members) try {
        member.queue().synchronize(member.stream);
      } catch (const Error&) {  // the first error is the one to tell
      }
    throw;
  }
  check_all(members);
  return result.split;
}

#define SEGFUSE_INSTANTIATE(T)                                                            \
  template void prepare_member<T>(Member&, const SplitPlan&, const DeviceWanted&);        \
  template bool run_split<T>(std::vector<Member>&, const ChunkCuts&, const DeviceWanted&, \
                             SplitCudaEngine::Partition&);

SEGFUSE_INSTANTIATE(float)
SEGFUSE_INSTANTIATE(double)
SEGFUSE_INSTANTIATE(Half)
SEGFUSE_INSTANTIATE(BFloat16)
#undef SEGFUSE_INSTANTIATE

}  // namespace segfuse::semicrf
