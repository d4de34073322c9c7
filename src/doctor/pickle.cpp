#include "doctor/pickle.h"

#include <fmt/core.h>

#include <algorithm>
#include <bit>
#include <cstdint>
#include <map>
#include <unordered_map>
#include <vector>

#include "doctor/elf.h"
#include "segfuse/error.h"

namespace segfuse::doctor {

namespace {

constexpr std::size_t kMaxValues = std::size_t{1} << 26;
constexpr int kDeepest = 64;
constexpr std::size_t kMaxKeys = 4096;
constexpr const char* kReads =
    "dicts, lists, tuples, strings, numbers, None and bool are read, nothing else; convert a "
    "snapshot of PyTorch that you trust as docs/memory.md says";

/// Of instructions that are refused.
const std::map<unsigned char, const char*> kNames = {{'c', "GLOBAL"},
                                                     {0x93, "STACK_GLOBAL"},
                                                     {'R', "REDUCE"},
                                                     {'b', "BUILD"},
                                                     {'i', "INST"},
                                                     {'o', "OBJ"},
                                                     {0x81, "NEWOBJ"},
                                                     {0x92, "NEWOBJ_EX"},
                                                     {'P', "PERSID"},
                                                     {'Q', "BINPERSID"},
                                                     {0x82, "EXT1"},
                                                     {0x83, "EXT2"},
                                                     {0x84, "EXT4"},
                                                     {'B', "BINBYTES"},
                                                     {'C', "SHORT_BINBYTES"},
                                                     {0x8e, "BINBYTES8"},
                                                     {0x96, "BYTEARRAY8"},
                                                     {0x97, "NEXT_BUFFER"},
                                                     {0x98, "READONLY_BUFFER"},
                                                     {0x8f, "EMPTY_SET"},
                                                     {0x90, "ADDITEMS"},
                                                     {0x91, "FROZENSET"},
                                                     {'T', "BINSTRING"},
                                                     {'U', "SHORT_BINSTRING"},
                                                     {'S', "STRING"},
                                                     {'V', "UNICODE"},
                                                     {'I', "INT"},
                                                     {'L', "LONG"},
                                                     {'F', "FLOAT"},
                                                     {'d', "DICT"},
                                                     {'l', "LIST"},
                                                     {'g', "GET"},
                                                     {'p', "PUT"}};

/// Numbers, as its index says, of other values.
using Id = std::uint32_t;

struct Value {
  enum class Kind { kNone, kBool, kInteger, kNatural, kReal, kText, kList, kDict, kMark };
  Kind kind = Kind::kNone;
  std::uint64_t bits = 0;
  std::string_view text = {};
  std::vector<Id> items = {};  ///< of a dict key, value, key, value
};
using Kind = Value::Kind;

class Reader {
 public:
  Reader(std::string_view bytes, const std::string& file) : bytes_(bytes), file_(file) {}

  Json read() {
    while (step()) {
    }
    if (stack_.empty()) refuse("a pickle that ends without a value");
    counts_.resize(values_.size());
    depths_.resize(values_.size());
    if (count_of(stack_.back(), 0) > kMaxValues)
      refuse(fmt::format("more than {} values, of which many are the same", kMaxValues));
    return json_of(stack_.back());
  }

 private:
  [[noreturn]] void refuse(const std::string& what) const {
    throw DataError(fmt::format("{}: byte {}: found {}; of a pickle {}", file_, at_, what, kReads));
  }
  std::string_view take(std::uint64_t count) {
    if (count > bytes_.size() - next_) refuse("a pickle that is cut short");
    const std::string_view taken = bytes_.substr(next_, count);
    next_ += count;
    return taken;
  }
  std::uint64_t number(std::size_t count) { return little_endian(take(count), 0, count); }

