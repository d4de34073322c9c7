#include "engine/compiled/html.h"

#include <fmt/format.h>

#include <map>

#include "base/console/markup.h"
#include "engine/compiled/emission.h"
#include "engine/compiled/emit.h"
#include "engine/compiled/html_parts.h"
#include "segfuse/error.h"

namespace segfuse::engine {

using compiler::GroupKernel;
using compiler::SegmentReport;

namespace {

/// A target's part of what a group's card shows, by group.
struct TargetCard {
  std::string schedule;
  std::vector<std::string> names;  ///< of the kernels
  std::vector<std::string> calls;  ///< "row_norm x B*T: b0 = 'x', ..."
  std::vector<std::string> loops;
  std::vector<std::string> texts;
};

class Page {
 public:
  Page(const ir::Fusion& fusion, const compiler::SizeHints& sizes, const EmitOptions& how)
      : source_(fusion),
        sizes_(sizes),
        how_(how),
        emission_(fusion, {.hints = sizes, .excess_precision = how.excess_precision}) {
    space_.resize(emission_.segmented().size());
    cpu_ = cards(emission_);
    Emission cuda(fusion, {.target = compiler::Target::kCuda,
                           .hints = sizes,
                           .excess_precision = how.excess_precision});
    cuda_ = cards(cuda);
    numbers_ = compiler::report(emission_.segmented());
    traffic_ = traffic_of(emission_.segmented());
    find_resources();
  }

  std::string text() const {
    return head() + tiles() + graph() + table() + cards_text() + apart() +
           "</main>\n</body>\n</html>\n";
  }

 private:
  std::vector<TargetCard> cards(Emission& emission) {
    std::vector<TargetCard> all(emission.segmented().size());
    emission.each([&](EmittedGroup& group) {
      TargetCard& card = all[group.group.id.index];
      if (!group.space) return;
      space_[group.group.id.index] = emission.describe(*group.space);
      card.schedule = to_string(group.schedule);
      for (const GroupKernel& kernel : group.lowered.kernels) {
        card.names.push_back(kernel.kernel.name);
        card.calls.push_back(fmt::format("{} × {}: {}", kernel.kernel.name,
                                         emission.fusion().to_string(kernel.kernel.outer_count),
                                         emission.operands(kernel)));
        card.loops.push_back(compiler::loop::print(kernel.kernel));
        card.texts.push_back(emission.function_text(kernel));
      }
    });
    return all;
  }

  /// By the CUDA text of a kernel. Compiling needs NVRTC, no GPU.
  void find_resources() {
    if (!how_.resources) return;
    try {
      const CudaUnit unit = print_cuda_unit(source_, {.target = compiler::Target::kCuda,
                                                      .hints = sizes_,
                                                      .excess_precision = how_.excess_precision});
      if (unit.text.empty()) return;
      const auto compiled =
          runtime::cuda::compile_cubin(source_.name(), unit.text, {}, how_.architecture);
      const std::map<std::string, std::string> known = how_.resources(compiled.cubin);
      for (const auto& [text, name] : unit.names)
        if (const auto found = known.find(name); found != known.end())
          resources_[text] = found->second;
      why_no_resources_.clear();
    } catch (const DeviceError& error) {
      why_no_resources_ = error.what();
    }
  }

  std::string head() const {
    return fmt::format(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n<meta "
        "name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n<title>{0}</title>\n"
        "<style>{1}</style>\n</head>\n<body>\n<main>\n<h1>{0}</h1>\n<p class=\"soft\">What "
        "segfuse's "
        "compiler "
        "makes of this program{2}.</p>\n",
        escape_markup(source_.name()), page_style(), escape_markup(given_sizes()));
  }

  std::string given_sizes() const {
    std::string text;
    for (const auto& [name, size] : sizes_.symbols)
      text += fmt::format("{} {} = {}", text.empty() ? "" : ",", name, size);
    return fmt::format("; bytes are for{}{} {}", text,
                       text.empty() ? " sizes of" : ", other sizes of", sizes_.other);
  }

