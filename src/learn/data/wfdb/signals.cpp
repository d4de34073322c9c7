// Samples of WFDB records. Signals of one file alternate.

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <set>
#include <utility>

#include "base/os/file.h"
#include "learn/data/audio/parsers.h"
#include "learn/data/text.h"
#include "learn/data/wfdb/packing.h"
#include "learn/data/wfdb/wfdb.h"
#include "segfuse/error.h"

namespace segfuse::data {
namespace {

/// Signals [first, last) of a header, which share a file.
struct Group {
  std::size_t first = 0;
  std::size_t last = 0;
  std::size_t width() const { return last - first; }
};

std::vector<Group> groups_of(const WfdbHeader& header, std::string_view name) {
  std::vector<Group> out;
  for (std::size_t i = 0; i < header.signals.size(); ++i) {
    const WfdbSignal& signal = header.signals[i];
    if (i > 0 && signal.file == header.signals[i - 1].file) {
      const WfdbSignal& before = header.signals[i - 1];
      if (signal.format != before.format)
        throw DataError(
            fmt::format("{}:{}: format {}; the signal before it has {} in the same file", name,
                        signal.line, signal.format, before.format));
      if (signal.offset != before.offset)
        throw DataError(
            fmt::format("{}:{}: byte offset {}; the signal before it has {} in the same "
                        "file",
                        name, signal.line, signal.offset, before.offset));
      out.back().last = i + 1;
      continue;
    }
    for (const Group& group : out)
      if (header.signals[group.first].file == signal.file)
        throw DataError(fmt::format("{}:{}: the signals of {} do not follow each other", name,
                                    signal.line, shown(signal.file)));
    out.push_back({i, i + 1});
  }
  return out;
}

void check_first(const WfdbSignal& signal, std::int64_t found, std::string_view name) {
  if (!signal.first || *signal.first == found) return;
  throw DataError(fmt::format(
      "{}:{}: the first value of {} is {} in {}, and {} here; one of the files was changed", name,
      signal.line, shown(signal.description), found, shown(signal.file), *signal.first));
}

void check_sum(const WfdbSignal& signal, std::uint32_t found, std::string_view name) {
  const auto wanted = static_cast<std::uint32_t>(signal.checksum.value_or(0));
  if (!signal.checksum || ((found ^ wanted) & 0xFFFFU) == 0) return;
  throw DataError(fmt::format(
      "{}:{}: the checksum of {} is {} in {}, and {} here; one of the files was changed", name,
      signal.line, shown(signal.description), signed_value(found, 16), shown(signal.file),
      signed_value(wanted, 16)));
}

/// A file that the line of a header names.
WfdbBytes named_file(const std::string& file, std::string_view name, std::int64_t line,
                     const WfdbFiles& files) {
  try {
    return files(file);
  } catch (const FileError& error) {
    throw DataError(fmt::format("{}:{}: {}", name, line, error.what()));
  }
}

/// The signals of one header, some rows at a time.
class SignalRows {
 public:
  SignalRows(WfdbHeader header, std::string name, const WfdbFiles& files);
  std::size_t length() const { return length_; }  ///< rows
  /// The next rows in physical units; none at the end. What is missing in `channel` is a DataError.
  std::span<const float> next(int channel);

 private:
  struct Source {
    Group group;
    WfdbBytes bytes;
  };
  /// What has been read of a signal.
  struct Signal {
    std::uint32_t value = 0;  ///< the last one; before the first what differences begin with
    std::uint32_t sum = 0;
  };
  void find_length();
  void read_group(Source& source, std::size_t rows, int channel);
  float physical(std::size_t column, std::int32_t value, bool missing, std::size_t row,
                 int channel) const;

