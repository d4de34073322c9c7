#include "learn/train/study/pooled.h"

#include <fmt/format.h>

#include <algorithm>

#include "segfuse/error.h"

namespace segfuse::learn {
namespace {

void keep_common_settings(std::map<std::string, std::string>& settings,
                          const std::map<std::string, std::string>& others) {
  std::erase_if(settings, [&](const auto& setting) {
    const auto found = others.find(setting.first);
    return found == others.end() || found->second != setting.second;
  });
}

void keep_common_systems(std::vector<MeasuredSystem>& systems,
                         const std::vector<MeasuredSystem>& others) {
  std::erase_if(systems, [&](const MeasuredSystem& system) {
    return std::ranges::find(others, system.name, &MeasuredSystem::name) == others.end();
  });
}

void add_counts(MeasuredSystem& sum, const RecordingsFile& file) {
  const auto system = std::ranges::find(file.systems, sum.name, &MeasuredSystem::name);
  for (const auto& [id, counts] : system->by_recording) {
    const auto [place, is_new] = sum.by_recording.try_emplace(id, counts);
    if (!is_new) place->second.add(counts);
  }
}

}  // namespace

RecordingsFile pooled(const std::vector<MeasuredRun>& runs) {
  RecordingsFile sum = runs.at(0).file;
  for (const MeasuredRun& run : runs) {
    keep_common_settings(sum.settings, run.file.settings);
    keep_common_systems(sum.systems, run.file.systems);
    const bool fields = std::ranges::all_of(sum.systems, counts_fields) &&
                        std::ranges::all_of(run.file.systems, counts_fields);
    if (run.file.tolerances != sum.tolerances ||
        (fields &&
         (run.file.edge_tolerance != sum.edge_tolerance || run.file.background != sum.background)))
      throw UsageError(
          fmt::format("{} and {} were evaluated with different tolerances or backgrounds; evaluate "
                      "all runs again with --overwrite",
                      runs[0].folder.string(), run.folder.string()));
    for (const auto& [id, recording] : run.file.recordings) {
      const auto place = sum.recordings.try_emplace(id, recording).first;
      if (place->second.gold != recording.gold)
        throw UsageError(
            fmt::format("{}: the gold segments of '{}' differ from those of the runs before, so "
                        "the data have changed; start again with --overwrite",
                        run.folder.string(), id));
    }
  }
  for (MeasuredSystem& system : sum.systems) {
    system.by_recording.clear();
    for (const MeasuredRun& run : runs) add_counts(system, run.file);
  }
  return sum;
}

}  // namespace segfuse::learn
