#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <span>
#include <sstream>

#include "base/console/markup.h"
#include "runtime/check/finding.h"

namespace segfuse::runtime {
namespace {

constexpr int kLeft = 110;  // where lanes begin
constexpr int kTop = 24;
constexpr int kLane = 64;
constexpr int kBoxHeight = 32;
constexpr int kBoxWidth = 104;
constexpr int kWaitWidth = 18;
constexpr int kGap = 12;
constexpr int kRoom = 40;  // for the missing arrow
constexpr std::size_t kNameLetters = 15;
constexpr std::size_t kLineLetters = 110;

std::string shortened(const std::string& name) {
  return name.size() <= kNameLetters ? name : name.substr(0, kNameLetters - 1) + "…";
}

bool is_use(const Operation& operation, const Finding::Use& use) {
  return operation.kind == Operation::Kind::kWork && operation.stream == use.stream &&
         operation.operation == use.operation;
}

Operation operation_of(const Finding::Use& use) {
  return {Operation::Kind::kWork, use.stream, use.operation, use.work, 0, 0};
}

/// The last `most` entries up to the later use, and the two uses in any case; records are left out.
std::vector<Operation> window(const Finding& finding, std::size_t most) {
  std::vector<Operation> shown;
  for (const Operation& operation : finding.history) {
    if (is_use(operation, finding.later)) break;
    if (operation.kind != Operation::Kind::kRecord) shown.push_back(operation);
  }
  const auto from_end = [&](std::size_t count) {
    return shown.end() - static_cast<std::ptrdiff_t>(std::min(count, shown.size()));
  };
  const auto earlier = std::find_if(from_end(most), shown.end(), [&](const Operation& operation) {
    return is_use(operation, finding.earlier);
  });
  const bool found = earlier != shown.end();
  shown.erase(shown.begin(), from_end(most));
  if (!found) shown.insert(shown.begin(), operation_of(finding.earlier));
  shown.push_back(operation_of(finding.later));
  return shown;
}

class Picture {
 public:
  Picture(const Finding& finding, std::size_t most) : finding_(finding) {
    shown_ = window(finding, most);
    for (const Operation& operation : shown_) {
      lanes_[operation.stream] = 0;
      if (operation.kind == Operation::Kind::kWait) lanes_[operation.from_stream] = 0;
    }
    int lane = 0;
    for (auto& [stream, y] : lanes_) y = kTop + kLane * lane++ + kLane / 2;
  }

  std::string svg() {
    draw_operations();
    draw_missing();
    const int bottom = kTop + kLane * static_cast<int>(lanes_.size());
    int height = bottom;
    const std::string words = text_below(&height);
    const int width = std::max(x_ + kGap, kLeft + 680);
    std::string lines;
    for (const auto& [stream, y] : lanes_)
      lines += fmt::format(
          "<text x=\"12\" y=\"{}\">{}</text>\n"
          "<line x1=\"{}\" y1=\"{}\" x2=\"{}\" y2=\"{}\" stroke=\"#bbb\"/>\n",
          y + 5, stream == 0 ? "host" : fmt::format("stream {}", stream), kLeft - 12, y,
          width - kGap, y);
    return fmt::format(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0}\" height=\"{1}\" "
        "viewBox=\"0 0 {0} {1}\" font-family=\"sans-serif\" font-size=\"13\">\n"
        "<defs>{2}{3}</defs>\n<rect width=\"{0}\" height=\"{1}\" "
        "fill=\"#fff\"/>\n{4}{5}{6}</svg>\n",
        width, height, arrow_head("order", "#456"), arrow_head("missing", "#c22"), lines, body_,
        words);
  }

 private:
  static std::string arrow_head(const char* id, const char* colour) {
    return fmt::format(
        "<marker id=\"{}\" viewBox=\"0 0 8 8\" refX=\"7\" refY=\"4\" markerWidth=\"8\" "
        "markerHeight=\"8\" orient=\"auto\"><path d=\"M0 0L8 4L0 8z\" fill=\"{}\"/></marker>",
        id, colour);
  }

  void draw_operations() {
    for (const Operation& operation : shown_) {
      if (operation.kind == Operation::Kind::kWait) {
        draw_wait(operation);
        continue;
      }
      const bool racing = is_use(operation, finding_.earlier) || is_use(operation, finding_.later);
      const int y = lanes_[operation.stream];
      if (is_use(operation, finding_.later)) x_ += kRoom;
      body_ += fmt::format(
          "<rect x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\" rx=\"4\" fill=\"{}\" "
          "stroke=\"{}\"/>\n<text x=\"{}\" y=\"{}\" text-anchor=\"middle\">{}</text>\n",
          x_, y - kBoxHeight / 2, kBoxWidth, kBoxHeight, racing ? "#fbb" : "#e4ecf4",
          racing ? "#c22" : "#9ab", x_ + kBoxWidth / 2, y + 5,
          escape_markup(shortened(operation.name)));
      ends_[{operation.stream, operation.operation}] = x_ + kBoxWidth;
      x_ += kBoxWidth + kGap;
    }
  }

  /// From where the record was: the end of the last operation shown before it.
  void draw_wait(const Operation& wait) {
    auto source = ends_.upper_bound({wait.from_stream, wait.from_operation});
    const bool shown =
        source != ends_.begin() && std::prev(source)->first.first == wait.from_stream;
    const int from = shown ? std::prev(source)->second : kLeft - 12;
    const int below = lanes_[wait.stream] > lanes_[wait.from_stream] ? 1 : -1;
    body_ += fmt::format(
        "<path d=\"M{} {}L{} {}\" fill=\"none\" stroke=\"#456\" marker-end=\"url(#order)\"/>\n",
        from, lanes_[wait.from_stream], x_ + kWaitWidth / 2,
        lanes_[wait.stream] - (wait.stream == wait.from_stream ? 0 : below));
    x_ += kWaitWidth + kGap;
  }

  void draw_missing() {
    const int from = lanes_[finding_.earlier.stream];
    const int to = lanes_[finding_.later.stream];
    const int last = ends_[{finding_.later.stream, finding_.later.operation}] - kBoxWidth;
    body_ += fmt::format(
        "<path d=\"M{} {}L{} {}\" fill=\"none\" stroke=\"#c22\" stroke-width=\"2\" "
        "stroke-dasharray=\"6 4\" marker-end=\"url(#missing)\"/>\n",
        ends_[{finding_.earlier.stream, finding_.earlier.operation}], from, last, to);
  }

  std::string text_below(int* height) const {
    std::istringstream words(finding_.describe());
    std::string line, lines, word;
    const auto flush = [&] {
      lines +=
          fmt::format("<text x=\"12\" y=\"{}\">{}</text>\n", *height + 14, escape_markup(line));
      *height += 20;
      line.clear();
    };
    while (words >> word) {
      if (!line.empty() && line.size() + word.size() >= kLineLetters) flush();
      line += (line.empty() ? "" : " ") + word;
    }
    flush();
    *height += 8;
    return lines;
  }

  const Finding& finding_;
  std::vector<Operation> shown_;
  std::map<int, int> lanes_;                           ///< of streams: y
  std::map<std::pair<int, std::uint64_t>, int> ends_;  ///< of operations: x
  int x_ = kLeft;
  std::string body_;
};

}  // namespace

std::string race_picture(const Finding& finding, std::size_t most) {
  return Picture(finding, most).svg();
}

}  // namespace segfuse::runtime
