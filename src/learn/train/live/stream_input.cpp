#include "learn/train/live/stream_input.h"

#include <fmt/core.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>

#include "base/text.h"
#include "learn/data/values/values.h"
#include "segfuse/error.h"

namespace segfuse::learn {
namespace {

static_assert(std::endian::native == std::endian::little);

template <class T>
T number_at(std::string_view bytes, std::size_t at) {
  T value{};
  std::memcpy(&value, bytes.data() + at, sizeof(T));
  return value;
}

std::size_t bytes_of(SampleEncoding encoding) { return encoding == SampleEncoding::kS16 ? 2 : 4; }

/// Who writes a WAV file into a pipe does not know its length, and announces nothing or the most.
constexpr std::uint32_t kUnknownLength = 0x7FFF0000;
constexpr std::size_t kMaxHeader = 1 << 20;
constexpr std::size_t kMaxLine = 1 << 24;

}  // namespace

SampleBytes::SampleBytes(std::string name, const StreamFormat& given, bool wav,
                         const StreamFormat& fallback)
    : name_(std::move(name)), given_(given), fallback_(fallback), wav_(wav) {}

std::size_t SampleBytes::frame_bytes() const {
  return bytes_of(*format_.encoding) * static_cast<std::size_t>(format_.channels);
}

void SampleBytes::agree(const char* what, int given, int found) const {
  if (given != 0 && given != found)
    throw UsageError(
        fmt::format("{}: its header says {} {}, but {} were requested; leave the option out", name_,
                    found, what, given));
}

/// Reads the "fmt " chunk.
void SampleBytes::read_format(std::string_view chunk) {
  constexpr std::uint16_t kIntegers = 1;
  constexpr std::uint16_t kFloats = 3;
  constexpr std::uint16_t kExtensible = 0xFFFE;
  if (chunk.size() < 16)
    throw DataError(
        fmt::format("{}: its fmt chunk has {} bytes; expected at least 16", name_, chunk.size()));
  auto kind = number_at<std::uint16_t>(chunk, 0);
  if (kind == kExtensible && chunk.size() >= 26) kind = number_at<std::uint16_t>(chunk, 24);
  const auto channels = number_at<std::uint16_t>(chunk, 2);
  const auto rate = number_at<std::uint32_t>(chunk, 4);
  const auto bits = number_at<std::uint16_t>(chunk, 14);
  if (kind == kIntegers && bits == 16)
    format_.encoding = SampleEncoding::kS16;
  else if (kind == kFloats && bits == 32)
    format_.encoding = SampleEncoding::kF32;
  else
    throw DataError(fmt::format(
        "{}: its header says format {} with {} bits; expected integers of 16 bits (format 1) or "
        "floats of 32 (format 3)",
        name_, kind, bits));
  constexpr std::uint32_t kMaxRate = 100'000'000;
  if (channels == 0 || rate == 0 || rate > kMaxRate)
    throw DataError(
        fmt::format("{}: its header says {} channels and {} Hz; expected at least 1 and 1 to {}",
                    name_, channels, rate, kMaxRate));
  format_.channels = channels;
  format_.sample_rate = static_cast<int>(rate);
  agree("Hz", given_.sample_rate, format_.sample_rate);
  agree("channels", given_.channels, format_.channels);
}

/// The chunk that begins at `at`, which moves behind it; false while there is too little of it.
bool SampleBytes::read_chunk(std::size_t& at) {
  if (held_.size() < at + 8) return false;
  const std::string_view id = std::string_view(held_).substr(at, 4);
  const auto size = number_at<std::uint32_t>(held_, at + 4);
  if (id == "data") {
    if (!format_.encoding)
      throw DataError(fmt::format("{}: its data come before their fmt chunk", name_));
    if (size != 0 && size < kUnknownLength) expected_ = size;
    has_begun_ = true;
    at += 8;
    return true;
  }
  const std::size_t whole = 8 + std::size_t{size} + (size & 1U);
  if (at + whole > kMaxHeader)
    throw DataError(
        fmt::format("{}: its header has more than {} bytes before the samples", name_, kMaxHeader));
  if (held_.size() < at + whole) return false;
  if (id == "fmt ") read_format(std::string_view(held_).substr(at + 8, size));
  at += whole;
  return true;
}

bool SampleBytes::read_header() {
  if (held_.size() < 12) return false;
  if (!held_.starts_with("RIFF") || held_.compare(8, 4, "WAVE") != 0)
    throw DataError(fmt::format("{}: it does not begin with the header of a WAV file", name_));
  std::size_t at = 12;
  while (!has_begun_)
    if (!read_chunk(at)) return false;
  held_.erase(0, at);
  return true;
}

/// Finds out what comes; false while there is too little of it.
bool SampleBytes::begin() {
  constexpr std::string_view kMagic = "RIFF";
  const bool may_be_wav = held_.compare(0, kMagic.size(), kMagic.substr(0, held_.size())) == 0;
  if (!wav_ && may_be_wav) {
    if (held_.size() < kMagic.size()) return false;
    if (given_.encoding)
      throw UsageError(
          fmt::format("{}: it begins with the header of a WAV file, but the encoding says samples "
                      "without a header; leave the encoding out",
                      name_));
    wav_ = true;
  }
  if (wav_) return read_header();
  format_.encoding = given_.encoding.value_or(SampleEncoding::kS16);
  format_.sample_rate = given_.sample_rate != 0 ? given_.sample_rate : fallback_.sample_rate;
  format_.channels = given_.channels != 0 ? given_.channels : fallback_.channels;
  return has_begun_ = true;
}

void SampleBytes::push(std::string_view bytes, std::vector<float>& samples) {
  held_.append(bytes);
  if (held_.empty() || (!has_begun_ && !begin())) return;
  if (expected_ && held_.size() > *expected_) held_.resize(*expected_);  // chunks behind them
  const std::size_t size = bytes_of(*format_.encoding);
  const std::size_t count =
      held_.size() / frame_bytes() * static_cast<std::size_t>(format_.channels);
  for (std::size_t i = 0; i < count; ++i)
    samples.push_back(*format_.encoding == SampleEncoding::kS16
                          ? static_cast<float>(number_at<std::int16_t>(held_, i * size)) / 0x1p15F
                          : number_at<float>(held_, i * size));
  if (expected_) *expected_ -= count * size;
  held_.erase(0, count * size);
}

void SampleBytes::check_end() const {
  if (!has_begun_) {
    if (held_.empty()) return;
    throw DataError(
        fmt::format("{}: it ends after {} bytes; expected samples", name_, held_.size()));
  }
  if (!held_.empty())
    throw DataError(fmt::format(
        "{}: it ends with {} bytes of a sample; expected {} bytes for each ({} channels of {})",
        name_, held_.size(), frame_bytes(), format_.channels, bytes_of(*format_.encoding)));
  if (expected_.value_or(0) > 0)
    throw DataError(fmt::format("{}: it ends {} bytes before the end that its header announces",
                                name_, *expected_));
}

void NumberLines::add(std::string_view line) {
  ++line_;
  data::TableRow row{{}, line_};
  if (trim(line).empty()) return;
  if (line.find(',') == std::string_view::npos) {
    for (const Field& field : split_fields(line)) row.fields.emplace_back(field.text);
  } else {
    for (std::size_t at = 0; at <= line.size();) {
      const std::size_t end = std::min(line.find(',', at), line.size());
      row.fields.emplace_back(line.substr(at, end - at));
      at = end + 1;
    }
  }
  if (columns_ == 0) {
    columns_ = row.fields.size();
    if (data::names_columns(row)) return;
  }
  data::append_numbers(row, columns_, name_, numbers_);
}

Tensor NumberLines::take() {
  if (columns_ > 0) numbers_.resize(numbers_.size() / columns_ * columns_);
  if (numbers_.empty()) return Tensor(DType::kF32, {0, 0});
  Tensor rows = Tensor::from(numbers_, {static_cast<std::int64_t>(numbers_.size() / columns_),
                                        static_cast<std::int64_t>(columns_)});
  numbers_.clear();
  return rows;
}

Tensor NumberLines::push(std::string_view bytes) {
  held_.append(bytes);
  std::size_t at = 0;
  for (std::size_t end = held_.find('\n'); end != std::string::npos; end = held_.find('\n', at)) {
    std::string_view line = std::string_view(held_).substr(at, end - at);
    if (line.ends_with('\r')) line.remove_suffix(1);
    add(line);
    at = end + 1;
  }
  held_.erase(0, at);
  if (held_.size() > kMaxLine)
    throw DataError(fmt::format("{}:{}: a line of more than {} bytes", name_, line_ + 1, kMaxLine));
  return take();
}

Tensor NumberLines::finish() {
  if (!held_.empty()) add(held_);
  held_.clear();
  return take();
}

}  // namespace segfuse::learn
