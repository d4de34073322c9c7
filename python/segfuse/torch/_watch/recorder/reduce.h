// Results are reduced to their largest magnitudes, many at once.

#pragma once

#include <recorder/state.h>

namespace recorder {

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

// Room for so many magnitudes, of 0, on the stream of what is pending.
inline Reduced& room_for(State& s, const at::Device& device, size_t count) {
  constexpr size_t ROOM = 2048;
  const std::pair<int, int64_t> key(device.index(), s.stream->id());
  const auto found = s.open.find(key);
  if (found != s.open.end() && s.reduced[found->second].slots.size() + count <= ROOM) {
    return s.reduced[found->second];
  }
  const auto options = at::TensorOptions().dtype(at::kFloat).device(device);
  s.open[key] = s.reduced.size();
  s.reduced.push_back({at::zeros({int64_t(ROOM)}, options), {}, s.stream});
  return s.reduced.back();
}

// By segfuse's kernel, many at once; what it cannot take stays pending.
inline void reduce_at_once(State& s) {
  if (s.magnitudes == nullptr || !s.stream) return;
  const auto takes = [&](const Pending& pending) {
    return pending.tensor.device() == s.stream->device() &&
           magnitude_type(pending.tensor.scalar_type()) >= 0 &&
           pending.tensor.is_non_overlapping_and_dense();
  };
  const auto rest = std::stable_partition(s.pending.begin(), s.pending.end(), takes);
  const size_t count = size_t(rest - s.pending.begin());
  if (count == 0) return;
  Reduced& into = room_for(s, s.stream->device(), count);
  float* largest = into.values.mutable_data_ptr<float>() + into.slots.size();
  s.wanted.clear();
  for (auto pending = s.pending.begin(); pending != rest; ++pending) {
    s.wanted.push_back({pending->tensor.const_data_ptr(), uint64_t(pending->tensor.numel()),
                        largest++, magnitude_type(pending->tensor.scalar_type())});
  }
  void* const stream = s.stream->id() == 0 ? nullptr : s.stream->native_handle();
  if (s.magnitudes(s.stream->device_index(), stream, s.wanted.data(), count) == 0) {
    s.magnitudes = nullptr;  // no NVRTC: PyTorch's kernels do it
    return;
  }
  for (auto pending = s.pending.begin(); pending != rest; ++pending) {
    into.slots.push_back(pending->slot);
  }
  s.pending.erase(s.pending.begin(), rest);
}

// Whether its memory is still there: a storage may be cut without an operation, as FSDP does.
inline bool is_there(const Tensor& tensor) {
  int64_t last = tensor.storage_offset();
  for (int64_t i = 0; i < tensor.dim(); ++i) last += (tensor.size(i) - 1) * tensor.stride(i);
  return size_t(last + 1) * tensor.element_size() <= tensor.storage().nbytes();
}

// Reductions of many tensors: their largest magnitudes, NaN where there is one.
inline void reduce(State& s) {
  if (s.pending.empty()) return;
  const Below below;
  const OnStream on(s.stream);
  std::erase_if(s.pending, [](const Pending& pending) { return !is_there(pending.tensor); });
  for (auto& pending : s.pending) pending.tensor = reducible(pending.tensor);
  reduce_at_once(s);
  std::map<std::tuple<int, int, bool>, std::vector<size_t>> groups;
  for (size_t i = 0; i < s.pending.size(); ++i) {
    const Tensor& tensor = s.pending[i].tensor;
    groups[{int(tensor.device().type()), int(tensor.scalar_type()),
            tensor.is_non_overlapping_and_dense()}]
        .push_back(i);
  }
  for (const auto& [key, members] : groups) {
    std::vector<Tensor> tensors, norms;
    Reduced out;
    for (const size_t i : members) {
      tensors.push_back(s.pending[i].tensor);
      out.slots.push_back(s.pending[i].slot);
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
  s.pending.clear();
  s.pending_bytes = 0;
}

inline int enqueue(State& s, const Tensor& tensor) {
  const auto stream = stream_of(tensor);
  (stream ? s.cuda : s.cpu) = true;
  if (stream) {
    if (s.stream && *s.stream != *stream) {
      reduce(s);
      s.many_streams = true;
    }
    s.stream = stream;
  }
  s.pending.push_back({tensor, s.slots});
  s.pending_bytes += tensor.numel() * tensor.element_size();
  return s.slots++;
}

// What is checked later must not be written before; with several streams nothing is left for later.
inline void before_write(State& s, const std::vector<Tensor>& written) {
  for (const auto& tensor : written) {
    for (const auto& pending : s.pending) {
      if (key_of(pending.tensor) == key_of(tensor)) {
        reduce(s);
        return;
      }
    }
  }
}

inline void after_enqueue(State& s) {
  if (s.many_streams || s.pending.size() >= BATCH_TENSORS || s.pending_bytes >= BATCH_BYTES) {
    reduce(s);
  }
}

inline void let_go(State& s) {
  while (s.kept_bytes > s.keep_bytes && s.first_kept < s.used) {
    Record& record = s.records[s.first_kept++];
    s.kept_bytes -= record.bytes;
    record.bytes = 0;
    record.kept = false;
    record.before = Tensor();
    for (auto& value : record.arguments) {
      if (value.isTensor() || value.isTensorList() || value.isOptionalTensorList())
        value = IValue();
    }
    for (auto& result : record.results) {
      if (!result.tensor.defined()) continue;
      result.shape = result.tensor.sizes().vec();
      result.tensor = Tensor();
    }
  }
}

}  // namespace recorder
