#pragma once
// What the kernels take, as plain data: read by the host and by the device compiler alike, so no
// header is included here.
//
// Letters: B rows, T frames, C classes, K longest duration. A boundary t lies before frame t,
// t = 0..L. "Factor" means 2^(score * log2(e)), a score in the linear domain.

namespace segfuse::semicrf::gpu {

/// How rows are cut (common/cuts.cuh).
inline constexpr int kShortestSlice = 64;
inline constexpr int kSlices = 256;     ///< of rows whose slices are shorter than a long one
inline constexpr int kLongSlice = 512;  ///< frames; rows with more get more slices
inline constexpr int kMaxSlices = 2048;
inline constexpr int kChunksOfCarry = 64;
inline constexpr int kFramesOfGoldPart = 1024;
inline constexpr int kMaxGoldParts = 64;
inline constexpr int kMaxWays = 60000;
/// Boundaries for which a thread recovers durations; chunks of the best segmentation begin with
/// multiples of it.
inline constexpr int kRecovered = 4;
/// The same for labels, and the labels that are tried before threads wait for each other.
inline constexpr int kBoundariesOfLabel = 8;
inline constexpr int kLabelsAtOnce = 32;
inline constexpr int kThreadsOfLabels = 192;  ///< at most; two labels each

/// Elements of device memory, as the caller laid them out.
struct Strided {
  const void* data;
  long long stride[3];
};
struct StridedOut {
  void* data;
  long long stride[3];
};

/// Rows' lengths: at most one pointer is set; none: every row has T frames.
struct RowLengths {
  const long long* wide;
  const int* narrow;
  long long stride;
};

struct Sizes {
  int batch;
  int frames;
  int classes;
  int max_duration;
  int by_duration;  ///< transition has K slices
};

/// The caller's scores.
struct Scores {
  Strided emission;    ///< (B, T, C)
  Strided transition;  ///< (slices, C, C)
  Strided duration;    ///< (K, C)
  Strided initial;     ///< (C) or null
  Strided final;       ///< (C) or null
  Strided start;       ///< (B, T, C) or null
  Strided end;         ///< (B, T, C) or null
};

/// Where a fault of the input was seen first, by input: the smallest linear index, or ~0.
enum Fault {
  kFaultEmission,
  kFaultStart,
  kFaultEnd,
  kFaultTransition,
  kFaultDuration,
  kFaultInitial,
  kFaultFinal,
  kFaultLength,
  kFaultLabel,  ///< by frame, as the three after it
  kFaultAfterIgnored,
  kFaultLongRun,
  kFaultNoStart,  ///< a label that changes where no segment begins
  kFaultGold,
  kFaultKnownLabel,  ///< by frame, as the one after it
  kFaultKnownBoundary,
  kFaultTail,
  kFaultLimit,    ///< a limit on durations beyond K, with a tail, by label
  kFaultLengths,  ///< two models whose rows differ
  kFaultRoom,     ///< segments that do not fit into the caller's arrays: how many there are
  kFaults
};

/// Row flags.
enum RowFlag {
  kNeedsExact = 1,    ///< out of the linear domain's range: the log-domain kernel redoes the row
  kRedoForward = 2,   ///< the forward pass's chunks do not fit together: the next round redoes it
  kRedoBackward = 4,  ///< the same, backward; both shifted by kRoundBits for each round
  kInexact = 8,       ///< best segmentation: some sum of a cut pass may have been rounded
};
constexpr int kRoundBits = 3;

/// A pass cut in time. Chunk j covers steps [j steps, (j + 1) steps) of the pass; but the first, it
/// begins `warm_up` steps earlier from a guess, and what the guess led to is compared with what the
/// chunk before it found. Sums: how a row is cut follows from its own length (common/cuts.cuh).
struct Chunks {
  int count;            ///< of the longest row that may come; 1: not cut
  int least;            ///< sums: frames of a chunk, at least
  int steps;            ///< best segmentation: of every chunk
  int warm_up;          ///< a multiple of the passes' stride, at least K
  int round;            ///< from 1 on: of rows alone whose chunks of the round before do not fit
  double* source;       ///< (B, 2, count, warm_up + 1, C) sources of the warm-up
  double* value;        ///< the same, values
  int* scale;           ///< (B, 2, count, warm_up + 1)
  double* ratio;        ///< (B, 2, count) the chunk before it over this one
  int* ratio_exponent;  ///< (B, 2, count)
  double* carry;        ///< (B, 2, carries) the product of ratios up to every kChunksOfCarry-th
  int* carry_exponent;  ///< (B, 2, carries)
  int carries;          ///< 0: there are few chunks
};

/// What the passes leave for the kernels after them. Linear rows: value = stored * ratio * 2^scale;
/// exact rows: log2 of the value, and no scale.
struct Lattice {
  double* alpha;        ///< (B, T+1, C) prefixes whose last segment of label c ends at t
  double* gamma;        ///< (B, T+1, C) prefixes followed by a segment of label c
  double* delta;        ///< (B, T+1, C) suffixes that begin with a segment of label c at t
  double* beta;         ///< (B, T+1, C) suffixes after a segment of label c that ends at t
  int* forward_scale;   ///< (B, T+1)
  int* backward_scale;  ///< (B, T+1)
  double*
      forward_ratio;  ///< (B, T+1) what a pass cut in time was found too small by; null: not cut
  double* backward_ratio;  ///< (B, T+1)
  double* partition;       ///< (B) linear rows: mantissa part of Z; exact rows: log2 Z
  int* last_scale;         ///< (B) linear rows: forward_scale at the row's end
  int* flags;              ///< (B) RowFlag bits
};

/// What the kernels keep where transitions depend on the new segment's duration.
struct ByDuration {
  double* weight;   ///< (B, T+1, C) 2^(alpha - peak)
  double* peak;     ///< (B, T+1) the largest alpha, log2
  double* factors;  ///< (B, K, C) of the segments that begin at the backward pass's boundary
  int direct;       ///< form no sum in the linear domain
};

/// How blocks share one pass (common/team.cuh).
struct Team {
  int members;        ///< blocks of a pass; 0: none are used
  int per_member;     ///< classes of a block, fewer in the last; by duration: parts of durations
  int state_shared;   ///< a block's values of its classes (by duration: of its durations) fit its
                      ///< shared memory
  int window_shared;  ///< and its durations and pending sums do; by duration: its windows
  int matrix_shared;  ///< and its part of the matrix does
  int shared_bytes;   ///< what all that takes of a block's shared memory
  int threads;        ///< of a block, where transitions do not depend on durations
  double* state;      ///< (B, 2, members) of the blocks' values, where they do not fit
  unsigned* counter;  ///< (B, 2) zero; best segmentation: (B, chunks)
  double* exchange;   ///< (B, 2, chunks, 2, C, 4 words), zero: TeamValues; best segmentation:
                      ///< (B, chunks, 2, C, 4 words); by duration: (B, 2, 3, 2, parts, C) shares
  double* into;       ///< (C, C) factors of transitions, [to, from]; best segmentation: scores
};

/// Factors of all scores, and the powers of two taken out of them.
struct Factors {
  double* emission;     ///< (B, T, C) times 2^-frame_exponent
  int* frame_exponent;  ///< (B, T)
  double* start;        ///< (B, T, C) or null
  double* end;          ///< (B, T, C) or null
  double* transition;   ///< (slices, C, C)
  double* duration;     ///< (K, C)
  double* initial;      ///< (C) times 2^-exponents[0]
  double* final;        ///< (C) times 2^-exponents[1]
  int* exponents;       ///< (4): initial, final; [2] is set if a shared score needs the exact
                        ///< path, [3] if a transition does
};

/// Gold segmentations, packed as SegmentationsView.
struct Gold {
  const long long* row_pointer;  ///< (B+1), null: no gold
  const int* start;
  const int* duration;
  const int* label;
  long long count;
};

/// Labels per frame (B, T): one of the first two pointers is set.
struct FrameLabels {
  const long long* wide;
  const int* narrow;
  long long stride[2];
  const unsigned char* begins;  ///< (B, T) not 0 where a segment begins; null: where labels change
  long long begins_stride[2];
  long long ignore;
  long long* frames;  ///< (B) to be written: frames of each row; null: not wanted
  int split;          ///< cut long runs instead of reporting them
};

/// A frame of the gold path: label, and whether a segment begins or ends there.
inline constexpr int kGoldStart = 1 << 29;
inline constexpr int kGoldEnd = 1 << 30;
inline constexpr int kGoldLabel = kGoldStart - 1;

/// One value a row, `stride` elements apart; null: not wanted.
template <class T>
struct RowOutput {
  T* data;
  long long stride;
};

struct RowOutputs {
  RowOutput<double> log_partition;
  RowOutput<double> score;
  RowOutput<double> loss;
  RowOutput<double> entropy;        ///< posteriors only
  RowOutput<unsigned char> status;  ///< RowStatus
};

struct GradientOutputs {
  StridedOut emission;
  StridedOut transition;
  StridedOut duration;
  StridedOut initial;
  StridedOut final;
  StridedOut start;
  StridedOut end;
  StridedOut boundary;      ///< (B, T): posteriors only
  StridedOut row_duration;  ///< (B, K, C): posteriors only
};

/// The best path, as back pointers and as packed segments.
struct Best {
  RowOutput<double> score;
  int* duration;           ///< (B, T+1, C) of the best segment of label c that ends at t
  int* label;              ///< (B, T+1, C) before the best segment of label c that starts at t
                           ///< (by duration: that ends at t)
  int* magnitude;          ///< (B+1) biased exponent of a row's largest score, of the shared ones
  double* base;            ///< (B, T+1) of alpha and gamma; passes in registers
  double* ring;            ///< (B, chunks, 2, K, C) see ring_of
  double* ring_base;       ///< (B, chunks, 2, K)
  int* wrong;              ///< (B, chunks) a chunk to be done again
  int parts;               ///< parts in which ways back are followed
  int part_frames;         ///< boundaries of a part, at least K, more in very long rows
  int part_overlap;        ///< boundaries behind it from which it is entered
  int* entry;              ///< (B, parts, 2) boundary and label where a part was entered
  int* exit;               ///< (B, parts, 2) and where it was left
  int* part_count;         ///< (B, parts) segments that end in a part
  int* part_first;         ///< (B, parts) segments of the row before it
  double* part_score;      ///< (B, parts)
  int* count;              ///< (B) segments of a row
  int* trace;              ///< (B, T, 3) start, duration, label; by part, the last segment first
  long long* row_pointer;  ///< (B+1), packed from here on
  int* packed_start;
  int* packed_duration;
  int* packed_label;
};

/// What one of several devices does of a call's only row (split/ranges.h): blocks count from the
/// first of each range. What was found of other parts comes from the host.
struct Part {
  int frame, frame_end;        ///< frames whose factors are needed here
  int chunk[2], chunk_end[2];  ///< of the forward and of the backward pass
  int slice, slice_end;        ///< time slices
  int ends;                    ///< bits: the row begins here, it ends here
  double shift;                ///< sum of the exponents of all other slices' frames
  double ratio[2];             ///< product of the ratios of chunks up to chunk[d]
  int ratio_exponent[2];
  double partition;  ///< of the row, as the three after it
  double weight;
  int last_scale;
  int flags;
};

/// All that a call hands to its kernels.
struct Call {
  Sizes sizes;
  Scores scores;
  RowLengths lengths;
  Factors factors;
  Lattice lattice;
  ByDuration by_duration;
  Team team;
  Gold gold;
  int* gold_frames;       ///< (B, T) label | kGoldStart | kGoldEnd; null: no gold
  double* gold_score;     ///< (B, gold_parts), -inf where a segment does not fit
  int gold_parts;         ///< blocks that share the gold segments of the longest row
  const double* weights;  ///< (B) or null
  long long weight_stride;
  unsigned long long* faults;  ///< (kFaults)
  RowOutputs rows;
  GradientOutputs gradients;
  double* row_weight;          ///< (B) what a row's gradient is multiplied by; 0: none
  double* cover;               ///< (B, slices, C) label posterior mass carried into a time slice
  double* expected;            ///< (B, slices) expected score of a time slice's frames
  double* transition_partial;  ///< (slots, slices of K or 1, C, C)
  double* duration_partial;    ///< (slots, K, C)
  double* pending;             ///< (B, 2, K, C) sources of the exact path; best segmentation by
                               ///< teams: (B, chunks, 2, K, C) scores and, as integers, starts
  int slices;                  ///< time slices that a row is cut into, at most
  int slots;                   ///< partial sums of shared gradients: slot_groups * slots of a group
  int slot_groups;             ///< runs of rows that have slots of their own
  int slot_frames;             ///< frames for one slot of a row; 0: rows have all their group's
  Best best;
  FrameLabels labels;
  Chunks chunks;
  Part part;
};

}  // namespace segfuse::semicrf::gpu
