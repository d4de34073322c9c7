#include "learn/data/values/values.h"

#include <fmt/ranges.h>

#include <algorithm>

#include "base/os/file.h"
#include "learn/data/recordings.h"
#include "learn/data/text.h"
#include "segfuse/error.h"

namespace segfuse {
namespace data {
namespace {

constexpr std::string_view kEndings[] = {".npy", ".npz", ".csv", ".tsv", ".fa", ".fasta", ".fna"};

bool is_fasta(std::string_view ending) {
  return ending == ".fa" || ending == ".fasta" || ending == ".fna";
}

Tensor parse(std::string_view bytes, std::string_view name, const std::string& part) {
  const std::string ending = extension_of(name);
  if (ending == ".npy") return parse_npy(bytes, name);
  if (ending == ".npz") return parse_npz(bytes, name, part);
  if (ending == ".csv" || ending == ".tsv") return parse_number_table(bytes, name);
  if (is_fasta(ending)) return parse_fasta(bytes, name, part);
  if (ending == ".parquet") throw UsageError(fmt::format("{}: {}", name, kParquet));
  throw UsageError(fmt::format("{}: unknown kind of file of values; known are {}", name,
                               fmt::join(kEndings, " ")));
}

/// Whether a file in the folder or below is wanted.
template <class Wanted>
bool holds(const std::filesystem::path& folder, const Wanted& wanted) {
  return std::ranges::any_of(list_directory(folder), [&](const std::filesystem::path& path) {
    std::error_code failure;
    const bool link = is_symlink(symlink_status(path, failure));
    if (!link && path_is_directory(path)) return holds(path, wanted);
    return wanted(path);
  });
}

}  // namespace

bool is_folder_of_values(const std::filesystem::path& folder) {
  return !holds(folder, is_audio_file) && holds(folder, recordings_of_folder(folder, true));
}

void check_size(double frames, double columns, std::string_view name) {
  constexpr double kMaxColumns = 1e6;
  if (!(frames >= 1))
    throw DataError(fmt::format("{}: there are no values; expected at least one row", name));
  if (!(columns >= 1 && columns <= kMaxColumns))
    throw DataError(
        fmt::format("{}: {} columns of values; expected 1 to {}", name, columns, kMaxColumns));
}

}  // namespace data

std::span<const std::string_view> value_endings() { return data::kEndings; }

bool is_values_file(const std::filesystem::path& path) {
  return std::ranges::find(data::kEndings, data::extension_of(path.string())) !=
         std::end(data::kEndings);
}

std::function<bool(const std::filesystem::path&)> recordings_of_folder(
    const std::filesystem::path& folder, bool values) {
  if (!values) return is_audio_file;
  const bool tables = !data::holds(folder, [](const std::filesystem::path& path) {
    return is_values_file(path) && !is_label_file(path);
  });
  return [tables](const std::filesystem::path& path) {
    if (!is_values_file(path)) return false;
    return !is_label_file(path) || (tables && label_stem(path) == path.stem().string());
  };
}

std::vector<std::string> value_parts(const std::filesystem::path& path) {
  if (!data::is_fasta(data::extension_of(path.string()))) return {};
  const FileMap file(path);
  return data::fasta_names(file.text(), path.string());
}

Tensor parse_values(std::string_view bytes, std::string_view name, const std::string& part) {
  Tensor values = data::parse(bytes, name, part);
  data::check_finite(values, name);
  return values;
}

Tensor read_values(const std::filesystem::path& path, const std::string& part) {
  const FileMap file(path);
  return parse_values(file.text(), path.string(), part);
}

}  // namespace segfuse
