#include "learn/train/decode/orders.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "base/context/pool.h"
#include "base/os/file.h"
#include "base/sizes.h"
#include "base/text.h"
#include "learn/data/text.h"
#include "learn/train/decode/decoder_state.h"
#include "segfuse/error.h"

namespace segfuse::learn {
namespace {

namespace fs = std::filesystem;
using semicrf::LabelOrders;

constexpr std::string_view kEndings[] = {".txt", ".lab"};
constexpr std::size_t kMaxEdges = std::size_t{1} << 22;
constexpr int kDeepest = 64;

/// Nodes that a part of an order may begin and end with.
struct Part {
  std::vector<std::int32_t> first, last;
  bool may_be_empty = true;
};

/// Nodes and edges; numbers rise along the text, so edges do as well.
class Graph {
 public:
  explicit Graph(std::string source) : source_(std::move(source)) {}

  Part node(std::int32_t label) {
    const auto number = static_cast<std::int32_t>(orders_.nodes.size());
    orders_.nodes.push_back({label, false, false, {}});
    return {{number}, {number}, false};
  }
  Part then(Part a, const Part& b) {
    edges_ += a.last.size() * b.first.size();
    if (edges_ > kMaxEdges)
      throw DataError(fmt::format(
          "{}: more than {} transitions between labels; use fewer optional labels in sequence",
          source_, kMaxEdges));
    for (const std::int32_t from : a.last) {
      std::vector<std::int32_t>& next = orders_.nodes[static_cast<std::size_t>(from)].next;
      next.insert(next.end(), b.first.begin(), b.first.end());
    }
    if (a.may_be_empty) a.first.insert(a.first.end(), b.first.begin(), b.first.end());
    if (!b.may_be_empty) a.last.clear();
    a.last.insert(a.last.end(), b.last.begin(), b.last.end());
    a.may_be_empty = a.may_be_empty && b.may_be_empty;
    return a;
  }
  static Part either(Part a, const Part& b) {
    a.first.insert(a.first.end(), b.first.begin(), b.first.end());
    a.last.insert(a.last.end(), b.last.begin(), b.last.end());
    a.may_be_empty = a.may_be_empty || b.may_be_empty;
    return a;
  }
  LabelOrders finish(const Part& all) {
    for (const std::int32_t n : all.first) orders_.nodes[static_cast<std::size_t>(n)].first = true;
    for (const std::int32_t n : all.last) orders_.nodes[static_cast<std::size_t>(n)].last = true;
    try {
      return semicrf::one_path_each(orders_);
    } catch (const UsageError& error) {
      throw DataError(fmt::format("{}: {}", source_, error.what()));
    }
  }

 private:
  std::string source_;
  LabelOrders orders_;
  std::size_t edges_ = 0;
};

/// A label, or one of "{", "|", "}", "?".
struct Token {
  std::string_view text;
  std::optional<std::int32_t> label;
  std::size_t line = 0;
  std::size_t column = 0;
  bool is(std::string_view mark) const { return !label && text == mark; }
};

class Reader {
 public:
  Reader(std::string_view text, const std::string& source, const Alphabet& labels)
      : source_(source), labels_(labels) {
    std::size_t line = 0;
    for (const std::string_view of : split_lines(text)) {
      ++line;
      for (const Field& word : split_fields(of)) cut(word, line);
    }
  }

  LabelOrders read(std::optional<std::int32_t> between) {
    if (tokens_.empty())
      throw DataError(fmt::format(
          "{}: no labels; expected the labels of the recording in their order", source_));
    Part all;
    bool after_pause = false;
    while (at_ < tokens_.size()) {
      const bool is_pause = between && tokens_[at_].label == between;
      if (between && !is_pause && !after_pause)
        all = graph_.then(std::move(all), optional(graph_.node(*between)));
      all = graph_.then(std::move(all), item(0));
      after_pause = is_pause;
    }
    if (between && !after_pause) all = graph_.then(std::move(all), optional(graph_.node(*between)));
    return graph_.finish(all);
  }

 private:
  static Part optional(Part part) {
    part.may_be_empty = true;
    return part;
  }

