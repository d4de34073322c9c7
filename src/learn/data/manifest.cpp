#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <set>

#include "base/os/file.h"
#include "learn/data/label_files.h"
#include "learn/data/labels/fields.h"
#include "learn/data/splits/group_rule.h"
#include "learn/data/splits/splits.h"
#include "learn/data/text.h"
#include "learn/data/values/values.h"
#include "learn/data/wfdb/wfdb.h"
#include "segfuse/error.h"

namespace segfuse {
namespace data {
namespace {

namespace fs = std::filesystem;

struct Found {
  Recording recording;
  std::optional<Split> split;
  CorpusPlace place{};
  bool names_labels = false;  ///< a manifest says which file has them
};

/// Returns whether a split was given.
bool apply_split_rule(std::vector<Found>& found) {
  std::sort(found.begin(), found.end(),
            [](const Found& a, const Found& b) { return a.recording.id < b.recording.id; });
  std::vector<std::optional<Split>> splits;
  std::vector<std::string> groups;
  for (const Found& item : found) {
    splits.push_back(item.split);
    if (!item.recording.group.empty()) groups.push_back(item.recording.group);
  }
  const bool given = deal_splits(splits, groups);
  for (std::size_t i = 0; i < found.size(); ++i) found[i].recording.split = *splits[i];
  return given;
}

/// A folder of recordings, and what its name says.
struct Folder {
  std::optional<Split> split;
  std::string prefix;  ///< of the ids
  bool values = false;
  Unpaired* unpaired = nullptr;  ///< where given, notes what has no partner
  std::string tier{};            ///< ManifestOptions::tier
};

/// A file that was not fetched is missing data, not none.
[[noreturn]] void refuse_link(const fs::path& link) {
  std::error_code failure;
  throw DataError(fmt::format(
      "{}: a symbolic link to {}, where there is no file; fetch the file, as with datalad get, or "
      "remove the link",
      link.string(), shown(fs::read_symlink(link, failure).string())));
}

/// Files of a directory, keyed by their path without what `stem_of` takes off their names.
struct FileMap {
  std::map<std::string, fs::path> files;

  template <class Wanted, class StemOf>
  void collect(const fs::path& directory, const Wanted& wanted, const StemOf& stem_of) {
    collect(directory, directory, wanted, stem_of);
  }

