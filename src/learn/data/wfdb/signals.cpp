// Samples of WFDB records. Signals of one file alternate.

#include <fmt/core.h>

#include <cmath>
#include <set>

#include "base/os/file.h"
#include "learn/data/audio/parsers.h"
#include "learn/data/text.h"
#include "learn/data/wfdb/wfdb.h"
#include "segfuse/error.h"

namespace segfuse::data {
namespace {

/// How samples of a format are packed: `count` of them in `bytes`.
struct Packing {
  std::size_t bytes = 0;
  std::size_t count = 1;
  int bits = 0;         ///< of the value; the least value marks a missing sample
  bool offset = false;  ///< the stored number is the value plus half of its range
};

Packing packing_of(int format) {
  switch (format) {
    case 8: return {1, 1, 8, false};
    case 80: return {1, 1, 8, true};
    case 16:
    case 61: return {2, 1, 16, false};
    case 160: return {2, 1, 16, true};
    case 24: return {3, 1, 24, false};
    case 32: return {4, 1, 32, false};
    case 212: return {3, 2, 12, false};
    default: return {4, 3, 10, false};  // 310, 311
  }
}

/// Bytes that hold so many samples; the last group may be cut behind its last sample.
std::size_t bytes_for(int format, std::size_t samples) {
  const Packing packing = packing_of(format);
  const std::size_t rest = samples % packing.count;
  std::size_t tail = 0;
  if (rest == 1) tail = 2;
  if (rest == 2) tail = format == 311 ? 3 : 4;
  return samples / packing.count * packing.bytes + tail;
}

std::size_t samples_in(int format, std::size_t bytes) {
  const Packing packing = packing_of(format);
  std::size_t samples = bytes / packing.bytes * packing.count;
  while (packing.count > 1 && bytes_for(format, samples + 1) <= bytes) ++samples;
  return samples;
}

std::int32_t signed_value(std::uint32_t value, int bits) {
  const std::uint32_t sign = std::uint32_t{1} << (bits - 1);
  const std::uint32_t mask = bits == 32 ? ~std::uint32_t{0} : (std::uint32_t{1} << bits) - 1;
  return static_cast<std::int32_t>(((value & mask) ^ sign) - sign);
}

/// The samples of one file, one after another.
class Samples {
 public:
  Samples(std::string_view bytes, int format)
      : bytes_(bytes), format_(format), packing_(packing_of(format)) {}

  std::int32_t at(std::size_t i) const {
    const std::size_t group = i / packing_.count * packing_.bytes;
    const std::size_t place = i % packing_.count;
    switch (format_) {
      case 61: return signed_value(byte(group) << 8 | byte(group + 1), 16);
      case 212: {
        const std::uint32_t middle = byte(group + 1);
        return place == 0 ? signed_value(byte(group) | (middle & 0xFU) << 8, 12)
                          : signed_value(byte(group + 2) | (middle & 0xF0U) << 4, 12);
      }
      case 310: {
        const std::uint32_t left = little(group, 2);
        const std::uint32_t right = little(group + 2, 2);
        if (place == 0) return signed_value(left >> 1, 10);
        if (place == 1) return signed_value(right >> 1, 10);
        return signed_value(left >> 11 | right >> 11 << 5, 10);
      }
      case 311: return signed_value(little(group, 4) >> (10 * place), 10);
      default: break;
    }
    const std::uint32_t value = little(group, packing_.bytes);
    const std::uint32_t half = std::uint32_t{1} << (packing_.bits - 1);
    return signed_value(packing_.offset ? value - half : value, packing_.bits);
  }
  int bits() const { return packing_.bits; }

 private:
  std::uint32_t byte(std::size_t i) const {
    return i < bytes_.size() ? static_cast<unsigned char>(bytes_[i]) : 0U;
  }
  std::uint32_t little(std::size_t at, std::size_t count) const {
    std::uint32_t value = 0;
    for (std::size_t i = count; i-- > 0;) value = value << 8 | byte(at + i);
    return value;
  }

