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
  explicit Handles(const std::vector<const Tensor*>& list) {
    sorted_.reserve(list.size());
    for (const Tensor* tensor : list) sorted_.push_back(tensor->unsafeGetTensorImpl());
    std::sort(sorted_.begin(), sorted_.end());
  }
  bool has(const Tensor& tensor) const {
    return std::binary_search(sorted_.begin(), sorted_.end(), tensor.unsafeGetTensorImpl());
  }

 private:
  c10::SmallVector<const c10::TensorImpl*, 8> sorted_;
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
  for (const auto& value : call.lists.arguments) {
    forget(value);
    if (value.isTensorList() || value.isOptionalTensorList()) {
      for (const auto& item : value.toListRef()) forget(item);
    }
  }
}

// A finite number of the host that a program reads: there is nothing to report.
inline bool is_finite_on_host(const IValue& value) {
  return value.isTensor() && is_one_on_host(value.toTensor()) &&
         std::isfinite(number_in(value.toTensor()));
}

// Of such a result only its place in memory is needed, where marks end.
inline void add_proven(State& s, Record& record, const Tensor& tensor, bool is_written,
                       const Bound& bound) {
  StorageImpl* const key = key_of(tensor);
  const bool covers = size_t(tensor.numel() * tensor.element_size()) >= tensor.storage().nbytes();
  (tensor.is_cpu() ? s.cpu : s.cuda) = true;
  ++s.bounds.proven;
  s.bounds.set(tensor, covers, false, bound, -1);
  if (!s.unwritten.empty()) s.unwritten.erase(key);
  if (is_written) s.written[key] = {-1, false};
  record.results.emplace_back(tensor, key, covers, s.slots++);
}

// An operation's result, numbers that arrive where they matter, or an operand that is read.
enum class Role { result, arrival, operand };

// Without a site nothing is assumed of what is read.
inline void add_result(State& s, Record& record, const Tensor& tensor, Role role, bool is_written,
                       Bound bound, const Site* site, bool keeps_larger = false) {
  const int64_t bytes = tensor.numel() * int64_t(tensor.element_size());
  const bool covers = size_t(bytes) >= tensor.storage().nbytes();
  StorageImpl* const key = key_of(tensor);
  meet_stream(s, tensor);
  const bool read = !bound.known() || s.bounds.mode == Bounds::NOWHERE;
  int slot;
  if (read) {
    const float most = site == nullptr ? NO_GUESS : guess_at(s, tensor, *site);
    slot = enqueue(s, tensor, most);
    if (!std::isnan(most)) {
      s.guesses.push_back({slot, most, *site});
      bound = {rounded_up(most, at::kFloat), true};
    }
  } else {
    slot = s.slots++;
    ++(bound.assumed ? s.bounds.pending : s.bounds.proven);
    if (bound.assumed) s.bounded.push(pending_of(s, tensor, slot, NO_GUESS));
  }
  if (role == Role::result) {
    if (site != nullptr) s.bounds.set(tensor, covers, keeps_larger, bound, read ? slot : -1);
    if (!s.unwritten.empty()) s.unwritten.erase(key);
    if (is_written) s.written[key] = {covers ? slot : -1, read};
    record.bytes += bytes;
  } else if (role == Role::arrival && read) {
    s.bounds.set_again(tensor, covers, bound, slot);
  }
  Result& kept = record.results.emplace_back(tensor, key, covers, slot);
  if (role == Role::arrival) return;
  kept.version = version_of(tensor);
  kept.kept = Kept(tensor);
}

}  // namespace recorder