 private:
  template <class Wanted, class StemOf>
  void collect(const fs::path& directory, const fs::path& folder, const Wanted& wanted,
               const StemOf& stem_of) {
    for (const fs::path& path : list_directory(folder)) {
      std::error_code failure;
      const bool link = fs::is_symlink(fs::symlink_status(path, failure));
      if (!link && path_is_directory(path)) collect(directory, path, wanted, stem_of);
      if (!wanted(path) || lower(path.stem().string()) == "manifest") continue;
      const bool hidden = path.filename().string().starts_with('.');  // as Emacs has its locks
      if (link && !hidden && !path_exists(path)) refuse_link(path);
      if (!fs::is_regular_file(path, failure)) continue;
      const std::string key = (path.parent_path().lexically_relative(directory) / stem_of(path))
                                  .lexically_normal()
                                  .generic_string();
      const auto [at, fresh] = files.emplace(key, path);
      if (!fresh)
        throw DataError(
            fmt::format("{}: a second file for the recording {}, besides {}; keep one of them",
                        path.string(), shown(key), at->second.string()));
    }
  }
};

/// Whether the path lies in the folder or below it.
bool lies_in(const fs::path& path, const fs::path& folder) {
  const fs::path relative = path.lexically_relative(folder);
  return !relative.empty() && *relative.begin() != "..";
}

/// Label files by the recordings' keys.
using LabelMap = std::map<std::string, std::vector<fs::path>>;

/// Gives the labels of a file that names its recordings to those without labels, as
/// Annotation.xml does. False when it names none.
bool share_labels(const fs::path& file, const FileMap& audio, LabelMap& labels) {
  const LabelFormatInfo& format = label_format(inspect_labels(file).format);
  if (!format.shared) return false;
  const std::vector<std::string> names = inspect_labels(file).recordings;
  for (const auto& [key, path] : audio.files) {
    if (!lies_in(path, file.parent_path()) || labels.contains(key)) continue;
    const bool named = std::ranges::any_of(
        names, [&](const std::string& name) { return same_recording(name, path.string()); });
    if (named) labels[key] = {file};
  }
  return !names.empty();
}

/// The same of a file that may be none of labels at all, such as a text beside the recordings.
/// `why` is what makes it unreadable as labels of several recordings.
bool shares_labels(const fs::path& file, const FileMap& audio, LabelMap& labels, std::string& why) {
  try {
    return share_labels(file, audio, labels);
  } catch (const DataError& error) {
    why = error.what();
    return false;
  }
}

/// What belongs to WFDB records: their signals and the headers of their parts.
std::set<fs::path> parts_of_records(const FileMap& audio) {
  std::set<fs::path> out;
  for (const auto& [key, path] : audio.files)
    if (is_wfdb(path))
      for (fs::path& part : wfdb_parts(path))
        if (part != path) out.insert(std::move(part));  // else it is refused when it is read
  return out;
}

/// Label files by the recordings whose names they have, then those of several recordings.
template <class IsRecording>
LabelMap find_labels(const fs::path& label_directory, const fs::path& audio_directory,
                     const FileMap& audio, const IsRecording& is_recording,
                     const std::set<fs::path>& parts, Unpaired* unpaired) {
  FileMap exact;
  LabelMap out;
  exact.collect(
      label_directory,
      [&](const fs::path& path) {
        return is_label_file(path) && !is_recording(path) && !parts.contains(path);
      },
      [](const fs::path& path) { return path.filename(); });
  std::vector<fs::path> others;
  for (const auto& [name, path] : exact.files) {
    const fs::path folder = fs::path(name).parent_path();
    std::string key;
    for (const std::string& stem : {path.stem().string(), label_stem(path)}) {
      key = (folder / stem).lexically_normal().generic_string();
      if (audio.files.contains(key)) break;
    }
    if (audio.files.contains(key))
      out[key].push_back(path);
    else
      others.push_back(path);
  }
  for (const fs::path& path : others) {
    std::string why;
    if (shares_labels(path, audio, out, why)) continue;
    if (unpaired == nullptr)
      throw DataError(fmt::format(
          "{}: no audio file for these labels in {}{}", path.string(), audio_directory.string(),
          why.empty() ? "" : ", and they are not those of several: " + why));
    unpaired->labels.push_back(path);
  }
  for (const auto& [key, path] : audio.files)
    if (has_wfdb_annotations(path)) out.try_emplace(key, std::vector{path});
  return out;
}

/// The recordings of a file: one, or each of its sequences.
void add_recordings(Found found, std::vector<Found>& out) {
  const std::vector<std::string> parts = value_parts(found.recording.audio);
  if (parts.empty()) out.push_back(found);
  for (const std::string& part : parts) {
    out.push_back(found);
    out.back().recording.part = part;
    out.back().recording.id += "/" + part;
  }
}

void pair_files(const fs::path& audio_directory, const fs::path& label_directory,
                const Folder& folder, std::vector<Found>& out) {
  FileMap audio;
  const auto recordings = recordings_of_folder(audio_directory, folder.values);
  audio.collect(audio_directory, recordings, [](const fs::path& path) { return path.stem(); });
  const std::set<fs::path> parts = parts_of_records(audio);
  std::erase_if(audio.files, [&](const auto& file) { return parts.contains(file.second); });
  const LabelMap labels =
      find_labels(label_directory, audio_directory, audio, recordings, parts, folder.unpaired);
  for (const auto& [key, path] : audio.files) {
    const auto label = labels.find(key);
    LabelFiles files;
    if (label != labels.end())
      files = choose_label_file(label->second, folder.tier, folder.unpaired != nullptr, key);
    if (files.labels.empty() && folder.unpaired == nullptr)
      throw DataError(fmt::format("{}: no label file for this recording in {}", path.string(),
                                  label_directory.string()));
    if (files.labels.empty()) {
      folder.unpaired->recordings.push_back(path);
      folder.unpaired->texts.insert(folder.unpaired->texts.end(), files.others.begin(),
                                    files.others.end());
      continue;
    }
    Found found{{folder.prefix + key, path, files.labels, Split::kTrain},
                folder.split,
                {folder_in_corpus(path, audio_directory)}};
    found.recording.other_labels = std::move(files.others);
    add_recordings(std::move(found), out);
  }
}

std::map<std::string, fs::path> subdirectories(const fs::path& directory) {
  std::map<std::string, fs::path> out;
  for (const fs::path& path : list_directory(directory))
    if (path_is_directory(path)) out.emplace(lower(path.filename().string()), path);
  return out;
}

std::vector<Found> read_directory(const fs::path& directory, const ManifestOptions& options) {
  const std::map<std::string, fs::path> children = subdirectories(directory);
  std::vector<Found> out;
  for (const auto& [name, path] : children)
    if (const std::optional<Split> split = split_from_name(name))
      pair_files(path, path, {split, name + "/", options.values, options.unpaired, options.tier},
                 out);
  if (!out.empty()) return out;
  if (options.unpaired != nullptr) *options.unpaired = {};  // is looked for again
  const Folder rest{std::nullopt, "", options.values, options.unpaired, options.tier};
  if (children.contains("wav") && children.contains("lab")) {
    pair_files(children.at("wav"), children.at("lab"), rest, out);
  } else {
    pair_files(directory, directory, rest, out);
  }
  return out;
}

bool names_recordings(const TableRow& header) {
  return std::ranges::any_of(header.fields, [](const std::string& field) {
    return lower(field) == "id" || lower(field) == "audio";
  });
}

/// A manifest with its columns found.
class ManifestReader {
 public:
  ManifestReader(const fs::path& path, const ManifestOptions& options)
      : name_(path.string()), base_(path.parent_path()), options_(options) {
    const std::string text = to_utf8(read_file(path), name_);
    rows_ = parse_table(text, find_separator(text, name_, names_recordings), name_);
    if (rows_.empty())
      throw DataError(fmt::format("{}:1: the manifest is empty; expected a header line", name_));
    for (std::size_t i = 0; i < rows_[0].fields.size(); ++i)
      columns_.emplace(lower(rows_[0].fields[i]), i);
    if (!names_recordings(rows_[0]))
      throw DataError(
          fmt::format("{}:{}: no column \"id\" or \"audio\" in the header", name_, rows_[0].line));
    if (!options.group.empty()) group_ = GroupRule(options.group).column();
    if (group_ && !columns_.contains(*group_))
      throw DataError(
          fmt::format("{}:{}: no column {} in the header, which data.group names; it has {}", name_,
                      rows_[0].line, shown(options.group), fmt::join(rows_[0].fields, ", ")));
  }

