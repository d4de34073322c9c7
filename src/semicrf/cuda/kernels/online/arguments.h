#pragma once
// What the kernels of CudaOnlineDecoder take, as plain data.

#include "semicrf/cuda/kernels/common/arguments.h"
#include "semicrf/cuda/kernels/scope/arguments.h"

namespace segfuse::semicrf::gpu {

/// A boundary and the label of the segment that ends there; boundary 0 has label -1.
struct Junction {
  int t;
  int c;
};

/// Of the row that arrives, in device memory.
struct OnlineState {
  int frames;         ///< that have arrived
  int offset;         ///< frames - offset is the window's last boundary
  int next_check;     ///< frames at which a common beginning is looked for
  int history_first;  ///< boundary of the history's first row
  int decided_count;  ///< segments in the log
  int status;         ///< of the row that was finished last
  Junction decided;
  double log_partition;  ///< of the row, if it ended now
  double best_score;
};

struct OnlineCall {
  Sizes sizes;  ///< frames: of this piece
  Scores scores;
  Loaded shared;
  LogLattice sum;    ///< a window of `capacity` frames
  LogLattice best;   ///< the same with max
  double* longer;    ///< (K+1, C) the best score of any duration above k frames
  int* open_frames;  ///< (C) of the best segment beyond K
  int* duration;     ///< (history, C) frames of the last segment in the best way into a junction
  int* before;       ///< (history, C) label before a segment of c that starts at t > 0
  int* marked;       ///< (history, C)
  int* log;          ///< (history, 3) decided segments: start, frames, label
  OnlineState* state;
  double* emission;  ///< (n, C) of this piece
  double* start;     ///< (n, C) or null
  double* end;       ///< (n, C) or null
  int capacity;
  int max_delay;
  int* old_duration;  ///< when the history moves
  int* old_before;
  unsigned long long* faults;
  int frames_before;  ///< this piece
};

}  // namespace segfuse::semicrf::gpu
