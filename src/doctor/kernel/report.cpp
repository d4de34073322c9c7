// Kernels as a table and as JSON, alone or beside others.

#include <fmt/core.h>

#include <algorithm>
#include <map>
#include <set>

#include "base/code/demangle.h"
#include "base/json/json.h"
#include "segfuse/doctor/kernel.h"

namespace segfuse {

namespace {

std::string shown(const std::optional<std::uint64_t>& value) {
  return value ? std::to_string(*value) : "?";
}

/// "add (JGTOSOVW)": a cache has many of a name.
std::string shown_name(const KernelInfo& kernel) {
  const std::string name = demangled(kernel.name);
  return kernel.entry.empty() ? name : fmt::format("{} ({})", name, kernel.entry.substr(0, 8));
}

std::string spills_of(const KernelInfo& kernel) {
  if (!kernel.spill_store_bytes) return "?";
  return fmt::format("{}/{}", *kernel.spill_store_bytes, kernel.spill_load_bytes.value_or(0));
}

std::string occupancy_of(const KernelInfo& kernel) {
  if (kernel.occupancy.empty()) return "?";
  const KernelOccupancy& first = kernel.occupancy.front();
  return fmt::format("{:.0f} % of warps, {} blocks of {} ({})", first.share * 100, first.blocks,
                     first.block, first.limit);
}

/// Columns as wide as their widest cell; the last one is not padded.
std::string table(const std::vector<std::vector<std::string>>& rows) {
  std::vector<std::size_t> widths(rows.front().size());
  for (const auto& row : rows)
    for (std::size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  std::string text;
  for (const auto& row : rows) {
    std::string line;
    for (std::size_t i = 0; i < row.size(); ++i) {
      const bool name = i == 0;
      line += i + 1 == row.size() ? row[i]
              : name              ? fmt::format("{:<{}}  ", row[i], widths[i])
                                  : fmt::format("{:>{}}  ", row[i], widths[i]);
    }
    line.resize(line.find_last_not_of(' ') + 1);
    text += line + "\n";
  }
  return text;
}

std::string details_of(const KernelInfo& kernel) {
  std::string text;
  const std::string name = shown_name(kernel);
  if (kernel.spills())
    text += fmt::format("{}: {} bytes are spilled to memory and {} loaded again\n", name,
                        *kernel.spill_store_bytes, kernel.spill_load_bytes.value_or(0));
  if (kernel.local_bytes > 0)
    text += fmt::format(
        "{}: {} bytes of arrays in local memory, {} loads and {} stores in the text: an index that "
        "is not known when compiled\n",
        name, kernel.local_bytes, kernel.local_loads, kernel.local_stores);
  for (const KernelAtomic& atomic : kernel.atomics) {
    const char* meaning = atomic.order == "dependent"  ? "memory depends on the order"
                          : atomic.order == "returned" ? "what it returns depends on the order"
                                                       : "independent of the order";
    text += fmt::format("{}: {} x {}: {}\n", name, atomic.count, atomic.instruction, meaning);
  }
  return text;
}

Json optional_json(const std::optional<std::uint64_t>& value) {
  return value ? Json(*value) : Json(nullptr);
}

Json kernel_json(const KernelInfo& kernel) {
  Json atomics = Json::array();
  for (const KernelAtomic& atomic : kernel.atomics)
    atomics.push_back(Json{
        {"instruction", atomic.instruction}, {"count", atomic.count}, {"order", atomic.order}});
  Json occupancy = Json::array();
  for (const KernelOccupancy& entry : kernel.occupancy)
    occupancy.push_back(Json{{"architecture", entry.architecture},
                             {"block", entry.block},
                             {"blocks", entry.blocks},
                             {"share", entry.share},
                             {"limit", entry.limit}});
  Json json{{"name", kernel.name},
            {"readable_name", demangled(kernel.name)},
            {"architecture", kernel.architecture},
            {"registers", optional_json(kernel.registers)},
            {"spill_store_bytes", optional_json(kernel.spill_store_bytes)},
            {"spill_load_bytes", optional_json(kernel.spill_load_bytes)},
            {"stack_bytes", optional_json(kernel.stack_bytes)},
            {"shared_bytes", kernel.shared_bytes},
            {"barriers", optional_json(kernel.barriers)},
            {"max_threads", kernel.max_threads},
            {"code_bytes", kernel.code_bytes},
            {"occupancy", occupancy}};
  if (!kernel.entry.empty()) json["entry"] = kernel.entry;
  if (kernel.has_text) {
    json["declared_registers"] = kernel.declared_registers;
    json["local_bytes"] = kernel.local_bytes;
    json["local_loads"] = kernel.local_loads;
    json["local_stores"] = kernel.local_stores;
    json["atomics"] = atomics;
  }
  return json;
}

Json report_json(const KernelReport& report) {
  Json kernels = Json::array();
  for (const KernelInfo& kernel : report.kernels) kernels.push_back(kernel_json(kernel));
  Json loops = Json::array();
  for (const KernelLoop& loop : report.loops) {
    Json one{{"line", loop.line}, {"vectorized", loop.vectorized}, {"remark", loop.remark}};
    if (!loop.kernel.empty()) one["kernel"] = loop.kernel;
    loops.push_back(std::move(one));
  }
  Json json{{"file", report.file},
            {"source", report.source},
            {"spills", report.spills()},
            {"kernels", kernels},
            {"notes", report.notes}};
  if (!loops.empty()) json["loops"] = loops;
  return json;
}

std::string dumped(const Json& json) { return json_text(json, 2) + "\n"; }

/// Kernels by their names; where a report has a name for several architectures, with these.
std::map<std::string, const KernelInfo*> kernels_of(const KernelReport& report,
                                                    const KernelReport& other) {
  std::set<std::string> several;
  for (const KernelReport* one : {&report, &other}) {
    std::set<std::string> seen;
    for (const KernelInfo& kernel : one->kernels)
      if (!seen.insert(kernel.name).second) several.insert(kernel.name);
  }
  std::map<std::string, const KernelInfo*> kernels;
  for (const KernelInfo& kernel : report.kernels) {
    std::string name = demangled(kernel.name);
    if (several.contains(kernel.name)) name += " for " + kernel.architecture;
    kernels.try_emplace(std::move(name), &kernel);
  }
  return kernels;
}

/// "40 -> 48", or one number where nothing changed.
std::string change(const std::string& former, const std::string& now) {
  return former == now ? now : former + " -> " + now;
}

std::string c_report_text(const KernelReport& report) {
  std::string text = fmt::format("{}: {}\n", report.file, report.source);
  std::vector<std::vector<std::string>> rows = {{"function", "bytes of code"}};
  for (const KernelInfo& kernel : report.kernels)
    rows.push_back({kernel.name, std::to_string(kernel.code_bytes)});
  text += table(rows);
  const auto vectors = std::count_if(report.loops.begin(), report.loops.end(),
                                     [](const KernelLoop& loop) { return loop.vectorized; });
  text += fmt::format("{} of {} loops became vectors\n", vectors, report.loops.size());
  for (const KernelLoop& loop : report.loops)
    text += fmt::format("{}line {}: {}\n", loop.kernel.empty() ? "" : loop.kernel + ", ", loop.line,
                        loop.remark);
  for (const std::string& note : report.notes) text += fmt::format("note: {}\n", note);
  return text;
}

}  // namespace

std::string kernel_report_text(const KernelReport& report) {
  if (report.source.starts_with("C, ")) return c_report_text(report);
  std::string text = fmt::format("{}: {}, {} kernel{}\n", report.file, report.source,
                                 report.kernels.size(), report.kernels.size() == 1 ? "" : "s");
  if (!report.kernels.empty()) {
    std::vector<std::vector<std::string>> rows = {{"kernel", "arch", "registers", "spills st/ld",
                                                   "stack", "shared", "barriers", "occupancy"}};
    for (const KernelInfo& kernel : report.kernels)
      rows.push_back({shown_name(kernel), kernel.architecture,
                      kernel.registers ? shown(kernel.registers)
                                       : fmt::format("{} declared", kernel.declared_registers),
                      spills_of(kernel), shown(kernel.stack_bytes),
                      std::to_string(kernel.shared_bytes), shown(kernel.barriers),
                      occupancy_of(kernel)});
    text += table(rows);
  }
  for (const KernelInfo& kernel : report.kernels) text += details_of(kernel);
  for (const std::string& note : report.notes) text += fmt::format("note: {}\n", note);
  return text;
}

std::string kernel_report_json(const KernelReport& report) { return dumped(report_json(report)); }

std::string kernel_comparison_text(const KernelReport& former, const KernelReport& report) {
  std::vector<std::vector<std::string>> rows = {
      {"kernel", "registers", "spills st/ld", "stack", "shared", "barriers", "code", "occupancy"}};
  const auto before = kernels_of(former, report);
  const auto now = kernels_of(report, former);
  std::set<std::string> names;
  for (const auto* kernels : {&before, &now})
    for (const auto& [name, kernel] : *kernels) names.insert(name);
  for (const std::string& name : names) {
    const KernelInfo* a = before.contains(name) ? before.at(name) : nullptr;
    const KernelInfo* b = now.contains(name) ? now.at(name) : nullptr;
    if (a == nullptr || b == nullptr) {
      rows.push_back({name, a == nullptr ? "only in the first" : "only in the second", "", "", "",
                      "", "", ""});
      continue;
    }
    const auto share = [](const KernelInfo& kernel) {
      return kernel.occupancy.empty()
                 ? std::string("?")
                 : fmt::format("{:.0f} %", kernel.occupancy.front().share * 100);
    };
    rows.push_back({name, change(shown(a->registers), shown(b->registers)),
                    change(spills_of(*a), spills_of(*b)),
                    change(shown(a->stack_bytes), shown(b->stack_bytes)),
                    change(std::to_string(a->shared_bytes), std::to_string(b->shared_bytes)),
                    change(shown(a->barriers), shown(b->barriers)),
                    change(std::to_string(a->code_bytes), std::to_string(b->code_bytes)),
                    change(share(*a), share(*b))});
  }
  return fmt::format("{} against {}: former -> now\n", report.file, former.file) + table(rows);
}

std::string kernel_comparison_json(const KernelReport& former, const KernelReport& report) {
  return dumped(Json{{"former", report_json(former)}, {"now", report_json(report)}});
}

}  // namespace segfuse