  std::string_view bytes_;
  int format_;
  Packing packing_;
};

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
std::string named_file(const std::string& file, std::string_view name, std::int64_t line,
                       const WfdbFiles& files) {
  try {
    return files(file);
  } catch (const FileError& error) {
    throw DataError(fmt::format("{}:{}: {}", name, line, error.what()));
  }
}

/// A file of signals in memory, without what stands before its samples.
std::string content_of(const WfdbHeader& header, const Group& group, std::string_view name,
                       const WfdbFiles& files) {
  const WfdbSignal& signal = header.signals[group.first];
  std::string bytes = named_file(signal.file, name, signal.line, files);
  if (bytes.size() <= static_cast<std::uint64_t>(signal.offset))
    throw DataError(fmt::format("{}:{}: samples begin at byte {} of {}, which has {}", name,
                                signal.line, signal.offset, shown(signal.file), bytes.size()));
  bytes.erase(0, static_cast<std::size_t>(signal.offset));
  return bytes;
}

/// How long the signals are: as the header says, or as their files hold.
std::size_t length_of(const WfdbHeader& header, const std::vector<Group>& groups,
                      const std::vector<std::string>& contents, std::string_view name) {
  std::optional<std::size_t> length;
  for (std::size_t i = 0; i < groups.size(); ++i) {
    const WfdbSignal& signal = header.signals[groups[i].first];
    const std::size_t have = samples_in(signal.format, contents[i].size()) / groups[i].width();
    if (!header.samples && length.value_or(have) != have)
      throw DataError(fmt::format("{}:{}: {} has {} samples of each signal, the file before it {}",
                                  name, signal.line, shown(signal.file), have, *length));
    length = header.samples ? static_cast<std::size_t>(*header.samples) : have;
    if (have < *length)
      throw DataError(
          fmt::format("{}:{}: {} samples of each signal are announced, {} has {}; it was cut off",
                      name, signal.line, *length, shown(signal.file), have));
  }
  if (!length || *length == 0)
    throw DataError(fmt::format("{}: the record has no samples; expected at least one", name));
  return *length;
}

/// Puts the samples of a group into their columns.
void decode(const WfdbHeader& header, const Group& group, std::string_view bytes,
            std::string_view name, std::span<std::int32_t> out) {
  const std::size_t width = header.signals.size();
  const bool differences = header.signals[group.first].format == 8;
  const Samples samples(bytes, header.signals[group.first].format);
  const std::int32_t missing =
      signed_value(std::uint32_t{1} << (samples.bits() - 1), samples.bits());
  for (std::size_t column = group.first; column < group.last; ++column) {
    const WfdbSignal& signal = header.signals[column];
    std::uint32_t sum = 0;
    auto value = static_cast<std::uint32_t>(signal.first.value_or(signal.zero));
    for (std::size_t t = 0; t < out.size() / width; ++t) {
      const std::int32_t stored = samples.at(t * group.width() + column - group.first);
      value = static_cast<std::uint32_t>(stored) + (differences ? value : 0U);
      sum += value;
      out[t * width + column] =
          !differences && stored == missing ? kWfdbMissing : static_cast<std::int32_t>(value);
      if (t == 0 && !differences) check_first(signal, stored, name);
    }
    check_sum(signal, sum, name);
  }
}

/// Appends the record in physical units.
void add_physical(const WfdbHeader& header, std::span<const std::int32_t> stored,
                  const AudioOptions& options, const std::string& name, ChannelMixer& mixer) {
  const std::size_t width = header.signals.size();
  std::vector<float> values(stored.size());
  for (std::size_t i = 0; i < stored.size(); ++i) {
    const std::size_t column = i % width;
    const WfdbSignal& signal = header.signals[column];
    const bool wanted = options.channel < 0 || options.channel == static_cast<int>(column);
    if (stored[i] == kWfdbMissing && wanted)
      throw DataError(
          fmt::format("{}:{}: sample {} of {} is marked as missing; expected whole signals", name,
                      signal.line, i / width, shown(signal.description)));
    values[i] = stored[i] == kWfdbMissing
                    ? 0
                    : static_cast<float>((stored[i] - signal.baseline) / signal.gain);
  }
  mixer.add(values);
}

void add_record(const WfdbHeader& header, const std::string& name, const WfdbFiles& files,
                const AudioOptions& options, ChannelMixer& mixer) {
  add_physical(header, wfdb_samples(header, name, files), options, name, mixer);
}

/// A part of a record, which has to be as the first one is.
WfdbHeader part_of(const WfdbHeader& whole, const WfdbPart& part, const WfdbHeader* first,
                   const std::string& name, const WfdbFiles& files) {
  const std::string file = part.name + ".hea";
  const WfdbHeader header = parse_wfdb_header(named_file(file, name, part.line, files), file);
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

std::vector<std::int32_t> wfdb_samples(const WfdbHeader& header, std::string_view name,
                                       const WfdbFiles& files) {
  const std::vector<Group> groups = groups_of(header, name);
  std::vector<std::string> contents;
  for (const Group& group : groups) contents.push_back(content_of(header, group, name, files));
  std::vector<std::int32_t> out(length_of(header, groups, contents, name) * header.signals.size());
  for (std::size_t i = 0; i < groups.size(); ++i) decode(header, groups[i], contents[i], name, out);
  return out;
}

Audio parse_wfdb(std::string_view text, const std::string& name, const WfdbFiles& files,
                 const AudioOptions& options) {
  const WfdbHeader header = parse_wfdb_header(text, name);
  const auto rate = static_cast<int>(std::lround(header.rate));
  if (rate != header.rate)
    throw DataError(fmt::format(
        "{}: the sampling frequency is {} Hz; expected a whole number; resample the record, as "
        "with WFDB's xform",
        name, header.rate));
  const std::vector<WfdbHeader> parts = parts_of(header, name, files);
  const std::size_t width = (parts.empty() ? header : parts.front()).signals.size();
  Audio audio{rate, static_cast<int>(width), 1, {}, name};
  check_channel(options.channel, audio.channels, name);
  ChannelMixer mixer(audio, options);
  if (parts.empty()) add_record(header, name, files, options, mixer);
  for (std::size_t i = 0; i < parts.size(); ++i)
    add_record(parts[i], header.parts[i].name + ".hea", files, options, mixer);
  return audio;
}

Audio read_wfdb(const std::filesystem::path& path, const std::string& name,
                const AudioOptions& options) {
  const std::filesystem::path folder = path.parent_path();
  return parse_wfdb(
      read_file(path), name, [&](const std::string& file) { return read_file(folder / file); },
      options);
}

}  // namespace segfuse::data
