#pragma once
// What a region means for children, and what to do about it.

#include "doctor/fork/judge/forecast.h"
#include "doctor/fork/judge/owner.h"
#include "doctor/fork/read/software.h"
#include "segfuse/doctor/fork.h"

namespace segfuse::doctor {

enum class Mechanism { kKept, kWiped, kPinned };

/// Fills risk, why and remedy of `region`.
void judge(ForkRegion& region, Mechanism mechanism, const Owner& owner, const Vma& vma,
           const ForkForecast& forecast, const Software& software);

}  // namespace segfuse::doctor
