// What is known of the magnitudes of tensors without reading them.
//
// A bound is proven, or it holds as long as what was assumed of results does: that a result that
// is being read has no magnitude beyond a guess. The device tests the guess when it reads, and
// everything that relied on guesses is read as well if one was wrong (reduce.h).

#pragma once

#include <c10/util/flat_hash_map.h>
#include <recorder/tensors.h>
#include <cmath>
#include <limits>
#include <unordered_map>

namespace recorder {

constexpr double UNKNOWN = std::numeric_limits<double>::infinity();

struct Bound {
  double value = UNKNOWN;
  bool assumed = false;
  bool known() const { return value < UNKNOWN; }
};

// What may be stored as a bound: a quarter of the largest number, for what rounds on the way.
inline double limit_of(at::ScalarType type) {
  switch (type) {
    case at::kHalf: return 65504.0 / 4;
    case at::kBFloat16:
    case at::kFloat:
    case at::kDouble: return 8e37;
    default: return 0;
  }
}

// Four times the relative error of rounding once, for operations that round several times.
inline double rounding_of(at::ScalarType type) {
  return std::ldexp(1.0, type == at::kHalf ? -9 : type == at::kBFloat16 ? -6 : -22);
}

inline double rounded_up(double value, at::ScalarType type) {
  if (!(value > 0)) return value;
  return value * (1 + rounding_of(type)) + (type == at::kHalf ? 1e-6 : 1e-37);
}

inline double largest_whole(at::ScalarType type) {
  switch (type) {
    case at::kBool: return 1;
    case at::kByte: return 255;
    case at::kChar: return 128;
    case at::kShort: return 32768;
    case at::kInt: return 2147483648.0;
    case at::kLong: return 9223372036854775808.0;
    default: return UNKNOWN;
  }
}

// The number in a tensor of one on the host.
inline double number_in(const Tensor& tensor) {
  const void* data = tensor.const_data_ptr();
  switch (tensor.scalar_type()) {
    case at::kHalf: return double(*static_cast<const at::Half*>(data));
    case at::kBFloat16: return double(*static_cast<const at::BFloat16*>(data));
    case at::kFloat: return double(*static_cast<const float*>(data));
    case at::kDouble: return *static_cast<const double*>(data);
    case at::kLong: return double(*static_cast<const int64_t*>(data));
    case at::kInt: return double(*static_cast<const int32_t*>(data));
    default: return std::numeric_limits<double>::quiet_NaN();
  }
}

inline bool is_one_on_host(const Tensor& tensor) {
  return tensor.is_cpu() && tensor.numel() == 1 && is_plain(tensor) &&
         (limit_of(tensor.scalar_type()) > 0 || tensor.scalar_type() == at::kLong ||
          tensor.scalar_type() == at::kInt);
}

class Bounds {
 public:
  enum Mode { NOWHERE, DEVICES, EVERYWHERE };  // on the host other libraries write memory, too

  Mode mode = NOWHERE;
  int64_t proven = 0, pending = 0, read = 0, read_bytes = 0;  // results, and bytes of those read

  // Whether its magnitudes are remembered; the kernel has to be able to read it.
  bool serves(const Tensor& tensor) const {
    return mode != NOWHERE && (mode == EVERYWHERE || !tensor.is_cpu()) &&
           limit_of(tensor.scalar_type()) > 0 && tensor.is_non_overlapping_and_dense();
  }

  Bound of(const Tensor& tensor) const {
    if (!tensor.defined()) return {0};
    if (!is_plain(tensor)) return {};
    if (tensor.numel() == 0) return {0};
    const auto found = known_.find(key_of(tensor));
    if (found != known_.end() && is_of(found->second, tensor)) return found->second.bound();
    if (const double whole = largest_whole(tensor.scalar_type()); whole < UNKNOWN) return {whole};
    return {};
  }

  // The operation wrote the tensor; `slot` will have its magnitude, if it is not negative.
  void set(const Tensor& tensor, bool covers, bool keeps_larger, Bound bound, int slot) {
    if (mode == NOWHERE || (mode == DEVICES && tensor.is_cpu())) return;
    StorageImpl* const key = key_of(tensor);
    const auto found = known_.find(key);
    const bool is_new = found == known_.end();
    const bool will_be_known = covers && slot >= 0;
    if (!(bound.known() || will_be_known) || limit_of(tensor.scalar_type()) == 0) {
      if (!is_new) known_.erase(found);
      return;
    }
    if (!covers || keeps_larger) {
      const Bound before =
          !is_new && is_of(found->second, tensor) ? found->second.bound() : Bound();
      if (before.known()) {
        bound = {std::max(before.value, bound.value), before.assumed || bound.assumed};
      } else if (!covers) {
        if (!is_new) known_.erase(found);
        return;  // nobody knows the rest
      }
    }
    Known& known = is_new ? known_[key] : found->second;
    if (is_new) known.storage = weak_of(tensor);
    known.data = storage_of(tensor).data();
    known.dtype = tensor.scalar_type();
    known.set(bound);
    known.slot = covers ? slot : -1;
  }

  // The tensor is read once more: a proven bound is better than a guess.
  void set_again(const Tensor& tensor, bool covers, Bound bound, int slot) {
    if (mode == NOWHERE || !covers) return;
    const Bound before = of(tensor);
    set(tensor, true, false, before.known() && !before.assumed ? before : bound, slot);
  }

  void forget(const Tensor& tensor) { known_.erase(key_of(tensor)); }
  void forget_all() { known_.clear(); }

  // All that was read has arrived; `values` are by slot.
  void settle(const std::vector<double>& values, bool broken) {
    const bool sweeps = known_.size() >= next_sweep_;
    for (auto i = known_.begin(); i != known_.end();) {
      Known& known = i->second;
      bool keep = !sweeps || !known.storage.expired();
      if (known.slot >= 0) {
        known.set({rounded_up(values[size_t(known.slot)], at::kFloat), false});
        keep = keep && known.value <= limit_of(known.dtype);
        known.slot = -1;
      } else if (known.assumed) {
        keep = keep && !broken;
        known.assumed = false;
      }
      i = keep ? std::next(i) : known_.erase(i);
    }
    if (sweeps) next_sweep_ = 2 * known_.size() + 1024;
  }

 private:
  struct Known {
    WeakStorage storage{c10::intrusive_ptr<StorageImpl>()};  // so that the key is not used again
    const void* data;
    double value;  // of the bound
    int slot;
    bool assumed;
    at::ScalarType dtype;  // of the numbers: the same bits are others in another type

    Bound bound() const { return {value, assumed}; }
    void set(const Bound& bound) {
      value = bound.value;
      assumed = bound.assumed;
    }
  };

  static bool is_of(const Known& known, const Tensor& tensor) {
    return known.dtype == tensor.scalar_type() && known.data == storage_of(tensor).data();
  }

  ska::flat_hash_map<StorageImpl*, Known> known_;
  size_t next_sweep_ = 0;  // of what has ended
};

}  // namespace recorder