  std::vector<Found> read() const {
    std::vector<Found> out;
    std::map<std::string, std::int64_t> seen;
    for (std::size_t i = 1; i < rows_.size(); ++i) {
      Found found = read_row(rows_[i]);
      if (found.recording.labels.empty()) {
        options_.unpaired->recordings.push_back(
            found.recording.command ? fs::path(found.recording.id) : found.recording.audio);
        continue;
      }
      out.push_back(std::move(found));
      const auto [at, fresh] = seen.emplace(out.back().recording.id, rows_[i].line);
      if (!fresh)
        throw DataError(fmt::format("{}:{}: the id {} stands in line {} already", name_,
                                    rows_[i].line, shown(at->first), at->second));
    }
    return out;
  }

  /// Whether files of numbers are named, and neither audio nor commands.
  bool names_values() const {
    bool some = false;
    for (std::size_t i = 1; i < rows_.size(); ++i) {
      const std::string audio = field(rows_[i], "audio");
      if (is_command(audio) || is_audio_file(audio)) return false;
      some = some || is_values_file(audio);
      if (!audio.empty()) continue;
      const std::string id = field(rows_[i], "id");
      const std::string split = lower(field(rows_[i], "split"));
      if (!beside(id, split, audio_endings()).empty()) return false;
      some = some || !beside(id, split, value_endings()).empty();
    }
    return some;
  }

