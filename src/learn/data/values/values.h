#pragma once
// Recordings that are tables of numbers.

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "learn/data/text.h"
#include "segfuse/data/formats.h"

namespace segfuse::data {

/// Each gives (T, D) f32 without checking for NaN.
Tensor parse_npy(std::string_view bytes, std::string_view name);
/// The file in a ZIP archive that is an array named `part`, or the only one.
Tensor parse_npz(std::string_view bytes, std::string_view name, const std::string& part);
Tensor parse_number_table(std::string_view bytes, std::string_view name);
/// Whether a first row has names of columns, which are no numbers; nobody calls a column NaN.
bool names_columns(const TableRow& row);
/// A row of such a table. DataError for another number of fields and for what is no number.
void append_numbers(const TableRow& row, std::size_t columns, std::string_view name,
                    std::vector<float>& to);
Tensor parse_fasta(std::string_view bytes, std::string_view name, const std::string& part);
/// The names of the sequences, in their order; DataError for a name that comes twice.
std::vector<std::string> fasta_names(std::string_view bytes, std::string_view name);

/// Advice for a file that none of these reads.
inline constexpr std::string_view kParquet =
    "Parquet is not read; read it with pyarrow in Python, and train on its columns as arrays: "
    "segfuse.train(recordings=arrays, labels=...); see docs/python_models.md";

/// Whether a folder has recordings, and none of them audio.
bool is_folder_of_values(const std::filesystem::path& folder);

/// DataError unless T is at least one and D from 1 to a million.
void check_size(double frames, double columns, std::string_view name);

}  // namespace segfuse::data