  void cut(const Field& word, std::size_t line) {
    if (add_label(word.text, line, word.column)) return;
    std::size_t begin = 0;
    const auto add_until = [&](std::size_t end) {
      std::string_view text = word.text.substr(begin, end - begin);
      const std::size_t column = word.column + begin;
      if (text.empty() || add_label(text, line, column)) return;
      const bool mark = text.ends_with('?');
      if (mark) text.remove_suffix(1);
      if (!text.empty() && !add_label(text, line, column))
        throw DataError(fmt::format("{}:{}:{}: the model has no label {}; {}", source_, line,
                                    column, data::shown(text), suggestion(text, labels_.labels())));
      if (mark) tokens_.push_back({"?", {}, line, column + text.size()});
    };
    for (std::size_t i = 0; i < word.text.size(); ++i) {
      if (std::string_view("{|}").find(word.text[i]) == std::string_view::npos) continue;
      add_until(i);
      tokens_.push_back({word.text.substr(i, 1), {}, line, word.column + i});
      if (word.text.substr(i, 2) == "}?") tokens_.push_back({"?", {}, line, word.column + ++i});
      begin = i + 1;
    }
    add_until(word.text.size());
  }
  bool add_label(std::string_view text, std::size_t line, std::size_t column) {
    const auto label = labels_.find(text);
    if (label) tokens_.push_back({text, label, line, column});
    return label.has_value();
  }

  [[noreturn]] void fail(const Token& token, const std::string& expected) const {
    throw DataError(fmt::format("{}:{}:{}: found '{}', expected {}", source_, token.line,
                                token.column, token.text, expected));
  }
  Part item(int depth) {
    const Token token = tokens_[at_++];
    Part part;
    if (token.label)
      part = graph_.node(*token.label);
    else if (token.is("{"))
      part = variants(token, depth);
    else
      fail(token, "a label or '{'");
    if (at_ < tokens_.size() && tokens_[at_].is("?")) {
      ++at_;
      part = optional(std::move(part));
    }
    return part;
  }
  Part variants(const Token& open, int depth) {
    if (depth >= kDeepest) fail(open, fmt::format("braces nested at most {} deep", kDeepest));
    std::optional<Part> all;
    for (Part one;;) {
      if (at_ >= tokens_.size()) fail(open, "a '}' behind it");
      const Token& token = tokens_[at_];
      if (!token.is("|") && !token.is("}")) {
        one = graph_.then(std::move(one), item(depth + 1));
        continue;
      }
      ++at_;
      all = all ? Graph::either(std::move(*all), one) : one;
      one = {};
      if (token.is("}")) return std::move(*all);
    }
  }

