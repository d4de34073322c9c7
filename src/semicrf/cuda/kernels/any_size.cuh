#pragma once
// The program that is compiled once a stored type, for rows of any size. Passes that keep their
// state in registers are compiled for one shape each (sum/scan_kernel.cuh, best/scan_kernel.cuh).

#include "semicrf/cuda/kernels/best/chunks.cuh"
#include "semicrf/cuda/kernels/best/measure.cuh"
#include "semicrf/cuda/kernels/best/pass.cuh"
#include "semicrf/cuda/kernels/best/trace.cuh"
#include "semicrf/cuda/kernels/best/wide.cuh"
#include "semicrf/cuda/kernels/by_duration/best.cuh"
#include "semicrf/cuda/kernels/by_duration/counts.cuh"
#include "semicrf/cuda/kernels/by_duration/pass.cuh"
#include "semicrf/cuda/kernels/by_duration/team.cuh"
#include "semicrf/cuda/kernels/common/pointers.cuh"
#include "semicrf/cuda/kernels/common/prepare.cuh"
#include "semicrf/cuda/kernels/sum/chunks.cuh"
#include "semicrf/cuda/kernels/sum/durations.cuh"
#include "semicrf/cuda/kernels/sum/exact.cuh"
#include "semicrf/cuda/kernels/sum/frames.cuh"
#include "semicrf/cuda/kernels/sum/row_counts.cuh"
#include "semicrf/cuda/kernels/sum/rows.cuh"
#include "semicrf/cuda/kernels/sum/shared.cuh"
#include "semicrf/cuda/kernels/sum/transitions.cuh"
#include "semicrf/cuda/kernels/sum/wide.cuh"
