#include "engine/compiled/html_parts.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "base/console/markup.h"

namespace segfuse::engine {

using compiler::GroupId;
using compiler::GroupKind;
using compiler::SegmentedFusion;
using compiler::SegmentedGroup;
using ir::ValId;

std::string html_bytes(std::int64_t bytes) {
  static constexpr const char* kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  auto value = static_cast<double>(bytes);
  std::size_t unit = 0;
  for (; value >= 1024 && unit + 1 < std::size(kUnits); ++unit) value /= 1024;
  return unit == 0 ? fmt::format("{} B", bytes)
                   : fmt::format("{:.{}f} {}", value,
                                 value < 10    ? 2
                                 : value < 100 ? 1
                                               : 0,
                                 kUnits[unit]);
}

std::string_view page_style() {
  return R"css(
:root{color-scheme:light dark;--back:#fff;--text:#1d2430;--soft:#5b6577;--line:#d9dee7;
--card:#f6f8fb;
--needed:#2f7dc1;--between:#e0913a;--view:#9aa5b5;--pointwise:#3f9c6b;--norm:#7a5fb8;
--reduce:#2f7dc1;
--library:#6d7686;--move:#b07b2a}
@media(prefers-color-scheme:dark){:root{--back:#12161d;--text:#e4e8ef;--soft:#9aa6b8;
--line:#303947;--card:#1a2029;
--needed:#5ba3e0;--between:#e8a658;--view:#6f7b8d;--pointwise:#58b586;--norm:#a48be0;
--reduce:#5ba3e0;
--library:#8d97a8;--move:#d1a052}}
*{box-sizing:border-box}
body{margin:0 auto;max-width:1080px;padding:1.5rem 1.2rem 4rem;background:var(--back);
color:var(--text);
font:15px/1.5 system-ui,sans-serif}
h1{font-size:1.5rem;margin:0 0 .3rem}h2{font-size:1.15rem;margin:2.2rem 0 .6rem}
p{margin:.4rem 0;max-width:75ch}.soft{color:var(--soft)}
.tiles{display:flex;flex-wrap:wrap;gap:.8rem;margin:1rem 0}
.tile{background:var(--card);border:1px solid var(--line);border-radius:8px;padding:.6rem 1rem;
min-width:9rem}
.tile b{display:block;font-size:1.3rem;font-weight:600}.tile span{color:var(--soft);
font-size:.85rem}
table{border-collapse:collapse;width:100%;font-size:.92rem}
th,td{text-align:left;padding:.25rem .7rem .25rem 0;border-bottom:1px solid var(--line);
vertical-align:top}
td.n,th.n{text-align:right;white-space:nowrap;font-variant-numeric:tabular-nums}
.bar{display:flex;height:.8rem;min-width:8rem;margin-top:.35rem}
.bar i{display:block;height:100%}.needed{background:var(--needed)}
.between{background:var(--between)}
.key i{display:inline-block;width:.8rem;height:.8rem;margin:0 .35rem 0 1rem;
vertical-align:-.05rem}
.key i:first-child{margin-left:0}
.scroll{overflow-x:auto}
.graph{overflow-x:auto;border:1px solid var(--line);border-radius:8px;background:var(--card);
padding:.5rem}
svg{display:block;margin:0 auto}
svg text{font:12px system-ui,sans-serif;fill:var(--text)}svg .small{font-size:11px;
fill:var(--soft)}
svg .edge{fill:none;stroke:var(--soft);opacity:.55}
svg .box{fill:var(--back);stroke-width:2}svg a:hover .box{fill:var(--card)}
.View{stroke:var(--view)}.Pointwise{stroke:var(--pointwise)}
.RowNorm,.ColNorm,.RowCol{stroke:var(--norm)}
.Reduce{stroke:var(--reduce)}.Library{stroke:var(--library)}.TiledTranspose{stroke:var(--move)}
.value{stroke:var(--line)}
details{border:1px solid var(--line);border-radius:8px;margin:.6rem 0;background:var(--card)}
summary{cursor:pointer;padding:.55rem .9rem;font-weight:600}
summary span{font-weight:400;color:var(--soft)}
details>div{padding:0 .9rem .8rem}
details details{background:var(--back)}
pre{overflow-x:auto;background:var(--back);border:1px solid var(--line);border-radius:6px;
padding:.7rem;
font:12.5px/1.45 ui-monospace,monospace;margin:.4rem 0;max-height:34rem}
code{font:.92em ui-monospace,monospace}
)css";
}

std::vector<Traffic> traffic_of(const SegmentedFusion& segmented) {
  const compiler::SegmentContext context(segmented.fusion(), segmented.hints());
  std::vector<Traffic> all(segmented.size());
  std::vector<bool> read(segmented.fusion().storage().vals.size(), false);
  for (const SegmentedGroup& group : segmented.groups()) {
    // A view moves nothing, but who reads an input through it reads that input.
    const bool view = segmented.domain(group.id).kind == GroupKind::kView;
    Traffic& traffic = all[group.id.index];
    for (const ValId input : group.boundary.inputs) {
      if (view) continue;
      const bool first = segmented.fusion().is_input(input) && !read[input.index];
      read[input.index] = true;
      (first ? traffic.needed : traffic.between) += context.bytes(input);
    }
    for (const ValId output : group.boundary.outputs)
      if (!view)
        (context.is_output(output) ? traffic.needed : traffic.between) += context.bytes(output);
  }
  return all;
}

namespace {

constexpr int kNodeWidth = 168;
constexpr int kNodeHeight = 46;
constexpr int kGapX = 26;
constexpr int kGapY = 46;
constexpr std::size_t kMaxNodes = 400;

struct Node {
  std::string title, below, kind, link;
  std::size_t layer = 0;
  double place = 0;  ///< among its layer, then the left edge
};
struct Edge {
  std::size_t from, to;
  std::string title;
  std::int64_t bytes;
};

/// Inputs above their first reader, groups below what they read, outputs below their writer.
class Graph {
 public:
  explicit Graph(const Emission& emission)
      : emission_(emission), f_(emission.segmented().fusion()) {
    const SegmentedFusion& segmented = emission.segmented();
    const compiler::SegmentContext context(f_, segmented.hints());
    for (const SegmentedGroup& group : segmented.groups()) {
      const std::string kind(compiler::name_of(segmented.domain(group.id).kind));
      const std::size_t node = add(
          {fmt::format("{} {}", group.id.index, kind),
           fmt::format("{} operation{}", group.exprs.size(), group.exprs.size() == 1 ? "" : "s"),
           kind, fmt::format("#group-{}", group.id.index), 1, 0});
      for (const ValId input : group.boundary.inputs) {
        if (!made_.contains(input)) made_[input] = add(value(input));
        Node& from = nodes_[made_.at(input)];
        nodes_[node].layer = std::max(nodes_[node].layer, from.layer + 1);
        connect(made_.at(input), node, input, context);
      }
      for (const ValId output : group.boundary.outputs) made_[output] = node;
    }
    std::size_t deepest = 0;
    for (const Node& node : nodes_) deepest = std::max(deepest, node.layer);
    for (const ir::Output& output : f_.outputs()) {
      if (!made_.contains(output.val)) made_[output.val] = add(value(output.val));
      Node node = value(output.val);
      node.layer = deepest + 1;
      const std::size_t to = add(std::move(node));
      connect(made_.at(output.val), to, output.val, context);
    }
    lift_inputs();
  }

  std::size_t size() const { return nodes_.size(); }

  std::string svg() {
    std::vector<std::vector<std::size_t>> layers;
    for (std::size_t i = 0; i < nodes_.size(); ++i) {
      if (layers.size() <= nodes_[i].layer) layers.resize(nodes_[i].layer + 1);
      layers[nodes_[i].layer].push_back(i);
    }
    std::erase_if(layers, [](const auto& layer) { return layer.empty(); });
    std::size_t widest = 1;
    for (const auto& layer : layers) widest = std::max(widest, layer.size());
    const int width = static_cast<int>(widest) * (kNodeWidth + kGapX) + kGapX;
    const int height = static_cast<int>(layers.size()) * (kNodeHeight + kGapY) + 10;
    for (std::size_t row = 0; row < layers.size(); ++row) arrange(layers[row], row, width);
    std::string text = fmt::format(
        "<svg width=\"{0}\" height=\"{1}\" viewBox=\"0 0 {0} {1}\" role=\"group\" "
        "aria-label=\"Groups and "
        "the values between them\">\n",
        width, height);
    for (const Edge& edge : edges_) text += draw(edge);
    for (const Node& node : nodes_) text += draw(node);
    return text + "</svg>\n";
  }

 private:
  std::size_t add(Node node) {
    nodes_.push_back(std::move(node));
    tops_.push_back(0);
    return nodes_.size() - 1;
  }
  std::string type(ValId val) const {
    return std::string(name_of(f_.val(val).dtype)) + f_.to_string(f_.val(val).shape);
  }
  Node value(ValId val) const { return {emission_.name(val), type(val), "value", "", 0, 0}; }
  void connect(std::size_t from, std::size_t to, ValId val,
               const compiler::SegmentContext& context) {
    edges_.push_back(
        {from, to,
         fmt::format("{} {}, {}", emission_.name(val), type(val), html_bytes(context.bytes(val))),
         context.bytes(val)});
  }
  /// An input stands just above the first group that reads it.
  void lift_inputs() {
    for (std::size_t i = 0; i < nodes_.size(); ++i) {
      if (nodes_[i].kind != "value" || nodes_[i].layer != 0) continue;
      std::size_t first = nodes_.size() + 1;
      for (const Edge& edge : edges_)
        if (edge.from == i) first = std::min(first, nodes_[edge.to].layer);
      if (first > 1 && first <= nodes_.size()) nodes_[i].layer = first - 1;
    }
  }
  /// By the mean place of what leads there.
  void arrange(std::vector<std::size_t>& layer, std::size_t row, int width) {
    for (const std::size_t i : layer) {
      double sum = 0;
      int count = 0;
      for (const Edge& edge : edges_)
        if (edge.to == i) {
          sum += nodes_[edge.from].place;
          ++count;
        }
      nodes_[i].place = count > 0 ? sum / count : nodes_[i].place;
    }
    std::stable_sort(layer.begin(), layer.end(), [&](std::size_t a, std::size_t b) {
      return nodes_[a].place < nodes_[b].place;
    });
    const double step = kNodeWidth + kGapX;
    double left = (width - static_cast<double>(layer.size()) * step + kGapX) / 2;
    for (const std::size_t i : layer) {
      nodes_[i].place = left;
      tops_[i] = 5 + static_cast<double>(row) * (kNodeHeight + kGapY);
      left += step;
    }
  }
  std::string draw(const Edge& edge) const {
    const double x0 = nodes_[edge.from].place + kNodeWidth / 2.0;
    const double y0 = tops_[edge.from] + kNodeHeight;
    const double x1 = nodes_[edge.to].place + kNodeWidth / 2.0;
    const double y1 = tops_[edge.to];
    const double width = std::clamp(std::log2(static_cast<double>(edge.bytes) + 1) / 5, 1.0, 6.0);
    return fmt::format(
        "<path class=\"edge\" stroke-width=\"{:.1f}\" d=\"M{:.1f} {:.1f}C{:.1f} {:.1f} {:.1f} "
        "{:.1f} "
        "{:.1f} {:.1f}\"><title>{}</title></path>\n",
        width, x0, y0, x0, y0 + kGapY * 0.6, x1, y1 - kGapY * 0.6, x1, y1,
        escape_markup(edge.title));
  }
  static std::string shortened(const std::string& text) {
    constexpr std::size_t kMax = 24;
    return text.size() > kMax ? text.substr(0, kMax - 1) + "…" : text;
  }
  std::string draw(const Node& node) const {
    const double x = node.place;
    const double y = tops_[static_cast<std::size_t>(&node - nodes_.data())];
    std::string text = fmt::format(
        "<g><title>{} {}</title><rect class=\"box {}\" x=\"{:.1f}\" y=\"{:.1f}\" width=\"{}\" "
        "height=\"{}\" rx=\"{}\"/><text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"middle\">{}</text>"
        "<text class=\"small\" x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"middle\">{}</text></g>",
        escape_markup(node.title), escape_markup(node.below), node.kind, x, y, kNodeWidth,
        kNodeHeight, node.kind == "value" ? kNodeHeight / 2 : 6, x + kNodeWidth / 2.0, y + 19,
        escape_markup(shortened(node.title)), x + kNodeWidth / 2.0, y + 36,
        escape_markup(shortened(node.below)));
    return node.link.empty() ? text + "\n"
                             : fmt::format("<a href=\"{}\">{}</a>\n", node.link, text);
  }

  const Emission& emission_;
  const ir::Fusion& f_;
  std::vector<Node> nodes_;
  std::vector<double> tops_;
  std::vector<Edge> edges_;
  std::map<ValId, std::size_t> made_;
};

}  // namespace

std::string graph_svg(const Emission& emission) {
  Graph graph(emission);
  if (graph.size() > kMaxNodes)
    return fmt::format("<p>{} groups and values are too many for a picture.</p>\n", graph.size());
  return "<div class=\"graph\">\n" + graph.svg() + "</div>\n";
}

}  // namespace segfuse::engine