  const std::string& source_;
  const Alphabet& labels_;
  std::vector<Token> tokens_;
  std::size_t at_ = 0;
  Graph graph_{source_};
};

}  // namespace

std::vector<fs::path> order_places(const fs::path& recording, const fs::path& folder) {
  std::vector<fs::path> places;
  for (const std::string_view ending : kEndings)
    for (const std::string& spelt : {std::string(ending), data::upper(ending)}) {
      fs::path path = folder.empty() ? recording.parent_path() : folder;
      path /= recording.stem().string() + spelt;
      if (path != recording) places.push_back(std::move(path));
    }
  return places;
}

fs::path order_file(const fs::path& recording, const fs::path& folder) {
  std::vector<fs::path> found = order_places(recording, folder);
  std::erase_if(found, [](const fs::path& path) { return !path_exists(path); });
  const std::string name = recording.stem().string();
  if (found.empty())
    throw DataError(fmt::format("{}: there is no order of its labels; expected {}.txt or {}.lab {}",
                                recording.string(), name, name,
                                folder.empty() ? "beside it" : "in " + folder.string()));
  if (found.size() > 1)
    throw DataError(fmt::format("{}: both {} and {} give an order of its labels; keep one of them",
                                recording.string(), found[0].string(), found[1].string()));
  return found[0];
}

LabelOrders parse_orders(std::string_view text, const std::string& source, const Alphabet& labels,
                         std::optional<std::int32_t> between) {
  const std::string decoded = data::to_utf8(text, source);
  return Reader(decoded, source, labels).read(between);
}

std::int32_t optional_label(const std::string& name, const Alphabet& labels) {
  if (const auto label = labels.find(name)) return *label;
  throw UsageError(fmt::format("the model has no label '{}' that could be optional; {}", name,
                               suggestion(name, labels.labels())));
}

SegmentRules segment_rules(const TrainedModel& model) {
  const ModelConfig& config = model.config.model;
  const auto classes = static_cast<std::size_t>(config.classes);
  SegmentRules rules{std::vector<std::int64_t>(classes, 1), std::vector<std::int64_t>(classes, 1),
                     std::vector<semicrf::PieceRule>(classes, semicrf::PieceRule::kAny)};
  if (config.head != HeadKind::kSemiMarkov) return rules;
  rules.longest = limits_of(model.duration_limit);
  const auto limit = model.duration_limit.span<float>();
  for (std::size_t c = 0; c < classes; ++c) {
    std::size_t d = 0;
    while (d + 1 < static_cast<std::size_t>(config.max_duration) && limit[d * classes + c] != 0)
      ++d;
    rules.shortest[c] = static_cast<std::int64_t>(d) + 1;
    const std::string& name = model.labels.label(static_cast<std::int64_t>(c));
    const OrderLimit& order = model.order_limit;
    const bool limited = model.config.grammar.longest.contains(name) ||
                         (!order.empty() && order.transition.span<float>()[c * classes + c] != 0);
    const bool any = !config.joins_neighbours.empty() && config.joins_neighbours[c];
    rules.pieces[c] = limited ? semicrf::PieceRule::kOne
                      : any   ? semicrf::PieceRule::kAny
                              : semicrf::PieceRule::kAfterFull;
  }
  return rules;
}

void check_frames(const LabelOrders& orders, const SegmentRules& rules, std::int64_t frames,
                  double hop_seconds, const std::string& source) {
  const semicrf::FrameRange range =
      semicrf::frames_of(orders, rules.shortest, rules.longest, rules.pieces);
  const auto seconds = [&](std::int64_t n) { return static_cast<double>(n) * hop_seconds; };
  const auto fail = [&](const char* bound, std::int64_t n, const char* question) {
    throw DataError(fmt::format(
        "{}: its labels take at {} {} frames ({:.4g} s), and the recording has {} ({:.4g} s); {}",
        source, bound, n, seconds(n), frames, seconds(frames), question));
  };
  if (range.fewest > frames)
    fail("least", range.fewest, "check that the order belongs to this recording");
  if (range.most >= 0 && range.most < frames)
    fail("most", range.most,
         "the order must name all labels of the recording, or pass --optional LABEL");
}

std::vector<Decoded> Decoder::align(const std::vector<Sequence>& sequences,
                                    const std::vector<semicrf::LabelOrders>& orders,
                                    const std::vector<semicrf::PieceRule>& pieces,
                                    std::int64_t batch_frames) {
  semicrf::AlignOptions options;
  options.pieces = pieces;
  std::vector<Decoded> results(sequences.size());
  // No more than the threads need at a time: small batches stay in the caches. Lengths are rounded
  // up, so that there are not many plans. A row has the same bits in every batch where the encoder
  // takes no product over the rows of a batch or over all frames.
  constexpr std::int64_t kFramesOfThread = 1024;
  constexpr std::int64_t kRound = 96;
  const ModelConfig& config = state_->config;
  const bool is_local = config.attention_blocks == 0 && config.recurrent_blocks == 0 &&
                        !config.given && !state_->accelerator;
  if (is_local)
    batch_frames = std::min(batch_frames, kFramesOfThread * pool_of(state_->context).size());
  const std::int64_t round = is_local ? kRound : 1;
  state_->for_batches(sequences, batch_frames, round, {}, [&](const Batch& batch) {
    const std::vector<Tensor> scores = state_->scores(sequences, batch);
    std::vector<semicrf::LabelOrders> of_rows;
    for (const std::int64_t row : batch.rows) of_rows.push_back(orders[at(row)]);
    const std::vector<semicrf::Alignment> found =
        semicrf::align(state_->context, state_->potentials(scores, batch),
                       std::span<const semicrf::LabelOrders>(of_rows), options);
    for (std::size_t i = 0; i < found.size(); ++i) {
      const semicrf::Alignment& alignment = found[i];
      if (alignment.status != semicrf::RowStatus::kOk)
        throw DataError(
            "the model's durations and grammar allow no segmentation with labels in this order");
      Decoded& result = results[at(batch.rows[i])];
      result.log_probability = alignment.score - alignment.log_partition;
      for (const semicrf::AlignedSegment& s : alignment.segments)
        result.segments.push_back({{s.start, s.duration, s.label},
                                   s.posterior,
                                   s.label_posterior,
                                   std::numeric_limits<double>::quiet_NaN()});
    }
  });
  return results;
}

}  // namespace segfuse::learn
