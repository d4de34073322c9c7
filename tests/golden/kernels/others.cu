// Kernels of many kinds, for `segfuse doctor kernel` against what the assembler says of them.

#define KERNEL extern "C" __global__ void

KERNEL nothing() {}

KERNEL copy(float* to, const float* from, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) to[i] = from[i];
}

KERNEL axpy_double(double* y, const double* x, double a, int n) {
  for (int i = threadIdx.x; i < n; i += blockDim.x) y[i] += a * x[i];
}

KERNEL row_sums(float* sums, const float* rows, int n) {
  __shared__ float parts[256];
  float sum = 0;
  for (int i = threadIdx.x; i < n; i += 256) sum += rows[blockIdx.x * n + i];
  parts[threadIdx.x] = sum;
  __syncthreads();
  for (int step = 128; step > 0; step /= 2) {
    if (threadIdx.x < step) parts[threadIdx.x] += parts[threadIdx.x + step];
    __syncthreads();
  }
  if (threadIdx.x == 0) sums[blockIdx.x] = parts[0];
}

KERNEL transpose(float* to, const float* from, int n) {
  __shared__ float tile[32][33];
  const int x = blockIdx.x * 32 + threadIdx.x, y = blockIdx.y * 32 + threadIdx.y;
  tile[threadIdx.y][threadIdx.x] = from[y * n + x];
  __syncthreads();
  to[(blockIdx.x * 32 + threadIdx.y) * n + blockIdx.y * 32 + threadIdx.x] =
      tile[threadIdx.x][threadIdx.y];
}

KERNEL asked_at_the_launch(float* x) {
  extern __shared__ float buffer[];
  buffer[threadIdx.x] = x[threadIdx.x];
  __syncthreads();
  x[threadIdx.x] = buffer[threadIdx.x ^ 1];
}

KERNEL histogram(unsigned* counts, const unsigned char* bytes, int n) {
  __shared__ unsigned own[256];
  own[threadIdx.x & 255] = 0;
  __syncthreads();
  for (int i = threadIdx.x; i < n; i += blockDim.x) atomicAdd(&own[bytes[i]], 1u);
  __syncthreads();
  if (threadIdx.x < 256) atomicAdd(&counts[threadIdx.x], own[threadIdx.x]);
}

KERNEL float_atomics(float* sum, double* sums, const float* x, int n) {
  for (int i = threadIdx.x; i < n; i += blockDim.x) {
    atomicAdd(sum, x[i]);
    atomicAdd(sums, double(x[i]));
  }
}

KERNEL tickets(int* next, int* mine) { mine[threadIdx.x] = atomicAdd(next, 1); }

KERNEL lock(int* word, int* data) {
  while (atomicCAS(word, 0, 1) != 0) {}
  *data += 1;
  atomicExch(word, 0);
}

KERNEL largest(int* most, const int* x, int n) {
  for (int i = threadIdx.x; i < n; i += blockDim.x) atomicMax(most, x[i]);
}

KERNEL named_barriers(float* x) {
  __shared__ float s[64];
  s[threadIdx.x & 63] = x[threadIdx.x];
  asm volatile("bar.sync 5, 64;" ::: "memory");
  x[threadIdx.x] = s[63 - (threadIdx.x & 63)];
}

KERNEL barrier_by_register(float* x, int which) {
  asm volatile("bar.sync %0, 64;" ::"r"(which) : "memory");
  x[threadIdx.x] += 1;
}

KERNEL voting(unsigned* x) {
  x[threadIdx.x] = __syncthreads_count(x[threadIdx.x] > 3) + __ballot_sync(~0u, threadIdx.x & 1);
}

KERNEL indexed_array(float* x, const int* which, int n) {
  float values[40];
  for (int i = 0; i < 40; ++i) values[i] = x[i];
  for (int i = 0; i < n; ++i) values[which[i]] += 1;
  for (int i = 0; i < 40; ++i) x[i] = values[i];
}

// More values than registers.
template <int kCount>
__device__ __forceinline__ void crowd(float* x, const float* y, int n) {
  float a[kCount];
#pragma unroll
  for (int i = 0; i < kCount; ++i) a[i] = y[i * n + threadIdx.x];
  for (int k = 0; k < n; ++k) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) a[i] = a[i] * a[(i + 1) % kCount] + float(k);
  }
#pragma unroll
  for (int i = 0; i < kCount; ++i) x[i * n + threadIdx.x] = a[i];
}

KERNEL __launch_bounds__(1024) spills_much(float* x, const float* y, int n) { crowd<128>(x, y, n); }
KERNEL __launch_bounds__(1024) spills_little(float* x, const float* y, int n) {
  crowd<60>(x, y, n);
}
KERNEL __launch_bounds__(256) fits(float* x, const float* y, int n) { crowd<60>(x, y, n); }

KERNEL __launch_bounds__(1024)
    spills_and_indexes(float* x, const float* y, const int* which, int n) {
  float b[50];
  for (int i = 0; i < 50; ++i) b[i] = y[i];
  for (int k = 0; k < n; ++k) b[which[k]] += 1;
  crowd<90>(x, y, n);
  for (int i = 0; i < 50; ++i) x[i] += b[(i * n) % 50];
}

KERNEL __launch_bounds__(1024) spills_double(double* x, const double* y, int n) {
  double a[50];
#pragma unroll
  for (int i = 0; i < 50; ++i) a[i] = y[i * n + threadIdx.x];
  for (int k = 0; k < n; ++k) {
#pragma unroll
    for (int i = 0; i < 50; ++i) a[i] = a[i] * a[(i + 1) % 50] + k;
  }
#pragma unroll
  for (int i = 0; i < 50; ++i) x[i * n + threadIdx.x] = a[i];
}

__device__ __noinline__ float helper(float* a, int n) {
  __shared__ float kept[10];
  float l[20];
  for (int i = 0; i < 20; ++i) l[i] = a[i];
  kept[threadIdx.x % 10] = a[n];
  __syncthreads();
  atomicAdd(a, 1.0f);
  return l[n] + kept[n % 10];
}
KERNEL calls(float* x, int n) { x[n] = helper(x, n); }

__constant__ float table[100];
__device__ int counter;
KERNEL module_variables(float* x) {
  x[threadIdx.x] = table[threadIdx.x % 100];
  atomicAdd(&counter, 1);
}

KERNEL shuffles(float* x) {
  float v = x[threadIdx.x];
  for (int step = 16; step > 0; step /= 2) v += __shfl_xor_sync(~0u, v, step);
  x[threadIdx.x] = v;
}

KERNEL transcendental(float* x) { x[threadIdx.x] = sinf(expf(x[threadIdx.x])) + powf(x[0], 0.3f); }

KERNEL double_division(double* x, const double* y) {
  x[threadIdx.x] = x[threadIdx.x] / y[threadIdx.x];
}

template <class T, int kN>
__global__ void of_a_template(T* x) {
  x[threadIdx.x] += kN;
}
template __global__ void of_a_template<float, 3>(float*);
template __global__ void of_a_template<long long, 4>(long long*);
