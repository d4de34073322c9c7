#include "comm/meet/wire/message.h"

#include <bit>
#include <cmath>
#include <concepts>
#include <type_traits>
#include <utility>

#include "base/check.h"

namespace segfuse::comm::meet {
namespace {

constexpr std::size_t kRowsAtOnce = 64;

/// T or const T: the order of fields is written down once, for writing and for reading.
template <class Given, class T>
concept Of = std::same_as<std::remove_const_t<Given>, T>;

class Writer {
 public:
  template <class... T>
  void operator()(const T&... values) {
    (write(values), ...);
  }
  std::string take() { return std::move(bytes_); }

 private:
  template <std::integral T>
  void write(T value) {
    const auto bits = static_cast<std::uint64_t>(value);
    for (std::size_t i = 0; i < sizeof(T); ++i) bytes_ += static_cast<char>(bits >> 8 * i & 0xff);
  }
  void write(double value) { write(std::bit_cast<std::uint64_t>(value)); }
  void write(Phase phase) { write(static_cast<std::uint8_t>(phase)); }
  void write(const std::string& text) {
    write(static_cast<std::uint32_t>(text.size()));
    bytes_ += text;
  }
  template <class T>
  void write(const std::vector<T>& list) {
    write(static_cast<std::uint32_t>(list.size()));
    for (const T& item : list) write(item);
  }
  void write(const Values& values) {
    write(static_cast<std::uint32_t>(values.size()));
    for (const auto& [name, value] : values) (*this)(name, value);
  }
  template <class T>
    requires std::is_aggregate_v<T>
  void write(const T& value) {
    fields(*this, value);
  }

  std::string bytes_;
};

class Reader {
 public:
  explicit Reader(std::string_view bytes) : bytes_(bytes) {}
  template <class... T>
  void operator()(T&... values) {
    (read(values), ...);
  }
  void finish() const {
    if (!bytes_.empty()) refuse("bytes behind its end");
  }
  [[noreturn]] static void refuse(std::string_view what) {
    throw DataError("a message of the meeting is malformed: " + std::string(what));
  }

 private:
  std::string_view take(std::size_t count) {
    if (count > bytes_.size()) refuse("it ends early");
    const std::string_view taken = bytes_.substr(0, count);
    bytes_.remove_prefix(count);
    return taken;
  }
  template <std::integral T>
  void read(T& value) {
    std::uint64_t bits = 0;
    const std::string_view taken = take(sizeof(T));
    for (std::size_t i = 0; i < sizeof(T); ++i)
      bits |= std::uint64_t{static_cast<unsigned char>(taken[i])} << 8 * i;
    if constexpr (std::is_same_v<T, bool>)
      if (bits > 1) refuse("neither yes nor no");
    value = static_cast<T>(bits);
  }
  void read(double& value) {
    std::uint64_t bits = 0;
    read(bits);
    value = std::bit_cast<double>(bits);
    if (!std::isfinite(value)) refuse("a number that is not finite");
  }
  void read(Phase& phase) {
    std::uint8_t number = 0;
    read(number);
    if (number >= kPhases) refuse("an unknown phase");
    phase = static_cast<Phase>(number);
  }
  void read(std::string& text) {
    std::uint32_t size = 0;
    read(size);
    text = take(size);
  }
  /// Every item has one byte at least, so a wrong count costs no memory.
  std::uint32_t count() {
    std::uint32_t count = 0;
    read(count);
    if (count > bytes_.size()) refuse("it ends early");
    return count;
  }
  template <class T>
  void read(std::vector<T>& list) {
    const std::uint32_t items = count();
    list.clear();
    for (std::uint32_t i = 0; i < items; ++i) read(list.emplace_back());
  }
  void read(Values& values) {
    std::string name;
    for (std::uint32_t left = count(); left > 0; --left) {
      read(name);
      if (!values.empty() && name <= values.rbegin()->first) refuse("names that are not in order");
      read(values[name]);
    }
  }
  template <class T>
    requires std::is_aggregate_v<T>
  void read(T& value) {
    fields(*this, value);
  }

