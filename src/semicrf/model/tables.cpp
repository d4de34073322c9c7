#include "semicrf/model/tables.h"

namespace segfuse::semicrf {
namespace {

template <class T>
void add_lists(const void* data, std::int64_t offset, std::int64_t step, std::int64_t hop,
               std::int64_t n, std::int64_t classes, std::int64_t stride, double* rows) {
  const T* from = static_cast<const T*>(data) + offset;
  for (std::int64_t i = 0; i < n; ++i, from += step, rows += stride) {
    if (hop == 1) {
      for (std::int64_t c = 0; c < classes; ++c) rows[c] += static_cast<double>(from[c]);
    } else {
      for (std::int64_t c = 0; c < classes; ++c) rows[c] += static_cast<double>(from[c * hop]);
    }
  }
}

}  // namespace

template <class T>
TableReader TableReader::of(const T* data) {
  return {data, &add_lists<T>};
}

template TableReader TableReader::of(const float*);
template TableReader TableReader::of(const double*);
template TableReader TableReader::of(const Half*);
template TableReader TableReader::of(const BFloat16*);

}  // namespace segfuse::semicrf
