// What becomes of an operation's results: read, read if a guess was wrong, or known to be finite.

#pragma once

#include <recorder/reduce.h>
#include <recorder/state.h>

namespace recorder {

// The place of a result among the returned or written ones (-1: unknown), and in a list.
struct From {
  int ret, item;
};

// The lists of a call; those of a thread's last call have room for its next one.
struct Lists {
  std::vector<IValue> arguments;
  std::vector<const Tensor*> written, results;  // in the arguments, and on the stack
  std::vector<From> from;                       // of the results; what was written comes first

  void clear() {
    arguments.clear();
    written.clear();
    results.clear();
    from.clear();
  }
};

struct Call {
  const Facts& facts;
  int place, module;
  Lists lists;
  Tensor before;
};

// Tensors of a list, by their handles.
class Handles {
 public:
  explicit Handles(const std::vector<const Tensor*>& list) : list_(list) {
    for (const Tensor* tensor : list) {
      const size_t bit = bit_of(*tensor);
      seen_[bit / 64] |= uint64_t{1} << bit % 64;
    }
  }
  bool has(const Tensor& tensor) const {
    const size_t bit = bit_of(tensor);
    if ((seen_[bit / 64] >> bit % 64 & 1) == 0) return false;
    for (const Tensor* one : list_) {
      if (one->is_same(tensor)) return true;
    }
    return false;
  }

 private:
  static size_t bit_of(const Tensor& tensor) {
    return size_t(
        (reinterpret_cast<uintptr_t>(tensor.unsafeGetTensorImpl()) * 0x9e3779b97f4a7c15ull) >> 55);
  }
  const std::vector<const Tensor*>& list_;
  uint64_t seen_[8] = {};
};

inline Bound bound_of(State& s, const Call& call, const Tensor& result, const From& from) {
  if (call.facts.rule == nullptr || from.ret < 0 || !s.bounds.serves(result)) return {};
  const auto type = result.scalar_type();
  Seen seen{s.bounds, call.lists.arguments, result, from.ret, from.item, limit_of(type)};
  try {
    const double bound = rounded_up(call.facts.rule(seen), type);
    return bound <= seen.limit ? Bound{bound, seen.assumed} : Bound{};
  } catch (const std::exception&) {  // other arguments than in this PyTorch
    return {};
  }
}

// What may have been written unseen.
inline void forget_operands(State& s, const Call& call) {
  const bool reads_only = call.facts.rule != nullptr;
  if (s.bounds.mode == Bounds::NOWHERE || (reads_only && call.lists.written.empty())) return;
  for (const Tensor* tensor : call.lists.written) {  // bits of other numbers, through a view
    if (limit_of(tensor->scalar_type()) == 0) s.bounds.forget(*tensor);
  }
  const auto forget = [&](const IValue& value) {
    if (!value.isTensor() || !value.toTensor().defined()) return;
    if (!is_plain(value.toTensor())) {
      s.bounds.forget_all();
    } else if (!reads_only) {
      s.bounds.forget(value.toTensor());
    }
  };
  for (const size_t i : call.facts.holders) {
    const IValue& value = call.lists.arguments[i];
    forget(value);
    if (value.isTensorList() || value.isOptionalTensorList()) {
      for (const auto& item : value.toListRef()) forget(item);
    }
  }
}

// Of such a result only its place in memory is needed, where marks end: if it covers it.
inline bool add_proven(State& s, const Tensor& tensor, bool is_written, const Bound& bound) {
  StorageImpl* const key = key_of(tensor);
  const size_t bytes = size_t(tensor.numel()) * tensor.element_size();
  const bool covers = bytes >= storage_of(tensor).nbytes();
  (tensor.is_cpu() ? s.cpu : s.cuda) = true;
  ++s.bounds.proven;
  s.bounds.set(tensor, covers, false, bound, -1);
  if (!s.unwritten.empty()) s.unwritten.erase(key);
  if (is_written) s.written[key] = {-1, false};
  return covers;
}

// An operation's result, numbers that arrive where they matter, or an operand that is read.
enum class Role { result, arrival, operand };

// Without a site nothing is assumed of what is read.
inline Result& add_result(State& s, Record& record, const Tensor& tensor, Role role,
                          bool is_written, Bound bound, const Site* site,
                          bool keeps_larger = false) {
  const int64_t bytes = tensor.numel() * int64_t(tensor.element_size());
  const bool covers = size_t(bytes) >= storage_of(tensor).nbytes();
  StorageImpl* const key = key_of(tensor);
  meet_stream(s, tensor);
  const bool read = !bound.known() || s.bounds.mode == Bounds::NOWHERE;
  int slot = -1;
  if (read) {
    const float most = site == nullptr ? NO_GUESS : guess_at(s, tensor, *site);
    slot = enqueue(s, tensor, most);
    if (!std::isnan(most)) {
      s.guesses.push_back({slot, most, *site});
      bound = {rounded_up(most, at::kFloat), true};
    }
  } else if (bound.assumed) {
    slot = s.slots++;
    ++s.bounds.pending;
    s.bounded.push(pending_of(s, tensor, slot, NO_GUESS));
  } else {
    ++s.bounds.proven;
  }
  if (role == Role::result) {
    if (site != nullptr) s.bounds.set(tensor, covers, keeps_larger, bound, read ? slot : -1);
    if (!s.unwritten.empty()) s.unwritten.erase(key);
    if (is_written) s.written[key] = {covers ? slot : -1, read};
    if (!is_written) record.bytes += bytes;  // the program has the memory in any case
  } else if (role == Role::arrival && read) {
    s.bounds.set_again(tensor, covers, bound, slot);
  }
  Result& result = s.results.emplace_back(Result{key, slot, tensor.scalar_type(), covers});
  if (role != Role::arrival) result.version = version_of(tensor);
  return result;
}

}  // namespace recorder
