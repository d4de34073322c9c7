#include "doctor/fork/read/pins.h"

#include <algorithm>
#include <charconv>

#include "base/text.h"

namespace segfuse::doctor {

namespace {

template <class Number>
bool take_number(std::string_view& text, Number& value, int base) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value, base);
  if (error != std::errc{}) return false;
  text.remove_prefix(static_cast<std::size_t>(end - text.data()));
  return true;
}

/// "    0: 0x7f0000000000/4096"
bool read_buffer(std::string_view line, Pin& pin) {
  std::uint64_t index = 0;
  std::uint64_t bytes = 0;
  line = trim(line);
  if (!take_number(line, index, 10) || !line.starts_with(": 0x")) return false;
  line.remove_prefix(4);
  if (!take_number(line, pin.begin, 16) || !line.starts_with("/")) return false;
  line.remove_prefix(1);
  if (!take_number(line, bytes, 10) || bytes == 0 || pin.begin + bytes < pin.begin) return false;
  pin.end = pin.begin + bytes;
  return true;
}

}  // namespace

std::vector<Pin> parse_registered_buffers(std::string_view text, const std::string& who) {
  std::vector<Pin> pins;
  bool inside = false;
  for (const std::string_view line : split_lines(text)) {
    if (line.starts_with("UserBufs:")) {
      inside = true;
    } else if (inside) {
      Pin pin;
      pin.who = who;
      if (!line.starts_with(" ")) break;
      if (read_buffer(line, pin)) pins.push_back(std::move(pin));
    }
  }
  return pins;
}

std::vector<Pin> find_pins(const Process& process) {
  std::vector<Pin> pins;
  for (const std::string& entry : process.list("fd")) {
    const std::optional<std::string> target = process.link("fd/" + entry);
    if (!target || target->find("io_uring") == std::string::npos) continue;
    const std::optional<std::string> text = process.try_read("fdinfo/" + entry);
    if (!text) continue;
    for (Pin& pin : parse_registered_buffers(*text, "io_uring, descriptor " + entry))
      pins.push_back(std::move(pin));
  }
  std::sort(pins.begin(), pins.end(), [](const Pin& a, const Pin& b) { return a.begin < b.begin; });
  std::vector<Pin> joined;
  for (Pin& pin : pins) {
    if (!joined.empty() && pin.begin <= joined.back().end) {
      joined.back().end = std::max(joined.back().end, pin.end);
      if (joined.back().who != pin.who) joined.back().who = "several io_urings";
    } else {
      joined.push_back(std::move(pin));
    }
  }
  return joined;
}

}  // namespace segfuse::doctor
