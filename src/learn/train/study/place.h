#pragma once
// The directory of a study.

#include <filesystem>

#include "learn/train/study/plan.h"

namespace segfuse::learn {

inline constexpr const char* kStudyFile = "study.json";

/// UsageError where the study would replace or mix with what is there, and where several ranks
/// would all begin it.
void check_place(const TrainOptions& training, const StudyPlan& plan);

}  // namespace segfuse::learn
