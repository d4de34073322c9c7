#include "learn/data/feature_store.h"

#include <fmt/core.h>

#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "base/sizes.h"

namespace segfuse::data {
namespace {

constexpr std::uint64_t kPartBytes = std::uint64_t{64} << 20;  // few mappings, little left over
constexpr std::uint64_t kRoomUnit = 64;                        // bytes: as tensors are aligned
constexpr std::int64_t kChangedRows = 4096;

std::uint64_t bytes_of_rows(std::int64_t rows, std::int64_t width) {
  return static_cast<std::uint64_t>(rows) * static_cast<std::uint64_t>(width) * sizeof(float);
}

}  // namespace

Tensor rows_of(const Tensor& matrix, std::int64_t first, std::int64_t count) {
  const auto all = std::make_shared<Tensor>(matrix);
  const std::int64_t width = matrix.shape()[1];
  auto* const begin = static_cast<std::byte*>(all->data()) + bytes_of_rows(first, width);
  return Tensor::borrow(matrix.dtype(), {count, width}, std::shared_ptr<std::byte>(all, begin));
}

bool FeatureStore::fits_memory(std::uint64_t bytes) {
  const MutexLock lock(mutex_);
  if (!folder_.empty() && held_ + bytes > budget_) return false;
  held_ += bytes;
  return true;
}

FeatureStore::Place FeatureStore::place_for(std::uint64_t bytes) {
  const MutexLock lock(mutex_);
  if (!file_) file_.emplace(folder_);
  const std::uint64_t room = round_up(std::max<std::uint64_t>(bytes, 1), kRoomUnit);
  if (parts_.empty() || parts_.back().size - parts_.back().used < room) {
    Part part;
    if (!parts_.empty()) part.offset = parts_.back().offset + parts_.back().size;
    part.size = round_up(std::max(room, kPartBytes), ScratchFile::kMapUnit);
    part.memory = file_->map(part.offset, part.size);
    parts_.push_back(std::move(part));
  }
  Part& part = parts_.back();
  Place place{{part.memory, part.memory.get() + part.used}, part.offset + part.used};
  part.used += room;
  return place;
}

/// Where its rows lie in the file; nothing for those in memory.
std::optional<std::uint64_t> FeatureStore::offset_of(const Tensor& features) const {
  const auto* const at = static_cast<const std::byte*>(features.data());
  const MutexLock lock(mutex_);
  for (const Part& part : parts_)
    if (!std::less<>()(at, part.memory.get()) && std::less<>()(at, part.memory.get() + part.size))
      return part.offset + static_cast<std::uint64_t>(at - part.memory.get());
  return std::nullopt;
}

void FeatureStore::write(std::uint64_t offset, const Tensor& rows) {
  const MutexLock lock(mutex_);
  file_->write(offset, {static_cast<const std::byte*>(rows.data()), rows.bytes()});
}

Tensor FeatureStore::keep(Tensor features) {
  if (fits_memory(features.bytes())) return features;
  const Place place = place_for(features.bytes());
  write(place.offset, features);
  return Tensor::borrow(features.dtype(), features.shape(), place.memory);
}

Tensor FeatureStore::keep(std::int64_t rows, const std::function<Tensor()>& next) {
  Tensor piece = next();
  const std::int64_t width = piece.shape()[1];
  const std::uint64_t most = bytes_of_rows(rows, width);
  const bool held = fits_memory(most);
  Tensor all = held ? Tensor(DType::kF32, {rows, width}) : Tensor();
  const Place place = held ? Place() : place_for(most);
  std::int64_t count = 0;
  for (; piece.shape()[0] > 0; piece = next()) {
    SEGFUSE_CHECK(count + piece.shape()[0] <= rows, "more than the {} rows that were announced",
                  rows);
    const std::uint64_t at = bytes_of_rows(count, width);
    if (held)
      std::memcpy(static_cast<std::byte*>(all.data()) + at, piece.data(), piece.bytes());
    else
      write(place.offset + at, piece);
    count += piece.shape()[0];
  }
  if (!held) return Tensor::borrow(DType::kF32, {count, width}, place.memory);
  return count == rows ? all : rows_of(all, 0, count);
}

void FeatureStore::change(Tensor& features, const std::function<void(Tensor&)>& change) {
  const std::optional<std::uint64_t> offset = offset_of(features);
  if (!offset) return change(features);
  for (std::int64_t first = 0; first < features.shape()[0]; first += kChangedRows) {
    const std::int64_t count = std::min(kChangedRows, features.shape()[0] - first);
    Tensor rows = rows_of(features, first, count).clone();
    change(rows);
    write(*offset + bytes_of_rows(first, features.shape()[1]), rows);
  }
}

std::uint64_t FeatureStore::bytes_in_file() const {
  const MutexLock lock(mutex_);
  return file_ ? file_->size() : 0;
}

}  // namespace segfuse::data
