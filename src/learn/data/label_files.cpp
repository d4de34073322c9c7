#include "learn/data/label_files.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <set>

#include "base/os/file.h"
#include "base/text.h"
#include "learn/data/labels/fields.h"
#include "learn/data/labels/parsers.h"
#include "learn/data/text.h"
#include "segfuse/error.h"

namespace segfuse::data {
namespace {

namespace fs = std::filesystem;

/// Endings that texts for people and orders of labels have as well.
bool may_be_text(const fs::path& path) {
  const std::string ending = extension_of(path.string());
  return ending == ".txt" || ending == ".lab";
}

bool holds_labels(const fs::path& path) {
  try {
    return std::ranges::any_of(inspect_labels(path).tiers,
                               [](const LabelTier& tier) { return tier.segments > 0; });
  } catch (const DataError&) {
    return false;
  }
}

/// Text without a line that begins with a number, which all label files of these endings have: it
/// is meant to be something else, and not broken.
bool has_no_times(const fs::path& path) {
  const std::string text = read_file(path);
  for (const std::string_view line : split_lines(text)) {
    const std::vector<Field> fields = split_fields(line);
    if (!fields.empty() && is_number(fields[0].text)) return false;
  }
  return true;
}

/// Moves the files that the predicate holds for behind those that stay.
template <class Predicate>
void set_aside(std::vector<fs::path>& files, std::vector<fs::path>& aside,
               const Predicate& predicate) {
  for (const fs::path& path : files)
    if (predicate(path)) aside.push_back(path);
  std::erase_if(files, predicate);
}

/// Keeps those files, if there are any, and sets the others aside.
template <class Predicate>
void prefer(std::vector<fs::path>& files, std::vector<fs::path>& aside,
            const Predicate& predicate) {
  if (std::ranges::any_of(files, predicate))
    set_aside(files, aside, [&](const fs::path& path) { return !predicate(path); });
}

LabelFormat format_of(const fs::path& path) { return inspect_labels(path).format; }

/// The place of the file's ending among those of its format, whose endings are tiers; -1: no tier.
std::ptrdiff_t rank_of(const fs::path& path) {
  const std::string ending = extension_of(path.string());
  for (const LabelFormatInfo& info : label_formats()) {
    const auto at = std::ranges::find(info.endings, ending);
    if (info.endings_are_tiers && at != info.endings.end()) return at - info.endings.begin();
  }
  return -1;
}

bool is_finer(const fs::path& a, const fs::path& b) { return rank_of(a) < rank_of(b); }

[[noreturn]] void refuse_second(const fs::path& first, const fs::path& second,
                                std::string_view recording) {
  const std::string ending = extension_of(second.string());
  const bool differ = ending != extension_of(first.string());
  throw DataError(fmt::format(
      "{}: a second file for the recording {}, besides {}; keep one of them{}", second.string(),
      shown(recording), first.string(),
      differ ? fmt::format(", or choose by the ending, as with --tier {}", ending.substr(1)) : ""));
}

}  // namespace

std::vector<std::string_view> label_endings() {
  std::vector<std::string_view> endings;
  for (const LabelFormatInfo& format : label_formats())
    for (const std::string_view ending : format.endings)
      if (std::ranges::find(endings, ending) == endings.end()) endings.push_back(ending);
  return endings;
}

std::vector<fs::path> files_with_endings(const fs::path& stem,
                                         std::span<const std::string_view> endings) {
  std::error_code failure;
  std::vector<fs::path> found;
  if (!fs::is_directory(stem.parent_path().empty() ? "." : stem.parent_path(), failure))
    return found;
  for (const std::string_view ending : endings)
    for (const std::string& spelt : {std::string(ending), lower(ending), upper(ending)}) {
      fs::path path = stem;
      path += spelt;
      if (std::ranges::find(found, path) == found.end() && path_exists(path))
        found.push_back(std::move(path));
    }
  return found;
}

LabelFiles choose_label_file(std::vector<fs::path> files, const std::string& tier, bool may_be_none,
                             std::string_view recording) {
  LabelFiles out;
  if (files.size() == 1 && may_be_none)
    set_aside(files, out.others, [](const fs::path& path) {
      return may_be_text(path) && !holds_labels(path) && has_no_times(path);
    });
  if (files.size() > 1)
    prefer(files, out.others,
           [](const fs::path& path) { return !may_be_text(path) || holds_labels(path); });
  if (files.size() > 1 && !tier.empty())
    prefer(files, out.others,
           [&](const fs::path& path) { return extension_of(path.string()) == "." + lower(tier); });
  if (files.size() > 1 && !tier.empty())
    prefer(files, out.others,
           [](const fs::path& path) { return !label_format(format_of(path)).tiers.empty(); });
  if (files.empty()) return out;
  std::ranges::stable_sort(files, is_finer);
  for (std::size_t i = 1; i < files.size(); ++i) {
    const bool are_tiers = rank_of(files[0]) >= 0 && is_finer(files[i - 1], files[i]);
    if (!are_tiers) refuse_second(files[0], files[i], recording);
    out.others.push_back(files[i]);
  }
  out.labels = files[0];
  return out;
}

std::string common_ending(std::span<Recording* const> recordings, const std::string& tier) {
  std::vector<fs::path> files;
  for (const Recording* recording : recordings) {
    files.push_back(recording->labels);
    files.insert(files.end(), recording->other_labels.begin(), recording->other_labels.end());
  }
  std::erase_if(files, [](const fs::path& path) { return rank_of(path) < 0; });
  if (files.empty()) return {};
  for (const fs::path& path : files)
    if (!tier.empty() && tier_of_file(path) == lower(tier)) return extension_of(path.string());
  return extension_of(std::ranges::min(files, is_finer).string());
}

bool take_ending(Recording& recording, const std::string& ending) {
  if (rank_of(recording.labels) < 0 || extension_of(recording.labels.string()) == ending)
    return true;
  for (fs::path& other : recording.other_labels) {
    if (extension_of(other.string()) != ending) continue;
    std::swap(other, recording.labels);
    return true;
  }
  return false;
}

std::string tier_of_file(const fs::path& labels) {
  return rank_of(labels) < 0 ? "" : extension_of(labels.string()).substr(1);
}

namespace {

/// The tiers of a recording's label files, and what says so.
struct TiersOfFile {
  LabelFormat format = LabelFormat::kAuto;
  bool some = false;  ///< the format has tiers
  std::vector<std::string> names;
};

TiersOfFile tiers_of(const Recording& recording) {
  TiersOfFile out;
  if (recording.held) return out;
  if (const std::string own = tier_of_file(recording.labels); !own.empty()) {
    out = {LabelFormat::kPhn, true, {own}};
    for (const fs::path& other : recording.other_labels) out.names.push_back(tier_of_file(other));
    return out;
  }
  const LabelContents contents = inspect_labels(recording.labels);
  out.format = contents.format;
  out.some = !label_format(contents.format).tiers.empty();
  for (const LabelTier& tier : contents.tiers) out.names.push_back(tier.name);
  // Of files of several programs one was chosen by its ending.
  if (!recording.other_labels.empty())
    out.names.push_back(extension_of(recording.labels.string()).substr(1));
  return out;
}

bool has_tier(const TiersOfFile& file, const std::string& tier) {
  if (!file.some) return true;
  const std::string& name = file.format == LabelFormat::kPhn ? lower(tier) : tier;
  return std::ranges::find(file.names, name) != file.names.end();
}

}  // namespace

void leave_out_other_tiers(std::vector<Recording>& recordings, const std::string& tier,
                           Unpaired* unpaired) {
  const auto ending = [](const Recording& recording) {
    return recording.held ? std::string() : extension_of(recording.labels.string());
  };
  const bool mixed = std::ranges::any_of(recordings, [&](const Recording& recording) {
    return ending(recording) != ending(recordings.front());
  });
  const bool records = std::ranges::any_of(
      recordings, [&](const Recording& recording) { return ending(recording) == ".hea"; });
  if (tier.empty() || (!mixed && !records)) return;
  std::vector<TiersOfFile> files;
  std::set<LabelFormat> having;  // formats with tiers, some of whose files have this one
  for (const Recording& recording : recordings) {
    files.push_back(tiers_of(recording));
    if (files.back().some && has_tier(files.back(), tier)) having.insert(files.back().format);
  }
  std::size_t i = 0;
  std::erase_if(recordings, [&](const Recording& recording) {
    const TiersOfFile& file = files[i++];
    const bool goes = file.format == LabelFormat::kWfdb || !having.contains(file.format);
    if (having.empty() || has_tier(file, tier) || !goes) return false;
    if (unpaired == nullptr)
      throw DataError(fmt::format(
          "{}: the tier {} is not in it, and labels of other recordings have it; add such labels, "
          "or leave such recordings out with data.unpaired = \"skip\"",
          recording.labels.string(), shown(tier)));
    unpaired->recordings.push_back(recording.audio);
    return true;
  });
}

std::vector<std::string> labels_of_other_tiers(std::span<const Recording> recordings,
                                               const std::string& tier) {
  std::int64_t others = 0;
  const Recording* first = nullptr;
  for (const Recording& recording : recordings) {
    if (tier.empty() || recording.held) continue;
    const std::string name = tier_of_file(recording.labels);
    if (name.empty() || name == lower(tier)) continue;
    if (++others == 1) first = &recording;
  }
  if (first == nullptr) return {};
  return {fmt::format(
      "{}: the tier is {}, and {} of {} recordings have labels of another tier, which are read all "
      "the same; where their labels mean something else, leave these recordings out",
      first->labels.string(), shown(tier), others, recordings.size())};
}

std::vector<std::string> labels_of_nobody(std::span<const Recording> recordings) {
  constexpr std::size_t kShown = 3;
  std::map<fs::path, std::vector<std::string>> wanted;
  for (const Recording& recording : recordings)
    if (!recording.held) wanted[recording.labels].push_back(name_in_labels(recording));
  std::vector<std::string> sentences;
  for (const auto& [path, names] : wanted) {
    if (!recognise(path.string(), read_file(path)).info.shared) continue;
    const std::vector<std::string> named = inspect_labels(path).recordings;
    const std::set<std::string> exact(names.begin(), names.end());
    std::vector<std::string> others;
    for (const std::string& name : named)
      if (!exact.contains(name.substr(name.find_last_of("/\\") + 1)) &&
          std::ranges::none_of(
              names, [&](const std::string& recording) { return same_recording(name, recording); }))
        others.push_back(shown(name));
    if (others.empty()) continue;
    const std::size_t some = std::min(kShown, others.size());
    sentences.push_back(fmt::format(
        "{}: its rows of {} are not used, since no recording or sequence has this name: {}{}",
        path.string(), others.size() == 1 ? "1 name" : fmt::format("{} names", others.size()),
        fmt::join(others.begin(), others.begin() + static_cast<std::ptrdiff_t>(some), ", "),
        others.size() > some ? fmt::format(" and {} more", others.size() - some) : ""));
  }
  return sentences;
}

}  // namespace segfuse::data
