#pragma once
// What segmentations may look like: by the names of labels as a configuration has it, by numbers
// for gold segments, and as scores of 0 and -inf for the CRF.

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "segfuse/data.h"
#include "segfuse/tensor.h"

namespace segfuse::learn {

struct Grammar {
  std::map<std::string, std::vector<std::string>> next;  ///< of a label; absent: any may follow it
  std::vector<std::string> first, last;                  ///< of a recording; empty: any
  std::map<std::string, double> shortest, longest;       ///< seconds of a segment
  /// Whether it limits which labels follow each other, begin and end. With `joined`, neighbours of
  /// a label that has a longest duration would be a segment that is longer than that.
  bool orders(bool joined) const {
    return !next.empty() || !first.empty() || !last.empty() || (joined && !longest.empty());
  }
};

/// The same for C labels and frames.
struct Rules {
  std::vector<std::int64_t> shortest;   ///< (C) frames, at least 1
  std::vector<std::int64_t> longest;    ///< (C) frames; 0: any number
  std::vector<std::vector<bool>> next;  ///< [from][to]
  std::vector<bool> first, last;        ///< (C)
};
/// Durations are rounded to whole frames so that what lasts as long as the grammar allows is
/// allowed wherever it lies. DataError for a label that there is none of and rules that contradict
/// each other.
Rules rules_of(const Grammar& grammar, const Alphabet& labels, double hop_seconds, bool joined);

/// DataError that names the recording, the place and the rule, where its gold breaks one. Segments
/// of kUnknownLabel are left out.
void check_gold(const Rules& rules, const Alphabet& labels, const std::string& id,
                const std::vector<FrameSegment>& gold, double hop_seconds);

/// 0 where something is allowed, else -inf; all f32 [0] where nothing is forbidden.
struct OrderLimit {
  Tensor transition = Tensor::zeros(DType::kF32, {0});  ///< (1, C, C) [., from, to]
  Tensor initial = Tensor::zeros(DType::kF32, {0});     ///< (C)
  Tensor final = Tensor::zeros(DType::kF32, {0});       ///< (C)
  bool empty() const { return transition.size() == 0; }
};
/// `repeats`: labels (C) that may follow themselves whatever the rules say: pieces of one segment.
OrderLimit order_limit(const Rules& rules, const std::vector<bool>& repeats);

/// The scores that are added to the CRF's parameters.
struct Limits {
  Limits(Tensor of_durations, OrderLimit of_order = {})  // NOLINT: most models have no grammar
      : duration(std::move(of_durations)), order(std::move(of_order)) {}
  /// By the names of the inputs of Segmenter::training(); empty ones are left out.
  std::vector<std::pair<std::string, Tensor>> named() const;

  Tensor duration;  ///< (K, C); [0] for heads without durations
  OrderLimit order;
};
/// Whether an input of that name holds -inf on purpose.
bool is_limit(const std::string& input);

}  // namespace segfuse::learn
