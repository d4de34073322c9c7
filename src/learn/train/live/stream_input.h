#pragma once
// Bytes that come in pieces of any size, as samples and as rows of numbers.

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "segfuse/tensor.h"

namespace segfuse::learn {

enum class SampleEncoding : std::uint8_t { kS16, kF32 };

/// The format of the samples of a stream; 0 where a value is not known.
struct StreamFormat {
  std::optional<SampleEncoding> encoding;
  int sample_rate = 0;
  int channels = 0;
};

/// Samples without a header, or of a WAV file that is written while it is read.
class SampleBytes {
 public:
  /// Messages call the stream `name`. With `wav` it has a header, which has to agree with what is
  /// given; without, and without an encoding, it has one if it begins with "RIFF", and else holds
  /// integers of 16 bits. What is still missing then is taken from `fallback`.
  SampleBytes(std::string name, const StreamFormat& given, bool wav, const StreamFormat& fallback);

  /// Appends the whole samples, in [-1, 1) and alternating by channel.
  void push(std::string_view bytes, std::vector<float>& samples);
  /// Known as soon as there was a sample.
  const StreamFormat& format() const { return format_; }
  /// DataError where the stream ends before its header's end or within a sample.
  void check_end() const;

 private:
  bool begin();
  bool read_header();
  bool read_chunk(std::size_t& at);
  void read_format(std::string_view chunk);
  void agree(const char* what, int given, int found) const;
  std::size_t frame_bytes() const;

  std::string name_;
  StreamFormat given_, fallback_, format_;
  bool wav_;
  bool has_begun_ = false;
  std::string held_;                       ///< bytes that are not samples yet
  std::optional<std::uint64_t> expected_;  ///< bytes of samples still to come, of a WAV file
};

/// Lines of numbers between commas or white space; the first one may have names of columns.
class NumberLines {
 public:
  explicit NumberLines(std::string name) : name_(std::move(name)) {}
  /// The rows of the lines that are whole, (n, D); without rows (0, 0).
  Tensor push(std::string_view bytes);
  /// That of a last line without an end.
  Tensor finish();
  /// After an error of one of these: the rows before the line that is wrong.
  Tensor take();

 private:
  void add(std::string_view line);

  std::string name_;
  std::string held_;
  std::int64_t line_ = 0;
  std::size_t columns_ = 0;
  std::vector<float> numbers_;
};

}  // namespace segfuse::learn