 private:
  std::string field(const TableRow& row, const std::string& column) const {
    const auto found = columns_.find(column);
    if (found == columns_.end() || found->second >= row.fields.size()) return "";
    return row.fields[found->second];
  }

  Found read_row(const TableRow& row) const {
    if (row.fields.size() > rows_[0].fields.size())
      throw DataError(fmt::format("{}:{}: {} fields; the header has {}", name_, row.line,
                                  row.fields.size(), rows_[0].fields.size()));
    Found found;
    const std::string split = lower(field(row, "split"));
    found.split = split_from_name(split);
    if (columns_.contains("split") && !found.split)
      throw DataError(fmt::format("{}:{}: split {}; expected train, dev or test", name_, row.line,
                                  shown(split)));
    const std::string audio = field(row, "audio");
    found.recording.id = field(row, "id");
    if (is_command(audio)) {
      found.recording.command = command(row, audio, found.recording.id);
    } else {
      if (found.recording.id.empty()) found.recording.id = audio;
      if (found.recording.id.empty())
        throw DataError(fmt::format("{}:{}: neither an id nor an audio file", name_, row.line));
      found.recording.audio = audio.empty() ? seek_audio(row, found.recording.id, split)
                                            : existing(row, audio, "audio");
    }
    if (group_) found.place.column = field(row, *group_);
    if (!found.recording.command)
      found.place.folder = folder_in_corpus(found.recording.audio, base_);
    if (const std::string channel = field(row, "channel"); !channel.empty())
      found.recording.channel =
          audio_channel(channel, fmt::format("{}:{}: channel", name_, row.line));
    const std::string labels = field(row, "labels");
    found.names_labels = !labels.empty();
    if (found.names_labels)
      found.recording.labels = existing(row, labels, "label");
    else if (found.recording.command)
      seek_labels(row, {base_ / split / found.recording.id, base_ / found.recording.id},
                  found.recording);
    else
      seek_labels(row, {fs::path(found.recording.audio).replace_extension()}, found.recording);
    choose_part(row, found.recording);
    return found;
  }

  static bool is_command(const std::string& entry) {
    const std::size_t end = entry.find_last_not_of(" \t");
    return end != std::string::npos && entry[end] == '|';
  }

  AudioCommand command(const TableRow& row, const std::string& entry, const std::string& id) const {
    const std::string where = fmt::format("{}:{}", name_, row.line);
    if (id.empty())
      throw DataError(fmt::format("{}: {} is a command; a recording read by a command needs an id",
                                  where, shown(entry)));
    const std::size_t end = entry.find_last_not_of(" \t", entry.find_last_of('|') - 1);
    if (entry.find_last_of('|') == 0 || end == std::string::npos)
      throw DataError(fmt::format("{}: there is no command before the '|'", where));
    if (!options_.allow_commands)
      throw UsageError(fmt::format(
          "{}: {} is a command, which would run with your rights; read the manifest, and if you "
          "trust its author pass --allow-commands",
          where, shown(entry)));
    return {entry.substr(0, end + 1), base_, where};
  }

  fs::path existing(const TableRow& row, const std::string& entry, std::string_view what) const {
    if (is_command(entry))
      throw DataError(fmt::format("{}:{}: {} is a command; only audio can be read from commands",
                                  name_, row.line, shown(entry)));
    const fs::path path = base_ / entry;
    std::error_code failure;
    if (!fs::exists(path, failure))
      throw DataError(fmt::format("{}:{}: the {} file {} does not exist", name_, row.line, what,
                                  path.string()));
    refuse_part_of_record(row, path);
    return path;
  }

