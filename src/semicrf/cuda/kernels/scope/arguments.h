#pragma once
// What the kernels of CudaInference take, as plain data. Two models may be
// worked on at once: with and without constraints, or the two of a divergence.

#include "semicrf/cuda/kernels/common/arguments.h"

namespace segfuse::semicrf::gpu {

/// Constraints and a tail, as the caller laid them out; null where absent.
struct Known {
  Strided allowed;       ///< (B, T, C) bytes
  Strided transition;    ///< (C, C) bytes
  Strided min_duration;  ///< (C) ints
  Strided max_duration;  ///< (C) ints
  Strided label;         ///< (B, T) ints
  Strided boundary;      ///< (B, T) signed bytes
  Strided tail;          ///< (C) doubles
};

/// Scores within a scope, dense, in doubles. What lies past a row's length is not set.
struct Loaded {
  double* emission;       ///< (B, T, C)
  double* start;          ///< (B, T, C) or null
  double* end;            ///< (B, T, C) or null
  double* transition;     ///< (slices, C, C)
  double* duration;       ///< (K, C)
  double* initial;        ///< (C)
  double* final;          ///< (C)
  double* tail;           ///< (C) or null
  unsigned char* forced;  ///< (B, T) or null: a segment must start here
};

/// Sums over prefixes and suffixes, in natural logarithms, relative to a whole number by boundary.
struct LogLattice {
  double* value;   ///< (B, T+1, C) prefixes whose last segment has label c and ends at t >= 1
  double* source;  ///< (B, T, C) prefixes up to t and the start score of a segment of c at t
  double* open;    ///< (B, T+1, C) with a tail: prefixes inside a segment of at least K frames
  double* base;    ///< (B, T+1)
  double* log_partition;  ///< (B)
  double* sink;           ///< (B, T+1, C) suffixes from t and the end score of frame t-1
  double* open_rest;      ///< (B, T+1, C) with a tail: suffixes that may go on in a long segment
  double* rest_base;      ///< (B, T+1)
  double* content;        ///< (B, K, C) of the segments in the window, by far boundary modulo K
  double* terms;          ///< (B, K, C)
  double* entered;        ///< (B, K, C), where transitions depend on durations
  double* inner;          ///< (B, C) suffixes that begin with a segment of c, without start score
  double* rest;           ///< (B, C) suffixes after a segment of c
};

/// Expected counts of each row; null where not wanted.
struct RowCounts {
  double* label;       ///< (B, T, C)
  double* start;       ///< (B, T, C)
  double* end;         ///< (B, T, C)
  double* transition;  ///< (B, slices, C, C)
  double* duration;    ///< (B, K, C)
  double* tail;        ///< (B, C)
  double* covered;     ///< (B, C) running label posterior
};

/// Packed lists of segmentations.
struct ListOutputs {
  long long* list_pointer;  ///< (B+1)
  long long* row_pointer;   ///< (B n + 1)
  int* start;
  int* duration;
  int* label;
  double* score;   ///< (B n)
  long long room;  ///< of start, duration and label
  int each;        ///< n
  int* made;       ///< (B) segmentations of a row
  int* count;      ///< (B, n) segments of each
};

/// One of the best ways into a state.
struct Way {
  double score;
  int duration;  ///< of the last segment
  int label;     ///< before it
  int rank;      ///< among the ways into what is before it
  int unused;
};

/// The best ways into all states, at most n each, best first.
struct BestLists {
  Way* arrive;      ///< (B, T+1, C, n) segments of c that end at t
  int* arrived;     ///< (B, T+1, C) how many
  Way* enter;       ///< (B, K, C, n) segments of c that start at t, t modulo K
  int* entered;     ///< (B, K, C)
  Way* open;        ///< (B, 2, C, n) segments of at least K frames up to t, t modulo 2
  int* opened;      ///< (B, 2, C)
  Way* last;        ///< (B, n) whole segmentations; duration is not set
  int* heads;       ///< (B, C, choices) next rank of each choice
  double* content;  ///< (B, K, C) as the lattice's
  int choices;
  int each;  ///< n, or the number of segmentations where that is less
};

/// Probabilities of boundaries within a tolerance, labels of least risk.
struct MarginalOutputs {
  StridedOut near;   ///< (B, T)
  double* within;    ///< (B, T) the same
  double* segments;  ///< (B, T, most) P(a segment of any label, s and frames)
  double* from;      ///< (B, T+1)
  double* until;     ///< (B, T+1)
  int most;
  int tolerance;
  int* label;  ///< (B, T)
  long long label_stride[2];
  int ignore;
};

/// Potentials with constraints written into them, contiguous, in the stored type; null where they
/// are the caller's.
struct Constrained {
  void* emission;
  void* transition;
  void* duration;
};

/// Gradients of a second call, contiguous, in the stored type; null where not wanted.
struct GradientCopies {
  void* emission;
  void* transition;
  void* duration;
  void* initial;
  void* final;
  void* start;
  void* end;
};

/// All that a call hands to its kernels.
struct ScopeCall {
  Sizes sizes;
  Scores scores[2];
  RowLengths lengths[2];
  Known known;  ///< of the first model; the second has the tail only
  Loaded loaded[2];
  LogLattice lattice[2];
  RowCounts counts[2];
  int models;             ///< 1 or 2
  const double* weights;  ///< (B) or null
  long long weight_stride;
  double* row_weight;  ///< (B) what a row's counts are multiplied by; 0: none
  unsigned long long* faults;
  RowOutputs rows;
  RowOutput<unsigned char> model_status;  ///< of the first model alone
  RowOutput<double> cross_entropy;
  RowOutput<double> divergence;
  int* forbidden;  ///< (B) set where the second model forbids what the first allows
  GradientOutputs gradients;
  RowOutput<double> tail_gradient;
  ListOutputs lists;
  unsigned long long seed;
  long long first_row;
  BestLists best;
  MarginalOutputs marginals;
  Constrained constrained;
  GradientCopies copies;
};

}  // namespace segfuse::semicrf::gpu
