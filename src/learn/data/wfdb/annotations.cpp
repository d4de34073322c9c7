// Annotations of WFDB records in the MIT format: words of 16 bits, the low byte first, with a code
// in the upper 6 bits and the ticks since the annotation before in the lower 10.

#include <fmt/core.h>

#include "base/text.h"
#include "learn/data/text.h"
#include "learn/data/wfdb/wfdb.h"
#include "segfuse/error.h"

namespace segfuse::data {
namespace {

enum Code {
  kEndWord = 0,
  kNote = 22,
  kSkip = 59,
  kNum = 60,
  kSub = 61,
  kChannel = 62,
  kText = 63,
};
constexpr int kMaxCode = 49;
constexpr std::int64_t kMaxTicks = std::int64_t{1} << 46;

class Words {
 public:
  Words(std::string_view bytes, std::string_view name) : bytes_(bytes), name_(name) {}

  std::size_t at() const { return at_; }
  /// The next word; `what` is what it should be of.
  unsigned next(std::string_view what) {
    if (bytes_.size() - at_ < 2)
      refuse(at_, fmt::format("the file ends, and {} was expected; it was cut off, or holds no "
                              "annotations of WFDB",
                              what));
    const unsigned low = byte(at_);
    const unsigned high = byte(at_ + 1);
    at_ += 2;
    return high << 8 | low;
  }
  std::string_view text(std::size_t size) {
    const std::size_t padded = size + size % 2;
    if (bytes_.size() - at_ < padded)
      refuse(at_,
             fmt::format("the file ends inside a text of {} bytes; it was cut off, or holds no "
                         "annotations of WFDB",
                         size));
    const std::string_view out = bytes_.substr(at_, size);
    at_ += padded;
    return out;
  }
  void check_end() const {
    for (std::size_t i = at_; i < bytes_.size(); ++i)
      if (bytes_[i] != 0)
        refuse(i, "there are bytes after the end of the annotations; expected none");
  }
  [[noreturn]] void refuse(std::size_t byte, const std::string& what) const {
    throw DataError(fmt::format("{}: byte {}: {}", name_, byte, what));
  }

 private:
  unsigned byte(std::size_t i) const { return static_cast<unsigned char>(bytes_[i]); }

  std::string_view bytes_;
  std::string_view name_;
  std::size_t at_ = 0;
};

/// 32 bits with a sign, the upper word first.
std::int64_t skip_of(Words& words) {
  const unsigned high = words.next("the interval of a SKIP");
  const unsigned low = words.next("the interval of a SKIP");
  return static_cast<std::int32_t>(high << 16 | low);
}

std::string text_of(std::string_view bytes) {
  std::string out;
  for (const char c : bytes.substr(0, bytes.find('\0'))) {
    const auto value = static_cast<unsigned char>(c);
    if (value < 0x80)
      out += c;
    else
      append_utf8(out, 0xFFFD);
  }
  return std::string(trim(out));
}

/// Takes what notes at time 0 say about the file itself.
void take_definitions(WfdbAnnotations& out, std::string_view name) {
  constexpr std::string_view kRate = "## time resolution:";
  bool defines = false;
  std::erase_if(out.all, [&](const WfdbAnnotation& a) {
    if (a.code != kNote || a.time != 0) return false;
    if (a.text.starts_with(kRate)) {
      const std::string_view number = trim(std::string_view(a.text).substr(kRate.size()));
      out.rate = parse_double(number);
      if (!out.rate || !(*out.rate > 0 && *out.rate <= 1e9))
        throw DataError(
            fmt::format("{}: byte {}: the time resolution is {}; expected ticks a "
                        "second",
                        name, a.byte, shown(number)));
      return true;
    }
    const bool begins = a.text.starts_with("## annotation type definitions");
    const bool ends = a.text.starts_with("## end of definitions");
    const bool definition = defines && !begins && !ends;
    defines = begins || (defines && !ends);
    if (definition) {
      const std::vector<Field> fields = split_fields(a.text);
      const std::optional<std::int64_t> code =
          fields.size() < 2 ? std::nullopt : parse_int(fields[0].text);
      if (!code || *code < 1 || *code > kMaxCode)
        throw DataError(
            fmt::format("{}: byte {}: {} defines no annotation; expected a code from 1 "
                        "to 49 and its symbol",
                        name, a.byte, shown(a.text)));
      out.symbols[static_cast<int>(*code)] = fields[1].text;
    }
    return begins || ends || definition || a.text.starts_with("## ");
  });
}

}  // namespace

WfdbAnnotations parse_wfdb_annotations(std::string_view bytes, std::string_view name) {
  WfdbAnnotations out;
  Words words(bytes, name);
  std::int64_t time = 0;
  bool before = false;  // an annotation that NUM, SUB, CHN and AUX can belong to
  for (;;) {
    const std::size_t at = words.at();
    const unsigned word = words.next("an annotation or the end mark");
    const int code = static_cast<int>(word >> 10);
    const std::int64_t value = word & 0x3FFU;
    if (word == kEndWord) break;
    if (code > kSkip && !before)
      words.refuse(at, fmt::format("code {}, which belongs to the annotation before it, and there "
                                   "is none",
                                   code));
    if (code > kMaxCode && code < kSkip)
      words.refuse(at, fmt::format("code {}; expected 0 to {}, or those of SKIP, NUM, SUB, CHN and "
                                   "AUX; the file is damaged, or holds no annotations of WFDB",
                                   code, kMaxCode));
    if (code == kSkip) {
      time += skip_of(words);
    } else if (code == kText) {
      out.all.back().text = text_of(words.text(static_cast<std::size_t>(value)));
    } else if (code < kSkip) {
      time += value;
      if (time < 0 || time > kMaxTicks)
        words.refuse(at,
                     fmt::format("an annotation at tick {}; expected 0 to {}", time, kMaxTicks));
      if (!out.all.empty() && time < out.all.back().time)
        words.refuse(at, fmt::format("an annotation at tick {}, before the one above it at {}",
                                     time, out.all.back().time));
      out.all.push_back({time, code, "", at});
      before = true;
    }
  }
  words.check_end();
  take_definitions(out, name);
  return out;
}

std::string wfdb_symbol(int code, const std::map<int, std::string>& own) {
  constexpr std::string_view kSymbols[] = {" ",  "N", "L", "R", "a", "V", "F", "J", "A", "S", "E",
                                           "j",  "/", "Q", "~", "",  "|", "",  "s", "T", "*", "D",
                                           "\"", "=", "p", "B", "^", "t", "+", "u", "?", "!", "[",
                                           "]",  "e", "n", "@", "x", "f", "(", ")", "r"};
  if (const auto found = own.find(code); found != own.end()) return found->second;
  const auto index = static_cast<std::size_t>(code);
  if (index < std::size(kSymbols) && !kSymbols[index].empty()) return std::string(kSymbols[index]);
  return fmt::format("[{}]", code);
}

}  // namespace segfuse::data
