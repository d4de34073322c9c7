#pragma once
// Which of the files beside a recording has its labels.

#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "segfuse/data/formats.h"

namespace segfuse::data {

/// The endings of all formats of labels, each once.
std::vector<std::string_view> label_endings();

/// The files that are called `stem` and one of the endings, in the order of these; an ending may be
/// written as it is, in lower or in upper case.
std::vector<std::filesystem::path> files_with_endings(const std::filesystem::path& stem,
                                                      std::span<const std::string_view> endings);

struct LabelFiles {
  std::filesystem::path labels;  ///< empty: none
  std::vector<std::filesystem::path> others;
};

/// Of the files that may be the labels of a recording: texts without times (orders of labels, what
/// was said) are none where others are, nor where the recording may go without. Of those that are
/// left `tier` chooses by the ending; see ManifestOptions::tier. DataError where several are left.
LabelFiles choose_label_file(std::vector<std::filesystem::path> files, const std::string& tier,
                             bool may_be_none, std::string_view recording);

/// The ending, with its dot, that the recordings' labels should have where endings are tiers: that
/// of `tier`, else the finest. Empty where there is nothing to decide.
std::string common_ending(std::span<Recording* const> recordings, const std::string& tier);
/// Makes the file with that ending the recording's labels. False where labels have an ending that
/// is another tier.
bool take_ending(Recording& recording, const std::string& ending);

/// What chooses such a file as a tier: its ending without the dot, in lower case; empty for files
/// of formats whose endings are no tiers.
std::string tier_of_file(const std::filesystem::path& labels);

/// A sentence for each file with labels of recordings, or sequences, that are not among these.
std::vector<std::string> labels_of_nobody(std::span<const Recording> recordings);

/// Recordings that have labels, but none of this tier, move to those without: WFDB records without
/// such an annotator, and those whose labels are of a format none of whose files has the tier,
/// where another format's has. Formats without tiers have the labels of any. DataError where
/// `unpaired` is null.
void leave_out_other_tiers(std::vector<Recording>& recordings, const std::string& tier,
                           Unpaired* unpaired);

/// A sentence where label files that are tiers, such as .phn, are other ones than the chosen tier.
std::vector<std::string> labels_of_other_tiers(std::span<const Recording> recordings,
                                               const std::string& tier);

}  // namespace segfuse::data
