// What the recorder asks of tensors.

#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

namespace recorder {

using at::Tensor;
using c10::IValue;
using c10::StorageImpl;
using WeakStorage = c10::weak_intrusive_ptr<StorageImpl>;

inline bool is_plain(const Tensor& tensor) {
  return tensor.defined() && tensor.layout() == at::kStrided &&
         !tensor.key_set().has(c10::DispatchKey::Python) && tensor.has_storage();
}

inline bool has_numbers(const Tensor& tensor) {
  return is_plain(tensor) &&
         (at::isFloatingType(tensor.scalar_type()) || at::isComplexType(tensor.scalar_type())) &&
         !tensor.is_meta() && tensor.numel() > 0;
}

inline int64_t version_of(const Tensor& tensor) {
  return tensor.is_inference() ? 0 : tensor._version();
}

inline StorageImpl* key_of(const Tensor& tensor) { return tensor.storage().unsafeGetStorageImpl(); }

inline WeakStorage weak_of(const Tensor& tensor) {
  return WeakStorage(tensor.storage().getWeakStorageImpl());
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

}  // namespace recorder
