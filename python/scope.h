#pragma once
// Which segmentations a call sums over: constraints and geometric tails.

#include <optional>
#include <vector>

#include "problem.h"
#include "segfuse/semicrf_tools.h"

namespace segfuse::python {

/// semicrf::Scope over the caller's arrays, which it keeps alive. They lie on the CPU.
class Scope {
 public:
  /// Each may be None: allowed (B, T, C) and transition (C, C) of uint8, min_duration and
  /// max_duration (C) of int32, label (B, T) of int32, boundary (B, T) of int8, tail (C) of
  /// float64.
  Scope(nb::handle allowed, nb::handle transition, nb::handle min_duration, nb::handle max_duration,
        nb::handle label, nb::handle boundary, nb::handle tail);
  /// All labels and boundaries of segmentations that tile the problem's rows, of any durations;
  /// tail may be None.
  Scope(const Problem& problem, const Segments& known, nb::handle tail);
  Scope(const Scope&) = delete;
  Scope(Scope&&) = delete;
  ~Scope() = default;

  const semicrf::Scope& scope() const { return scope_; }

 private:
  template <class T, int N>
  semicrf::View<const T, N> take(const char* name, const char* axes, nb::handle object);

  std::vector<Input> arrays_;
  std::optional<semicrf::KnownFrames> known_;
  semicrf::Scope scope_;
};

}  // namespace segfuse::python