  /// The header of a WFDB record stands for its signals and annotations.
  void refuse_part_of_record(const TableRow& row, const fs::path& path) const {
    const fs::path header = fs::path(path).replace_extension(".hea");
    if (is_audio_file(path) || is_values_file(path) || is_label_file(path) || !path_exists(header))
      return;
    const std::string ending = extension_of(path.string());
    throw DataError(fmt::format(
        "{}:{}: {} is a part of a WFDB record; name its header {}{}", name_, row.line,
        path.string(), header.filename().string(),
        ending == ".dat" || ending.empty()
            ? ""
            : fmt::format(", and choose the annotator by the tier {}", shown(ending.substr(1)))));
  }

  /// Of a file with several sequences: that of the id.
  void choose_part(const TableRow& row, Recording& recording) const {
    if (!options_.values || recording.command) return;
    const std::vector<std::string> parts = value_parts(recording.audio);
    if (parts.empty()) return;
    const bool named = std::ranges::find(parts, recording.id) != parts.end();
    if (!named && parts.size() > 1)
      throw DataError(fmt::format("{}:{}: {} has {} sequences, and none is called {}", name_,
                                  row.line, recording.audio.string(), parts.size(),
                                  shown(recording.id)));
    recording.part = named ? recording.id : parts[0];
  }

  /// The file of a recording that is named by its id; empty when there is none.
  fs::path beside(const std::string& id, const std::string& split,
                  std::span<const std::string_view> endings) const {
    for (const fs::path& stem : {base_ / split / id, base_ / id})
      if (std::vector<fs::path> paths = files_with_endings(stem, endings); !paths.empty())
        return paths.front();
    return {};
  }

  fs::path seek_audio(const TableRow& row, const std::string& id, const std::string& split) const {
    const fs::path path = beside(id, split, options_.values ? value_endings() : audio_endings());
    if (!path.empty()) return path;
    throw DataError(
        fmt::format("{}:{}: no {} file {}{}", name_, row.line, options_.values ? "value" : "audio",
                    (base_ / split / id).string(),
                    fmt::join(options_.values ? value_endings() : audio_endings(), "|")));
  }

  /// Those of the first place that has some.
  void seek_labels(const TableRow& row, const std::vector<fs::path>& stems,
                   Recording& recording) const {
    const std::vector<std::string_view> endings = label_endings();
    std::vector<fs::path> found;
    const auto seek = [&](const fs::path& stem) {
      if (found.empty()) found = files_with_endings(stem, endings);
      std::erase(found, recording.audio);
    };
    for (const fs::path& stem : stems)
      for (const std::string_view suffix : label_suffixes()) seek(fs::path(stem) += suffix);
    if (!recording.audio.empty()) seek(recording.audio);  // x.cbin.not.mat
    if (found.empty() && has_wfdb_annotations(recording.audio)) found = {recording.audio};
    LabelFiles files =
        choose_label_file(found, options_.tier, options_.unpaired != nullptr, recording.id);
    recording.labels = files.labels;
    recording.other_labels = std::move(files.others);
    if (!recording.labels.empty() || options_.unpaired != nullptr) return;
    throw DataError(fmt::format("{}:{}: no label file {}{}", name_, row.line, stems[0].string(),
                                fmt::join(endings, "|")));
  }