  void push(Value value) {
    stack_.push_back(static_cast<Id>(values_.size()));
    values_.push_back(std::move(value));
  }
  void push_signed(std::int64_t value) {
    push({value < 0 ? Kind::kInteger : Kind::kNatural, std::bit_cast<std::uint64_t>(value)});
  }
  Id pop() {
    if (stack_.empty() || values_[stack_.back()].kind == Kind::kMark)
      refuse("a value that is used and not there");
    const Id id = stack_.back();
    stack_.pop_back();
    return id;
  }
  /// All above the last mark, which goes with them.
  std::vector<Id> pop_to_mark() {
    std::size_t begin = stack_.size();
    while (begin > 0 && values_[stack_[begin - 1]].kind != Kind::kMark) --begin;
    if (begin == 0) refuse("the end of a group that never began");
    std::vector<Id> items(stack_.begin() + static_cast<std::ptrdiff_t>(begin), stack_.end());
    stack_.resize(begin - 1);
    return items;
  }
  void add(Kind kind, const std::vector<Id>& items) {
    if (stack_.empty() || values_[stack_.back()].kind != kind)
      refuse("items that are added to something else than a list or a dict");
    if (kind == Kind::kDict && items.size() % 2 != 0) refuse("a key without a value");
    std::vector<Id>& into = values_[stack_.back()].items;
    into.insert(into.end(), items.begin(), items.end());
  }
  void push_tuple(std::size_t count) {
    std::vector<Id> items(count);
    for (std::size_t i = count; i-- > 0;) items[i] = pop();
    push({.kind = Kind::kList, .items = std::move(items)});
  }
  void push_long(std::uint64_t count) {
    const std::string_view digits = take(count);
    if (count > 9 || (count == 9 && digits[8] != '\0')) refuse("a number of more than 64 bits");
    std::uint64_t value = little_endian(digits, 0, 8);
    const bool negative = count > 0 && count < 9 && (digits.back() & 0x80) != 0;
    if (negative && count < 8) value |= ~std::uint64_t{0} << (8 * count);
    push({negative ? Kind::kInteger : Kind::kNatural, value});
  }
  void remember(std::uint64_t key) {
    if (stack_.empty()) refuse("a name for a value that is not there");
    memo_[key] = stack_.back();
  }
  void recall(std::uint64_t key) {
    const auto found = memo_.find(key);
    if (found == memo_.end()) refuse("a name that no value has");
    stack_.push_back(found->second);
  }

  /// False at the end.
  bool step() {
    at_ = next_;
    const auto code = static_cast<unsigned char>(take(1)[0]);
    switch (code) {
      case '.': return false;
      case 0x80:
        if (number(1) > 5) refuse("a protocol after 5");
        return true;
      case 0x95: take(8); return true;  // a frame: how much to read at once
      case 'N': push({Kind::kNone}); return true;
      case 0x88: push({Kind::kBool, 1}); return true;
      case 0x89: push({Kind::kBool, 0}); return true;
      case 'J': push_signed(static_cast<std::int32_t>(number(4))); return true;
      case 'K': push({Kind::kNatural, number(1)}); return true;
      case 'M': push({Kind::kNatural, number(2)}); return true;
      case 0x8a: push_long(number(1)); return true;
      case 0x8b: push_long(number(4)); return true;
      case 'G': push_real(); return true;
      case 0x8c: push({Kind::kText, 0, take(number(1))}); return true;
      case 'X': push({Kind::kText, 0, take(number(4))}); return true;
      case 0x8d: push({Kind::kText, 0, take(number(8))}); return true;
      default: return step_of_groups(code);
    }
  }
  bool step_of_groups(unsigned char code) {
    switch (code) {
      case '(': push({Kind::kMark}); return true;
      case ']':
      case ')': push({Kind::kList}); return true;
      case '}': push({Kind::kDict}); return true;
      case 't': push({.kind = Kind::kList, .items = pop_to_mark()}); return true;
      case 0x85:
      case 0x86:
      case 0x87: push_tuple(code - 0x84U); return true;
      case 'a': {
        const Id item = pop();
        add(Kind::kList, {item});
        return true;
      }
      case 'e': add(Kind::kList, pop_to_mark()); return true;
      case 's': {
        const Id value = pop();
        const Id key = pop();
        add(Kind::kDict, {key, value});
        return true;
      }
      case 'u': add(Kind::kDict, pop_to_mark()); return true;
      case '0': pop(); return true;
      case '1': pop_to_mark(); return true;
      case 0x94: remember(memo_.size()); return true;
      case 'q': remember(number(1)); return true;
      case 'r': remember(number(4)); return true;
      case 'h': recall(number(1)); return true;
      case 'j': recall(number(4)); return true;
      default: break;
    }
    const auto name = kNames.find(code);
    refuse(name == kNames.end() ? fmt::format("instruction {:#04x}", code)
                                : std::string(name->second) + asked_for(code));
  }
  /// What a class or function is called that the pickle asks for.
  std::string asked_for(unsigned char code) const {
    std::string name;
    if (code == 0x93 && stack_.size() >= 2) {
      name = fmt::format("{}.{}", values_[stack_[stack_.size() - 2]].text,
                         values_[stack_.back()].text);
    } else if (code == 'c') {
      const std::size_t first = bytes_.find('\n', next_);
      const std::size_t second =
          first == std::string_view::npos ? first : bytes_.find('\n', first + 1);
      if (second != std::string_view::npos)
        name = fmt::format("{}.{}", bytes_.substr(next_, first - next_),
                           bytes_.substr(first + 1, second - first - 1));
    }
    for (char& c : name)
      if (c < ' ' || c > '~') c = '?';
    return name.empty() ? "" : fmt::format(" of '{}'", name.substr(0, 80));
  }
  void push_real() {
    std::uint64_t bits = 0;
    for (const char c : take(8)) bits = bits << 8 | static_cast<unsigned char>(c);
    push({Kind::kReal, bits});
  }

