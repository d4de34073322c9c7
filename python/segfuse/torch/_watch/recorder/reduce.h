// Results are reduced to their largest magnitudes, many at once.

#pragma once

#include <recorder/largest.h>
#include <recorder/state.h>

namespace recorder {

constexpr float NO_GUESS = std::numeric_limits<float>::quiet_NaN();

inline Tensor reducible(const Tensor& tensor) {
  Tensor real = at::isComplexType(tensor.scalar_type())
                    ? at::view_as_real(tensor.is_conj() ? tensor.conj() : tensor)
                    : tensor;
  return real.element_size() < 2 ? real.to(at::kFloat) : real;
}

inline int magnitude_type(at::ScalarType type) {
  switch (type) {
    case at::kHalf: return 0;
    case at::kBFloat16: return 1;
    case at::kFloat: return 2;
    case at::kDouble: return 3;
    default: return -1;
  }
}

// Whether its numbers can be read as they lie in memory: by segfuse's kernel, or on the host.
inline bool lies_plainly(const State& s, const Tensor& tensor) {
  return magnitude_type(tensor.scalar_type()) >= 0 && tensor.is_non_overlapping_and_dense() &&
         (s.magnitudes != nullptr || tensor.is_cpu());
}

inline Pending pending_of(const State& s, const Tensor& tensor, int slot, float most) {
  const auto type = tensor.scalar_type();
  if (!lies_plainly(s, tensor)) return {slot, most, type, {}, 0, tensor.numel(), detached(tensor)};
  const int64_t first = tensor.storage_offset() * int64_t(tensor.element_size());
  return {slot, most, type, tensor.storage(), first, tensor.numel(), {}};
}

// Whether its memory is still there: a storage may be cut without an operation, as FSDP does.
inline bool is_there(const Pending& pending) {
  if (pending.storage) {
    return size_t(pending.first + pending.bytes()) <= pending.storage.nbytes();
  }
  const Tensor& tensor = pending.tensor;
  int64_t last = tensor.storage_offset();
  for (int64_t i = 0; i < tensor.dim(); ++i) last += (tensor.size(i) - 1) * tensor.stride(i);
  return size_t(last + 1) * tensor.element_size() <= tensor.storage().nbytes();
}

// Room for `count` magnitudes, of 0, on the stream of the pending ones.
inline Reduced& room_for(State& s, const at::Device& device, size_t count) {
  constexpr size_t ROOM = 2048;
  const std::pair<int, int64_t> key(device.index(), s.stream->id());
  const auto found = s.open.find(key);
  if (found != s.open.end() && s.reduced[found->second].slots.size() + count <= ROOM) {
    return s.reduced[found->second];
  }
  const auto options = at::TensorOptions().dtype(at::kFloat).device(device);
  s.open[key] = s.reduced.size();
  s.reduced.push_back({at::zeros({int64_t(std::max(ROOM, count))}, options), {}, s.stream});
  return s.reduced.back();
}

inline float* broken_flag(State& s) {
  if (!s.broken.defined()) {
    const auto options = at::TensorOptions().dtype(at::kFloat).device(s.stream->device());
    s.broken = at::zeros({1}, options);
  }
  return s.broken.mutable_data_ptr<float>();
}

// As a tensor, for PyTorch's kernels.
inline Tensor as_tensor(const Pending& pending) {
  if (!pending.storage) return pending.tensor;
  const auto options = at::TensorOptions().dtype(pending.type).device(pending.storage.device());
  Tensor flat = at::empty({0}, options);
  auto* const impl = flat.unsafeGetTensorImpl();
  impl->set_storage_keep_dtype(pending.storage);
  const int64_t stride = 1, size = int64_t(c10::elementSize(pending.type));
  impl->set_sizes_and_strides({&pending.count, 1}, {&stride, 1}, pending.first / size);
  return flat;
}

// As std::stable_partition, which is dear where all are taken or none.
template <class Taken>
std::vector<Pending>::iterator first_those(std::vector<Pending>& list, Taken&& taken) {
  const auto other = std::find_if_not(list.begin(), list.end(), taken);
  if (std::none_of(other, list.end(), taken)) return other;
  return std::stable_partition(other, list.end(), taken);
}

inline void throw_away(State& s, std::vector<Pending>& list, std::vector<Pending>::iterator end) {
  if (end == list.end() && s.garbage.pending.empty()) {
    std::swap(list, s.garbage.pending);
    return;
  }
  std::move(list.begin(), end, std::back_inserter(s.garbage.pending));
  list.erase(list.begin(), end);
}

inline void reduce_on_host(State& s, const Pending& pending, bool only_if_broken) {
  if (only_if_broken && !s.broken_on_host) return;
  const double magnitude = largest_on_host(pending.data(), pending.count, pending.type);
  s.on_host.emplace_back(pending.slot, magnitude);
  if (!std::isnan(pending.most) && !(magnitude <= double(pending.most))) s.broken_on_host = true;
}

// By segfuse's kernel, many at once; what it cannot take stays in the queue.
inline void reduce_at_once(State& s, Queue& queue, bool only_if_broken) {
  auto& list = queue.list;
  const auto on_host = [&](const Pending& p) { return p.storage && p.storage.device().is_cpu(); };
  auto rest = first_those(list, on_host);
  for (auto i = list.begin(); i != rest; ++i) reduce_on_host(s, *i, only_if_broken);
  throw_away(s, list, rest);
  if (s.magnitudes == nullptr || !s.stream) return;
  const auto takes = [&](const Pending& pending) {
    return pending.storage && pending.storage.device() == s.stream->device();
  };
  rest = first_those(list, takes);
  const size_t count = size_t(rest - list.begin());
  if (count == 0) return;
  Reduced& into = room_for(s, s.stream->device(), count);
  float* largest = into.values.mutable_data_ptr<float>() + into.slots.size();
  s.wanted.clear();
  for (auto pending = list.begin(); pending != rest; ++pending) {
    s.wanted.push_back({pending->data(), uint64_t(pending->count), largest++,
                        magnitude_type(pending->type), pending->most});
  }
  void* const stream = s.stream->id() == 0 ? nullptr : s.stream->native_handle();
  if (s.magnitudes(s.stream->device_index(), stream, s.wanted.data(), count, broken_flag(s),
                   int(only_if_broken)) == 0) {
    s.magnitudes = nullptr;  // no NVRTC: PyTorch's kernels do it, and read all
    s.bounds.mode = Bounds::NOWHERE;
    s.bounds.forget_all();
    return;
  }
  for (auto pending = list.begin(); pending != rest; ++pending) into.slots.push_back(pending->slot);
  throw_away(s, list, rest);
}

inline void reduce_queue(State& s, Queue& queue, bool only_if_broken) {
  if (queue.list.empty()) return;
  const Below below;
  const OnStream on(s.stream);
  const auto gone = first_those(queue.list, [](const auto& p) { return !is_there(p); });
  throw_away(s, queue.list, gone);
  for (auto& pending : queue.list) {
    if (pending.storage) continue;
    s.garbage.values.emplace_back(pending.tensor);
    pending = pending_of(s, reducible(pending.tensor), pending.slot, pending.most);
  }
  reduce_at_once(s, queue, only_if_broken);
  std::map<std::tuple<int, int, bool>, std::vector<size_t>> groups;
  std::vector<Tensor> all;
  for (const auto& pending : queue.list) {
    const Tensor& tensor = all.emplace_back(as_tensor(pending));
    if (only_if_broken && tensor.is_cpu() && !s.broken_on_host) continue;
    groups[{int(tensor.device().type()), int(tensor.scalar_type()),
            tensor.is_non_overlapping_and_dense()}]
        .push_back(all.size() - 1);
  }
  for (const auto& [key, members] : groups) {
    std::vector<Tensor> tensors, norms;
    Reduced out;
    for (const size_t i : members) {
      tensors.push_back(all[i]);
      out.slots.push_back(queue.list[i].slot);
    }
    const double infinity = std::numeric_limits<double>::infinity();
    if (std::get<2>(key)) {
      norms = at::_foreach_norm(tensors, infinity);
    } else {
      for (const auto& tensor : tensors) norms.push_back(at::linalg_vector_norm(tensor, infinity));
    }
    out.values = at::stack(norms);
    if (out.values.is_cpu()) {
      out.values = out.values.to(at::kDouble);
    } else {
      out.stream = s.stream;
    }
    s.reduced.push_back(std::move(out));
  }
  throw_away(s, queue.list, queue.list.end());
  queue.clear();
}

// Reductions of many tensors: their largest magnitudes, NaN where there is one.
inline void reduce(State& s) { reduce_queue(s, s.pending, false); }

// Of those whose bounds rely on guesses: after what the guesses are of has been read.
inline void reduce_bounded(State& s) {
  if (s.bounded.list.empty()) return;
  reduce(s);
  reduce_queue(s, s.bounded, true);
}

// Before anything of a tensor is enqueued: with a second stream nothing is left for later.
inline void meet_stream(State& s, const Tensor& tensor) {
  if (s.met == tensor.device()) return;
  s.met = tensor.device();
  const auto stream = stream_of(tensor);
  (stream ? s.cuda : s.cpu) = true;
  if (!stream) return;
  if (s.stream && *s.stream != *stream) {
    reduce_bounded(s);
    reduce(s);
    s.many_streams = true;
    s.bounds.mode = Bounds::NOWHERE;
    s.bounds.forget_all();
  }
  s.stream = stream;
}

// A guess of what is about to be read, if the reading compares it.
inline float guess_at(State& s, const Tensor& tensor, const Site& site) {
  constexpr float USUAL = 65536;
  if (!s.bounds.serves(tensor) || !lies_plainly(s, tensor)) return NO_GUESS;
  const auto found = s.guess_of.find(site);
  const float guess = found == s.guess_of.end() ? USUAL : found->second;
  if (tensor.scalar_type() != at::kHalf) return guess;
  return guess <= USUAL ? 16000.0f : NO_GUESS;
}

// To be read; its stream has been met.
inline int enqueue(State& s, const Tensor& tensor, float most = NO_GUESS) {
  const int slot = s.slots++;
  if (is_one_on_host(tensor)) {
    const double magnitude = std::abs(number_in(tensor));
    s.on_host.emplace_back(slot, magnitude);
    if (!std::isnan(most)) s.broken_on_host = s.broken_on_host || !(magnitude <= double(most));
    return slot;
  }
  ++s.bounds.read;
  s.bounds.read_bytes += tensor.numel() * tensor.element_size();
  s.pending.push(pending_of(s, tensor, slot, most));
  return slot;
}

// What is checked later must not be written before.
inline void before_write(State& s, const std::vector<const Tensor*>& written) {
  for (const Tensor* tensor : written) {
    if (s.bounded.has(key_of(*tensor))) {
      reduce_bounded(s);
    } else if (s.pending.has(key_of(*tensor))) {
      reduce(s);
    }
  }
}

inline void after_enqueue(State& s) {
  if (s.bounded.list.size() >= BATCH_TENSORS || s.bounded.bytes >= BOUNDED_BYTES) {
    reduce_bounded(s);
  }
  if (s.many_streams || s.pending.list.size() >= BATCH_TENSORS || s.pending.bytes >= BATCH_BYTES) {
    reduce(s);
  }
}

// The guesses that were wrong are not made again. Whether there were any.
inline bool settle_guesses(State& s) {
  bool broken = false;
  for (const auto& guess : s.guesses) {
    const double found = s.values[size_t(guess.slot)];
    if (found <= double(guess.most)) continue;
    broken = true;
    const float next = found <= 1e20 ? float(found) * 16 : NO_GUESS;
    const auto [known, is_new] = s.guess_of.emplace(guess.site, next);
    if (!is_new && !(next < known->second)) known->second = next;
  }
  s.guesses.clear();
  return broken;
}

// The tensor of a result, if it still is one of the same memory.
inline Tensor tensor_of(const State& s, const Record& record, const Result& result) {
  if (result.kept >= 0) return s.kept[size_t(result.kept)].kept.tensor();
  if (result.argument < 0) return {};
  const IValue& list = s.arguments[record.arguments.first + size_t(result.argument)];
  if (!list.isList()) return {};  // let go
  const Tensor tensor = list.toListRef()[size_t(result.item)].toTensor();
  return is_plain(tensor) && key_of(tensor) == result.key ? tensor : Tensor();
}

// What a result is in, as a reference that does not keep its memory; null if nothing was kept.
inline WeakStorage weak_of(const State& s, const Record& record, const Result& result) {
  if (result.weak._unsafe_get_target() != nullptr) return result.weak;
  if (result.kept >= 0) return s.kept[size_t(result.kept)].kept.weak();
  const Tensor tensor = tensor_of(s, record, result);
  return tensor.defined() ? weak_of(tensor) : WeakStorage(c10::intrusive_ptr<StorageImpl>());
}

// Of results in lists only the shape is left.
inline void let_go_of_results(State& s, const Record& record) {
  for (size_t i = record.results.first; i < record.results.end; ++i) {
    Result& result = s.results[i];
    result.weak = weak_of(s, record, result);
    const Tensor tensor = result.kept < 0 ? tensor_of(s, record, result) : Tensor();
    if (!tensor.defined()) continue;
    result.kept = int(s.kept.size());
    s.kept.push_back({-1, Kept(tensor)});
    s.kept.back().kept.take_away(s.garbage.values);
  }
}

inline void let_go(State& s) {
  while (s.kept_bytes > s.keep_bytes && s.first_kept < s.records.size()) {
    Record& record = s.records[s.first_kept++];
    s.kept_bytes -= record.bytes;
    record.bytes = 0;
    if (record.before.defined()) s.garbage.values.emplace_back(std::move(record.before));
    record.before = Tensor();
    let_go_of_results(s, record);
    for (size_t i = record.kept.first; i < record.kept.end; ++i) {
      s.kept[i].place = -1;
      s.kept[i].kept.take_away(s.garbage.values);
    }
    for (size_t i = record.arguments.first; i < record.arguments.end; ++i) {
      IValue& value = s.arguments[i];
      if (!value.isTensor() && !value.isTensorList() && !value.isOptionalTensorList()) continue;
      s.garbage.values.push_back(std::move(value));
      value = IValue();
    }
  }
}

}  // namespace recorder