  std::string name_;
  fs::path base_;
  ManifestOptions options_;
  std::vector<TableRow> rows_;
  std::map<std::string, std::size_t> columns_;
  std::optional<std::string> group_;  ///< the column of options_.group
};

/// Of endings that are tiers, such as .phn and .wrd, one is read of all recordings: a corpus of
/// words here and phones there would teach neither.
void settle_tiers(const fs::path& place, std::vector<Found>& found,
                  const ManifestOptions& options) {
  std::vector<Recording*> open;
  for (Found& item : found)
    if (!item.names_labels) open.push_back(&item.recording);
  const std::string ending = common_ending(open, options.tier);
  if (ending.empty()) return;
  std::erase_if(found, [&](Found& item) {
    if (item.names_labels || take_ending(item.recording, ending)) return false;
    if (options.unpaired == nullptr)
      throw DataError(fmt::format(
          "{}: labels end in {} for some recordings, and {} has {} only; add its labels, or leave "
          "such recordings out with data.unpaired = \"skip\"",
          place.string(), ending, item.recording.audio.string(), item.recording.labels.string()));
    options.unpaired->recordings.push_back(item.recording.audio);
    return true;
  });
}

/// The manifest that the path is or has; empty: there is none.
fs::path manifest_of(const fs::path& path) {
  if (!path_is_directory(path)) return path;
  for (const char* name : {"manifest.tsv", "manifest.csv"})
    if (path_exists(path / name)) return path / name;
  return {};
}

std::vector<Found> find_recordings(const fs::path& path, ManifestOptions options) {
  if (path.string().find('|') != std::string::npos)
    throw DataError(
        fmt::format("{}: a command; only files and directories can be read", path.string()));
  if (!path_exists(path))
    throw DataError(
        fmt::format("{}: does not exist; expected a manifest or a directory", path.string()));
  const fs::path manifest = manifest_of(path);
  if (options.are_values != nullptr) {
    options.values =
        options.values || (manifest.empty() ? is_folder_of_values(path)
                                            : ManifestReader(manifest, options).names_values());
    *options.are_values = options.values;
  }
  std::vector<Found> found =
      manifest.empty() ? read_directory(path, options) : ManifestReader(manifest, options).read();
  settle_tiers(path, found, options);
  if (options.group.empty()) return found;
  const GroupRule rule(options.group);
  for (Found& item : found) {
    try {
      item.recording.group = rule.group_of(item.recording, item.place);
    } catch (const DataError& error) {
      throw DataError(fmt::format("{}: {}", path.string(), error.what()));
    }
  }
  return found;
}

/// A folder of Parquet alone deserves more than that there are no recordings.
void refuse_parquet(const fs::path& folder) {
  if (!path_is_directory(folder)) return;
  for (const fs::path& path : list_directory(folder))
    if (extension_of(path.string()) == ".parquet")
      throw DataError(fmt::format("{}: {}", path.string(), kParquet));
}

}  // namespace
}  // namespace data

std::string_view name_of(Split split) noexcept {
  constexpr std::string_view kNames[] = {"train", "dev", "test"};
  return kNames[static_cast<std::size_t>(split)];
}

std::vector<Recording> load_manifest(const std::filesystem::path& path,
                                     const ManifestOptions& options) {
  std::vector<data::Found> found = data::find_recordings(path, options);
  const bool values = options.are_values != nullptr ? *options.are_values : options.values;
  if (found.empty() && options.unpaired != nullptr && !options.unpaired->texts.empty())
    throw DataError(fmt::format(
        "{}: {} recordings and no labels; {} and the like have no times, as orders of labels for "
        "segfuse align; labels say where each segment starts and ends",
        path.string(), options.unpaired->recordings.size(),
        options.unpaired->texts.front().string()));
  if (found.empty() && options.unpaired != nullptr && !options.unpaired->empty())
    throw DataError(fmt::format(
        "{}: {} recordings{} and {} label files, and none belong together; labels have the name of "
        "their recording, as in a.{} and a.TextGrid",
        path.string(), options.unpaired->recordings.size(),
        values ? " that are not audio (arrays, tables or sequences)" : "",
        options.unpaired->labels.size(), values ? "npy" : "wav"));
  if (found.empty()) data::refuse_parquet(path);
  if (found.empty() && options.are_values != nullptr)
    throw DataError(fmt::format(
        "{}: no recordings found; expected audio files, or arrays (.npy, .npz), tables (.csv, "
        ".tsv) or sequences (FASTA), with label files beside them",
        path.string()));
  if (found.empty())
    throw DataError(fmt::format("{}: no recordings found; expected {} files with label files",
                                path.string(), values ? "value" : "audio"));
  const bool given = data::apply_split_rule(found);
  if (options.split_was_given != nullptr) *options.split_was_given = given;
  std::vector<Recording> out;
  for (data::Found& item : found) out.push_back(std::move(item.recording));
  return out;
}

std::vector<Recording> recordings_of(std::span<const Recording> recordings, Split split) {
  std::vector<Recording> out;
  for (const Recording& recording : recordings)
    if (recording.split == split) out.push_back(recording);
  return out;
}

}  // namespace segfuse
