#pragma once
// The program of CudaInference for what does not depend on the stored type (load.cuh has the rest).

#include "semicrf/cuda/kernels/scope/best.cuh"
#include "semicrf/cuda/kernels/scope/marginals.cuh"
#include "semicrf/cuda/kernels/scope/pass.cuh"
#include "semicrf/cuda/kernels/scope/sample.cuh"