  WfdbHeader header_;
  std::string name_;
  std::vector<Source> sources_;
  std::vector<Signal> signals_;
  std::vector<float> values_;
  std::size_t length_ = 0;
  std::size_t row_ = 0;
};

SignalRows::SignalRows(WfdbHeader header, std::string name, const WfdbFiles& files)
    : header_(std::move(header)), name_(std::move(name)) {
  for (const Group& group : groups_of(header_, name_)) {
    const WfdbSignal& signal = header_.signals[group.first];
    WfdbBytes bytes = named_file(signal.file, name_, signal.line, files);
    if (bytes.size() <= static_cast<std::uint64_t>(signal.offset))
      throw DataError(fmt::format("{}:{}: samples begin at byte {} of {}, which has {}", name_,
                                  signal.line, signal.offset, shown(signal.file), bytes.size()));
    sources_.push_back({group, std::move(bytes)});
  }
  for (const WfdbSignal& signal : header_.signals)
    signals_.push_back({static_cast<std::uint32_t>(signal.first.value_or(signal.zero)), 0});
  find_length();
}

/// As the header says, or as the files hold.
void SignalRows::find_length() {
  std::optional<std::size_t> length;
  for (const Source& source : sources_) {
    const WfdbSignal& signal = header_.signals[source.group.first];
    const std::uint64_t bytes = source.bytes.size() - static_cast<std::uint64_t>(signal.offset);
    const std::size_t have =
        samples_in(signal.format, static_cast<std::size_t>(bytes)) / source.group.width();
    if (!header_.samples && length.value_or(have) != have)
      throw DataError(fmt::format("{}:{}: {} has {} samples of each signal, the file before it {}",
                                  name_, signal.line, shown(signal.file), have, *length));
    length = header_.samples ? static_cast<std::size_t>(*header_.samples) : have;
    if (have < *length)
      throw DataError(
          fmt::format("{}:{}: {} samples of each signal are announced, {} has {}; it was cut off",
                      name_, signal.line, *length, shown(signal.file), have));
  }
  if (!length || *length == 0)
    throw DataError(fmt::format("{}: the record has no samples; expected at least one", name_));
  length_ = *length;
}

std::span<const float> SignalRows::next(int channel) {
  constexpr std::size_t kRows = 6 * 2730;  // samples of every format end with a group of theirs
  const std::size_t rows = std::min(kRows, length_ - row_);
  values_.resize(rows * header_.signals.size());
  if (rows == 0) return values_;
  for (Source& source : sources_) read_group(source, rows, channel);
  row_ += rows;
  for (std::size_t i = 0; row_ == length_ && i < signals_.size(); ++i)
    check_sum(header_.signals[i], signals_[i].sum, name_);
  return values_;
}

/// The next rows of the signals that share a file.
void SignalRows::read_group(Source& source, std::size_t rows, int channel) {
  const Group& group = source.group;
  const WfdbSignal& first = header_.signals[group.first];
  const Packing packing = packing_of(first.format);
  const std::size_t begin = row_ * group.width() / packing.count * packing.bytes;
  const std::string bytes = source.bytes.read(static_cast<std::uint64_t>(first.offset) + begin,
                                              bytes_for(first.format, rows * group.width()));
  const PackedSamples samples(bytes, first.format);
  const bool differences = first.format == 8;
  const std::int32_t missing = signed_value(std::uint32_t{1} << (packing.bits - 1), packing.bits);
  for (std::size_t column = group.first; column < group.last; ++column) {
    Signal& signal = signals_[column];
    for (std::size_t t = 0; t < rows; ++t) {
      const std::int32_t stored = samples.at(t * group.width() + column - group.first);
      signal.value = static_cast<std::uint32_t>(stored) + (differences ? signal.value : 0U);
      signal.sum += signal.value;
      if (row_ + t == 0 && !differences) check_first(header_.signals[column], stored, name_);
      values_[t * header_.signals.size() + column] =
          physical(column, static_cast<std::int32_t>(signal.value),
                   !differences && stored == missing, row_ + t, channel);
    }
  }
}

float SignalRows::physical(std::size_t column, std::int32_t value, bool missing, std::size_t row,
                           int channel) const {
  const WfdbSignal& signal = header_.signals[column];
  if (!missing) return static_cast<float>((value - signal.baseline) / signal.gain);
  if (channel < 0 || channel == static_cast<int>(column))
    throw DataError(
        fmt::format("{}:{}: sample {} of {} is marked as missing; expected whole signals", name_,
                    signal.line, row, shown(signal.description)));
  return 0;
}

/// A part of a record, which has to be as the first one is.
WfdbHeader part_of(const WfdbHeader& whole, const WfdbPart& part, const WfdbHeader* first,
                   const std::string& name, const WfdbFiles& files) {
  const std::string file = part.name + ".hea";
  const WfdbHeader header = parse_wfdb_header(named_file(file, name, part.line, files).all(), file);
  const auto refuse = [&](const std::string& what) {
    throw DataError(fmt::format("{}:{}: {}", name, part.line, what));
  };
  if (!header.parts.empty()) refuse("the segment has segments itself");
  if (header.rate != whole.rate)
    refuse(fmt::format("the segment has {} Hz, the record {}", header.rate, whole.rate));
  if (first != nullptr && header.signals.size() != first->signals.size())
    refuse(fmt::format("the segment has {} signals, the first one {}", header.signals.size(),
                       first->signals.size()));
  for (std::size_t i = 0; first != nullptr && i < header.signals.size(); ++i)
    if (header.signals[i].description != first->signals[i].description)
      refuse(fmt::format("signal {} of the segment is {}, of the first one {}", i,
                         shown(header.signals[i].description),
                         shown(first->signals[i].description)));
  if (header.samples.value_or(part.samples) != part.samples)
    refuse(fmt::format("the segment has {} samples here, {} in its header", part.samples,
                       *header.samples));
  WfdbHeader out = header;
  out.samples = part.samples;
  return out;
}

std::vector<WfdbHeader> parts_of(const WfdbHeader& whole, const std::string& name,
                                 const WfdbFiles& files) {
  std::vector<WfdbHeader> out;
  std::set<std::string> names;
  std::int64_t samples = 0;
  out.reserve(whole.parts.size());
  for (const WfdbPart& part : whole.parts) {
    if (!names.insert(part.name).second)
      throw DataError(
          fmt::format("{}:{}: the segment {} comes twice", name, part.line, shown(part.name)));
    out.push_back(part_of(whole, part, out.empty() ? nullptr : out.data(), name, files));
    samples += part.samples;
  }
  if (!out.empty() && whole.samples.value_or(samples) != samples)
    throw DataError(fmt::format("{}: {} samples are announced, the segments have {}", name,
                                *whole.samples, samples));
  return out;
}

}  // namespace

WfdbBytes::WfdbBytes(std::string content) : held_(std::move(content)), size_(held_.size()) {}

WfdbBytes::WfdbBytes(const std::filesystem::path& path) : name_(path.string()) {
  std::error_code failure;
  if (std::filesystem::is_regular_file(path, failure)) {
    file_ = std::make_unique<std::ifstream>(path, std::ios::binary);
    size_ = std::filesystem::file_size(path, failure);
    if (*file_ && !failure) return;
    file_.reset();
  }
  held_ = read_file(path);  // which says what is wrong
  size_ = held_.size();
}

std::string WfdbBytes::read(std::uint64_t at, std::size_t count) {
  if (!file_) return held_.substr(static_cast<std::size_t>(at), count);
  std::string bytes(count, '\0');
  file_->seekg(static_cast<std::streamoff>(at));
  file_->read(bytes.data(), static_cast<std::streamsize>(count));
  if (static_cast<std::size_t>(file_->gcount()) != count)
    throw DataError(
        fmt::format("{}: {} bytes cannot be read at byte {}; it had {} bytes when it "
                    "was opened, and was changed meanwhile or is damaged",
                    name_, count, at, size_));
  return bytes;
}

std::int64_t wfdb_length(const WfdbHeader& header, std::string_view name, const WfdbFiles& files) {
  return static_cast<std::int64_t>(SignalRows(header, std::string(name), files).length());
}

struct WfdbReader::State {
  WfdbHeader header;
  std::vector<WfdbHeader> parts;
  WfdbFiles files;
  Audio audio;
  AudioOptions options;
  std::optional<ChannelMixer> mixer;
  std::optional<SignalRows> rows;  ///< of the record, or of the part that is read
  std::size_t part = 0;            ///< that comes next