  std::string tiles() const {
    auto tile = [](const std::string& value, const std::string& what) {
      return fmt::format("<div class=\"tile\"><b>{}</b><span>{}</span></div>\n", value, what);
    };
    const double ratio = numbers_.lower_bound > 0 ? static_cast<double>(numbers_.moved) /
                                                        static_cast<double>(numbers_.lower_bound)
                                                  : 1;
    return "<div class=\"tiles\">\n" +
           tile(fmt::format("{}", numbers_.kernels),
                fmt::format("{} in {} {}", numbers_.kernels == 1 ? "kernel" : "kernels",
                            numbers_.groups.size(),
                            numbers_.groups.size() == 1 ? "group" : "groups")) +
           tile(html_bytes(numbers_.moved), "moved by all groups") +
           tile(html_bytes(numbers_.lower_bound), "at least: inputs once, outputs once") +
           tile(fmt::format("{:.2f} ×", ratio), "of the least possible") +
           tile(html_bytes(numbers_.peak), "alive at most between groups") + "</div>\n";
  }

  std::string graph() const {
    return "<h2>The graph</h2>\n<p class=\"soft\">Boxes are groups, round ones the program's "
           "inputs "
           "and outputs; a line is as thick as the logarithm of its bytes. Point at one to see "
           "it.</p>\n" +
           graph_svg(emission_);
  }

  std::string bar(const Traffic& traffic) const {
    std::int64_t most = 1;
    for (const Traffic& one : traffic_) most = std::max(most, one.total());
    auto share = [&](std::int64_t bytes) {
      return 100 * static_cast<double>(bytes) / static_cast<double>(most);
    };
    return fmt::format(
        "<div class=\"bar\"><i class=\"needed\" style=\"width:{:.2f}%\"></i><i class=\"between\" "
        "style=\"width:{:.2f}%\"></i></div>",
        share(traffic.needed), share(traffic.between));
  }

  std::string table() const {
    std::string text =
        "<h2>Bytes by group</h2>\n<p class=\"key\"><i class=\"needed\"></i>first reads of inputs, "
        "and "
        "outputs: the lower bound<i class=\"between\"></i>values between groups, and inputs read "
        "again</p>\n<div class=\"scroll\" tabindex=\"0\" role=\"group\" aria-label=\"Bytes by "
        "group\">\n<table>\n<tr><th>group</th><th>kind</th><th class=\"n\">operations</th><th "
        "class=\"n\">read</th><th class=\"n\">written</th><th>share</th></tr>\n";
    for (std::size_t i = 0; i < numbers_.groups.size(); ++i) {
      const SegmentReport::Group& row = numbers_.groups[i];
      text += fmt::format(
          "<tr><td><a href=\"#group-{0}\">{0}</a></td><td>{1}</td><td class=\"n\">{2}</td><td "
          "class=\"n\">{3}</td><td class=\"n\">{4}</td><td>{5}</td></tr>\n",
          i, compiler::name_of(row.kind), row.exprs, html_bytes(row.read), html_bytes(row.written),
          bar(traffic_[i]));
    }
    return text + "</table>\n</div>\n";
  }

  std::string values(const std::vector<ir::ValId>& vals) const {
    std::string text;
    const ir::Fusion& f = emission_.segmented().fusion();
    for (const ir::ValId val : vals)
      text += fmt::format("{}{} {}{}", text.empty() ? "" : ", ", emission_.name(val),
                          name_of(f.val(val).dtype), f.to_string(f.val(val).shape));
    return text.empty() ? "nothing" : text;
  }

  /// "%7 = mul(%4, 'x') : f32[B, T]"
  std::string operation(ir::ExprId id) const {
    const ir::Fusion& f = emission_.segmented().fusion();
    const ir::Expr& e = f.expr(id);
    std::string results;
    std::string operands;
    for (const ir::ValId val : e.results)
      results += (results.empty() ? "" : ", ") + emission_.name(val);
    for (const ir::ValId val : e.operands)
      operands += (operands.empty() ? "" : ", ") + emission_.name(val);
    const ir::Val& first = f.val(e.results[0]);
    return fmt::format("{} = {}({}) : {}{}\n", results, ir::info(e.op).name, operands,
                       name_of(first.dtype), f.to_string(first.shape));
  }

  static std::string folded(std::string_view title, std::string_view note, std::string_view text) {
    return fmt::format(
        "<details><summary>{} <span>{}</span></summary><div><pre "
        "tabindex=\"0\">{}</pre></div></details>\n",
        escape_markup(title), escape_markup(note), escape_markup(text));
  }

