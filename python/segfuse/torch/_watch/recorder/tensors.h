// What the recorder asks of tensors.

#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <c10/core/InferenceMode.h>
#include <algorithm>
#include <typeinfo>
#include <vector>

namespace recorder {

using at::Tensor;
using c10::IValue;
using c10::StorageImpl;
using WeakStorage = c10::weak_intrusive_ptr<StorageImpl>;

// With strides and memory. Nested tensors have no strides; what is in them is seen when they are
// unpacked.
inline bool is_plain(const Tensor& tensor) {
  constexpr auto others =
      c10::sparse_ks | c10::sparse_csr_ks | c10::mkldnn_ks |
      c10::DispatchKeySet({c10::DispatchKey::Python, c10::DispatchKey::NestedTensor});
  const auto* impl = tensor.unsafeGetTensorImpl();
  return bool(impl->unsafe_storage()) && !impl->key_set().has_any(others);
}

// Of a tensor that is plain.
inline bool holds_numbers(const Tensor& tensor) {
  const auto type = tensor.scalar_type();
  return (at::isFloatingType(type) || at::isComplexType(type)) && !tensor.is_meta() &&
         tensor.numel() > 0;
}

inline bool has_numbers(const Tensor& tensor) { return is_plain(tensor) && holds_numbers(tensor); }

inline int64_t version_of(const Tensor& tensor) {
  return tensor.is_inference() ? 0 : tensor._version();
}

// Of tensors that are plain.
inline const c10::Storage& storage_of(const Tensor& tensor) {
  return tensor.unsafeGetTensorImpl()->unsafe_storage();
}

inline StorageImpl* key_of(const Tensor& tensor) {
  return storage_of(tensor).unsafeGetStorageImpl();
}

inline WeakStorage weak_of(const Tensor& tensor) {
  return WeakStorage(storage_of(tensor).getWeakStorageImpl());
}

inline Tensor detached(const Tensor& tensor) {
  const auto* impl = tensor.unsafeGetTensorImpl();
  return Tensor(impl->shallow_copy_and_detach(impl->version_counter(), false));
}

template <class F>
inline void each_tensor(const IValue& value, F&& call) {
  if (value.isTensor()) {
    if (is_plain(value.toTensor())) call(value.toTensor(), -1);
  } else if (value.isTensorList() || value.isOptionalTensorList()) {
    int i = 0;
    for (const auto& item : value.toListRef()) {
      if (item.isTensor() && is_plain(item.toTensor())) call(item.toTensor(), i);
      ++i;
    }
  }
}

// A tensor for later, without the handle whose references autograd counts: from them it decides
// whether it may take a gradient over. It is much cheaper than a handle of its own.
class Kept {
 public:
  Kept() = default;
  explicit Kept(const Tensor& tensor) {
    const auto& impl = *tensor.unsafeGetTensorImpl();
    if (typeid(impl) != typeid(c10::TensorImpl) || impl.is_meta() || impl.is_wrapped_number() ||
        impl.dim() > MOST) {
      other_ = detached(tensor);
      dims_ = int(std::min<int64_t>(impl.dim(), MOST));
      std::copy_n(impl.sizes().begin(), dims_, sizes_);
      return;
    }
    storage_ = impl.unsafe_storage();
    version_ = impl.version_counter();
    keys_ = impl.key_set();
    dtype_ = impl.dtype();
    offset_ = impl.storage_offset();
    const auto sizes = impl.sizes(), strides = impl.strides();
    dims_ = int(sizes.size());
    std::copy(sizes.begin(), sizes.end(), sizes_);
    std::copy(strides.begin(), strides.end(), strides_);
  }

  bool defined() const { return bool(storage_) || other_.defined(); }

  // Null if it has been taken away.
  WeakStorage weak() const {
    if (storage_) return WeakStorage(storage_.getWeakStorageImpl());
    return other_.defined() ? weak_of(other_) : WeakStorage(c10::intrusive_ptr<StorageImpl>());
  }

  std::vector<int64_t> shape() const { return std::vector(sizes_, sizes_ + dims_); }

  // Leaves the shape.
  void take_away(std::vector<IValue>& values) {
    if (storage_) values.emplace_back(std::move(storage_));
    if (other_.defined()) values.emplace_back(std::move(other_));
    storage_ = c10::Storage();
    other_ = Tensor();
    version_ = c10::VariableVersion();
  }

  // The same numbers and version.
  Tensor tensor() const {
    if (!storage_) return other_;
    const c10::InferenceMode as_it_was(!version_.enabled());
    auto impl = c10::make_intrusive<c10::TensorImpl>(c10::Storage(storage_), keys_, dtype_);
    const auto dims = size_t(dims_);
    impl->set_sizes_and_strides({sizes_, dims}, {strides_, dims}, offset_);
    if (version_.enabled()) impl->set_version_counter(version_);
    return Tensor(std::move(impl));
  }

 private:
  static constexpr int64_t MOST = 6;

  Tensor other_;  // of a kind of its own
  c10::Storage storage_;
  c10::VariableVersion version_;
  c10::DispatchKeySet keys_;
  caffe2::TypeMeta dtype_;
  int dims_ = 0;
  int64_t offset_ = 0;
  int64_t sizes_[MOST], strides_[MOST];
};

}  // namespace recorder