  std::string_view bytes_;
};

/// What others send is looked at; what is sent has its bound from its sender.
void at_most(const Writer&, const std::string&, std::size_t) {}
void at_most(const Reader&, const std::string& text, std::size_t most) {
  if (text.size() > most) Reader::refuse("a text that is too long");
}

template <class A>
void fields(A& a, Of<State> auto& x) {
  a(x.generation, x.step, x.shard, x.bucket, x.phase, x.seconds, x.free_bytes, x.doing);
  at_most(a, x.doing, kLongestDoing);
}
template <class A>
void fields(A& a, Of<Failure> auto& x) {
  a(x.usage, x.rank, x.sentence, x.said);
}
template <class A>
void fields(A& a, Of<Here> auto& x) {
  a(x.host, x.pid, x.values);
  at_most(a, x.host, kLongestHost);
}
template <class A>
void fields(A& a, Of<Beat> auto& x) {
  a(x.state);
}
template <class A>
void fields(A& a, Of<Text> auto& x) {
  a(x.round, x.text, x.generation);
  at_most(a, x.text, kLongestText);
}
template <class A>
void fields(A& a, Of<Trouble> auto& x) {
  a(x.hint, x.sentence, x.said, x.generation, x.about);
  at_most(a, x.sentence, kLongestText);
}
template <class A>
void fields(A& a, Of<Bye> auto& x) {
  a(x.generation);
}
template <class A>
void fields(A& a, Of<Agreed> auto& x) {
  a(x.host, x.pid, x.late);
  at_most(a, x.host, kLongestHost);
}
template <class A>
void fields(A& a, Of<Knock> auto& /*x*/) {
  a();
}
template <class A>
void fields(A& a, Of<Admit> auto& x) {
  a(x.generation);
}
template <class A>
void fields(A& a, Of<Note> auto& x) {
  a(x.name, x.text);
  at_most(a, x.name, kLongestHost);
  at_most(a, x.text, kLongestText);
}
template <class A>
void fields(A& a, Of<Texts> auto& x) {
  a(x.round, x.first, x.texts, x.generation);
}
template <class A>
void fields(A& a, Of<Changed> auto& x) {
  a(x.generation, x.loss, x.ranks);
}
template <class A>
void fields(A& a, Of<Ended> auto& x) {
  a(x.failure);
}
template <class A>
void fields(A& a, Of<Row> auto& x) {
  a(x.rank, x.host, x.pid, x.state, x.silent, x.here, x.left, x.awaited, x.lost);
}
template <class A>
void fields(A& a, Of<Rows> auto& x) {
  a(x.count, x.failure, x.rows, x.generation);
}

template <std::size_t... I>
Message read_kind(std::size_t kind, Reader& reader, std::index_sequence<I...>) {
  Message message;
  const auto read_one = [&]<std::size_t K>() {
    std::variant_alternative_t<K, Message> value;
    reader(value);
    message = std::move(value);
  };
  ((kind == I ? read_one.template operator()<I>() : void()), ...);
  return message;
}

}  // namespace

std::string encode(const Message& message) {
  Writer writer;
  writer(static_cast<std::uint8_t>(message.index()));
  std::visit([&](const auto& value) { writer(value); }, message);
  std::string bytes = writer.take();
  SEGFUSE_CHECK(bytes.size() <= kLongestMessage, "{} bytes of message {}", bytes.size(),
                message.index());
  return bytes;
}

Message decode(std::string_view bytes) {
  constexpr std::size_t kKinds = std::variant_size_v<Message>;
  Reader reader(bytes);
  std::uint8_t kind = 0;
  reader(kind);
  if (kind >= kKinds) Reader::refuse("of an unknown kind");
  Message message = read_kind(kind, reader, std::make_index_sequence<kKinds>());
  reader.finish();
  return message;
}

std::string encode(const State& state) {
  Writer writer;
  writer(state);
  return writer.take();
}

State decode_state(std::string_view bytes) {
  Reader reader(bytes);
  State state;
  reader(state);
  reader.finish();
  return state;
}

std::vector<Rows> in_pieces(const Rows& rows) {
  std::vector<Rows> pieces;
  for (const Row& row : rows.rows) {
    if (pieces.empty() || pieces.back().rows.size() == kRowsAtOnce)
      pieces.push_back({rows.count, rows.failure.substr(0, kLongestText / 2), {}, rows.generation});
    pieces.back().rows.push_back(row);
  }
  return pieces;
}

}  // namespace segfuse::comm::meet