  std::string resources(const TargetCard& card) const {
    if (!how_.resources) return "";
    if (!why_no_resources_.empty())
      return fmt::format("<p class=\"soft\">What the kernels need of a GPU is not known: {}</p>\n",
                         escape_markup(why_no_resources_));
    std::string rows;
    for (std::size_t i = 0; i < card.names.size(); ++i)
      if (const auto found = resources_.find(card.texts[i]); found != resources_.end())
        rows += fmt::format("<tr><td>{}</td><td>{}</td></tr>\n", escape_markup(card.names[i]),
                            escape_markup(found->second));
    return rows.empty() ? ""
                        : fmt::format(
                              "<table><tr><th>kernel</th><th>needs on {}</th></tr>\n{}"
                              "</table>\n",
                              escape_markup(how_.architecture), rows);
  }

  std::string target(std::string_view name, const TargetCard& card) const {
    std::string text = fmt::format("<p><b>{}</b> schedule <code>{}</code></p>\n", name,
                                   escape_markup(card.schedule));
    for (const std::string& call : card.calls)
      text += fmt::format("<p>kernel <code>{}</code></p>\n", escape_markup(call));
    return text;
  }

  std::string card(const compiler::SegmentedGroup& group) const {
    const std::size_t i = group.id.index;
    const SegmentReport::Group& row = numbers_.groups[i];
    std::string operations;
    for (const ir::ExprId id : group.exprs) operations += operation(id);
    std::string text = fmt::format(
        "<details id=\"group-{0}\"{5}><summary>Group {0}: {1} <span>of {2} operations, {3} read, "
        "{4} "
        "written</span></summary><div>\n<p>reads {6}</p>\n<p>writes {7}</p>\n",
        i, compiler::name_of(row.kind), row.exprs, html_bytes(row.read), html_bytes(row.written),
        numbers_.groups.size() <= 3 ? " open" : "", escape_markup(values(group.boundary.inputs)),
        escape_markup(values(group.boundary.outputs)));
    if (!space_[i].empty())
      text += fmt::format("<p>space <code>{}</code></p>\n", escape_markup(space_[i]));
    text += folded("Operations", "", operations);
    const TargetCard& cpu = cpu_[i];
    const TargetCard& cuda = cuda_[i];
    if (!cpu.names.empty()) text += target("CPU", cpu);
    for (std::size_t k = 0; k < cpu.names.size(); ++k) {
      text += folded(cpu.names[k], "loop IR for a CPU", cpu.loops[k]);
      text += folded(cpu.names[k], "C, without the prelude (--emit=kernels has it)", cpu.texts[k]);
    }
    if (!cuda.names.empty()) text += target("GPU", cuda) + resources(cuda);
    for (std::size_t k = 0; k < cuda.names.size(); ++k)
      text += folded(cuda.names[k], "CUDA C++", cuda.texts[k]);
    return text + "</div></details>\n";
  }

  std::string cards_text() const {
    std::string text = "<h2>Groups</h2>\n";
    for (const compiler::SegmentedGroup& group : emission_.segmented().groups())
      text += card(group);
    return text;
  }

  std::string apart() const {
    const auto& rejections = emission_.segmented().rejections;
    std::string text = "<h2>What stays apart, and why</h2>\n";
    if (rejections.empty())
      return text + "<p>No merge of groups that share a value was refused.</p>\n";
    text += "<table>\n<tr><th>groups</th><th>reason</th></tr>\n";
    for (const compiler::Rejection& one : rejections)
      text += fmt::format(
          "<tr><td><a href=\"#group-{0}\">{0}</a> and <a "
          "href=\"#group-{1}\">{1}</a></td><td>{2}</td>"
          "</tr>\n",
          one.first.index, one.second.index, escape_markup(one.reason));
    return text + "</table>\n";
  }

  const ir::Fusion& source_;
  const compiler::SizeHints& sizes_;
  const EmitOptions& how_;
  Emission emission_;
  std::vector<std::string> space_;  // by group
  std::vector<TargetCard> cpu_, cuda_;
  SegmentReport numbers_;
  std::vector<Traffic> traffic_;
  std::map<std::string, std::string> resources_;
  std::string why_no_resources_;
};

}  // namespace

std::string describe_html(const ir::Fusion& fusion, const compiler::SizeHints& sizes,
                          const EmitOptions& how) {
  return Page(fusion, sizes, how).text();
}

}  // namespace segfuse::engine