  bool begin_part();
};

/// False behind the last one.
bool WfdbReader::State::begin_part() {
  if (part == parts.size()) return false;
  rows.emplace(parts[part], header.parts[part].name + ".hea", files);
  ++part;
  return true;
}

WfdbReader::WfdbReader(std::string_view text, const std::string& name, WfdbFiles files,
                       const AudioOptions& options)
    : state_(std::make_unique<State>()) {
  State& x = *state_;
  x.header = parse_wfdb_header(text, name);
  const auto rate = static_cast<int>(std::lround(x.header.rate));
  if (rate != x.header.rate)
    throw DataError(fmt::format(
        "{}: the sampling frequency is {} Hz; expected a whole number; resample the record, as "
        "with WFDB's xform",
        name, x.header.rate));
  x.files = std::move(files);
  x.options = options;
  x.parts = parts_of(x.header, name, x.files);
  const std::size_t width = (x.parts.empty() ? x.header : x.parts.front()).signals.size();
  x.audio = Audio{rate, static_cast<int>(width), 1, {}, name};
  check_channel(options.channel, x.audio.channels, name);
  x.mixer.emplace(x.audio, options);
  if (x.parts.empty())
    x.rows.emplace(x.header, name, x.files);
  else
    x.begin_part();
}

WfdbReader::~WfdbReader() = default;

const Audio& WfdbReader::audio() const { return state_->audio; }

std::int64_t WfdbReader::announced() const {
  if (state_->parts.empty()) return static_cast<std::int64_t>(state_->rows->length());
  std::int64_t samples = 0;
  for (const WfdbHeader& part : state_->parts) samples += *part.samples;
  return samples;
}

bool WfdbReader::next() {
  State& x = *state_;
  x.audio.samples.clear();
  std::span<const float> values = x.rows->next(x.options.channel);
  while (values.empty()) {
    if (!x.begin_part()) return false;
    values = x.rows->next(x.options.channel);
  }
  x.mixer->add(values);
  return true;
}

Audio parse_wfdb(std::string_view text, const std::string& name, const WfdbFiles& files,
                 const AudioOptions& options) {
  WfdbReader reader(text, name, files, options);
  Audio audio = reader.audio();
  while (reader.next())
    audio.samples.insert(audio.samples.end(), reader.audio().samples.begin(),
                         reader.audio().samples.end());
  return audio;
}

std::unique_ptr<WfdbReader> open_wfdb(const std::filesystem::path& path, const std::string& name,
                                      const AudioOptions& options) {
  const std::filesystem::path folder = path.parent_path();
  return std::make_unique<WfdbReader>(
      read_file(path), name, [folder](const std::string& file) { return WfdbBytes(folder / file); },
      options);
}

}  // namespace segfuse::data