  /// How many values it is when those that are shared are written out.
  std::uint64_t count_of(Id id, int depth) {
    if (depth > kDeepest) refuse(fmt::format("values within values, more than {} deep", kDeepest));
    // A list that was counted before is deeper here, perhaps.
    if (counts_[id] != 0 && depth <= depths_[id]) return counts_[id];
    std::uint64_t count = 1;
    for (const Id item : values_[id].items)
      count = std::min<std::uint64_t>(count + count_of(item, depth + 1), kMaxValues + 1);
    counts_[id] = count;
    depths_[id] = depth;
    return count;
  }
  Json json_of(Id id) {
    const Value& value = values_[id];
    switch (value.kind) {
      case Kind::kNone:
      case Kind::kMark: return nullptr;
      case Kind::kBool: return value.bits != 0;
      case Kind::kInteger: return std::bit_cast<std::int64_t>(value.bits);
      case Kind::kNatural: return value.bits;
      case Kind::kReal: return std::bit_cast<double>(value.bits);
      case Kind::kText: return std::string(value.text);
      case Kind::kList: {
        Json list = Json::array();
        for (const Id item : value.items) list.push_back(json_of(item));
        return list;
      }
      case Kind::kDict: break;
    }
    // Keys are looked for one by one.
    if (value.items.size() / 2 > kMaxKeys)
      refuse(fmt::format("a dict with more than {} keys", kMaxKeys));
    Json dict = Json::object();
    for (std::size_t i = 0; i + 1 < value.items.size(); i += 2)
      dict[key_of(values_[value.items[i]])] = json_of(value.items[i + 1]);
    return dict;
  }
  std::string key_of(const Value& key) const {
    if (key.kind == Kind::kText) return std::string(key.text);
    if (key.kind == Kind::kNatural) return std::to_string(key.bits);
    if (key.kind == Kind::kInteger) return std::to_string(std::bit_cast<std::int64_t>(key.bits));
    refuse("a key of a dict that is neither a string nor a whole number");
  }

  std::string_view bytes_;
  const std::string& file_;
  std::size_t at_ = 0;    ///< of the instruction that is carried out
  std::size_t next_ = 0;  ///< byte
  std::vector<Value> values_;
  std::vector<Id> stack_;
  std::unordered_map<std::uint64_t, Id> memo_;
  std::vector<std::uint64_t> counts_;  ///< 0: not counted yet
  std::vector<int> depths_;            ///< at which it was counted
};

}  // namespace

bool is_pickle(std::string_view bytes) {
  return bytes.size() > 2 && bytes[0] == '\x80' && bytes[1] >= 2 && bytes[1] <= 5;
}

Json read_pickle(std::string_view bytes, const std::string& file) {
  return Reader(bytes, file).read();
}

}  // namespace segfuse::doctor
