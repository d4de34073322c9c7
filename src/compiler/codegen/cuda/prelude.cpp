#include "compiler/codegen/cuda/prelude.h"

#include <cctype>
#include <vector>

namespace segfuse::compiler::cuda {

namespace {

/// A piece is taken when its name is seen as a whole word. Pieces may use those above.
struct Piece {
  const char* name;
  const char* text;
  bool machine = false;
};

constexpr Piece kPieces[] = {
    // What only the assembler knows.
    {"bits_of_f16",
     R"(static __device__ __forceinline__ unsigned short bits_of_f16(float x) {
  unsigned short bits;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(x));
  return bits;
}
)",
     true},
    {"f16_of_bits",
     R"(static __device__ __forceinline__ float f16_of_bits(unsigned short bits) {
  float x;
  asm("cvt.f32.f16 %0, %1;" : "=f"(x) : "h"(bits));
  return x;
}
)",
     true},
    {"rounded_bf16",
     R"(static __device__ __forceinline__ unsigned short rounded_bf16(float x) {
  unsigned short bits;
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(bits) : "f"(x));
  return bits;
}
)",
     true},
    {"nan_max",
     R"(static __device__ __forceinline__ float nan_max(float a, float b) {
  float larger;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(larger) : "f"(a), "f"(b));
  return larger;
}
)",
     true},
    {"nan_min",
     R"(static __device__ __forceinline__ float nan_min(float a, float b) {
  float smaller;
  asm("min.NaN.f32 %0, %1, %2;" : "=f"(smaller) : "f"(a), "f"(b));
  return smaller;
}
)",
     true},
    {"prefetch_l2",
     R"(static __device__ __forceinline__ void prefetch_l2(const void* from) {
  asm volatile("prefetch.global.L2 [%0];" : : "l"(from));
}
)",
     true},
    {"row_barrier",
     R"(static __device__ __forceinline__ void row_barrier(unsigned row, unsigned threads) {
  asm volatile("bar.sync %0, %1;" : : "r"(row + 1), "r"(threads) : "memory");
}
)",
     true},
    {"shared_memory",
     R"(static __device__ __forceinline__ unsigned char* shared_memory() {
  extern __shared__ uint4 block_memory[];
  return reinterpret_cast<unsigned char*>(block_memory);
}
)",
     true},

    // Copies into shared memory that go on while the thread does; zeros for what is not `there`.
    {"copy_async_16",
     R"(static __device__ __forceinline__ void copy_async_16(void* to, const void* from,
                                                     bool there) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
               :
               : "r"(static_cast<unsigned>(__cvta_generic_to_shared(to))), "l"(from),
                 "r"(there ? 16 : 0)
               : "memory");
}
)",
     true},
    {"copy_async_one",
     R"(template <class T>
static __device__ __forceinline__ void copy_async_one(T* to, const T* from, bool there) {
  constexpr int kBytes = sizeof(T);
  asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;"
               :
               : "r"(static_cast<unsigned>(__cvta_generic_to_shared(to))), "l"(from), "n"(kBytes),
                 "r"(there ? kBytes : 0)
               : "memory");
}
)",
     true},
    {"commit_copies",
     R"(static __device__ __forceinline__ void commit_copies() {
  asm volatile("cp.async.commit_group;" : : : "memory");
}
)",
     true},
    {"wait_for_copies",
     R"(static __device__ __forceinline__ void wait_for_copies() {
  asm volatile("cp.async.wait_all;" : : : "memory");
}
)",
     true},
    {"wait_for_copies_but_one",
     R"(static __device__ __forceinline__ void wait_for_copies_but_one() {
  asm volatile("cp.async.wait_group 1;" : : : "memory");
}
)",
     true},
    {"power_of_2",
     R"(static __device__ __forceinline__ float power_of_2(float x) {
  float power;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(x));
  return power;
}
)",
     true},

    // Tensor cores. A lane names one row of 8 elements: lanes 0 to 7 those of the first matrix of
    // 8 x 8, and so on; it gets two elements of each, `across` those of a column.
    {"load_matrices",
     R"(static __device__ __forceinline__ void load_matrices(unsigned (&to)[4],
                                                     const unsigned short* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(static_cast<unsigned>(__cvta_generic_to_shared(row))));
}
)",
     true},
    {"load_matrices_across",
     R"(static __device__ __forceinline__ void load_matrices_across(unsigned (&to)[4],
                                                            const unsigned short* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(static_cast<unsigned>(__cvta_generic_to_shared(row))));
}
)",
     true},
    {"multiply_bf16",
     R"(// 16 x 8 sums of 16 products.
static __device__ __forceinline__ void multiply_bf16(float& s0, float& s1, float& s2, float& s3,
                                                     const unsigned (&a)[4], unsigned b0,
                                                     unsigned b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, {%0, %1, %2, %3};"
      : "+f"(s0), "+f"(s1), "+f"(s2), "+f"(s3)
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
)",
     true},
    {"pair_of_bf16",
     R"(static __device__ __forceinline__ unsigned pair_of_bf16(float low, float high) {
  unsigned pair;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  return pair;
}
)",
     true},

    // 16-bit floats. A value of bf16 is its upper half.
    {"round_f16",
     R"(static __device__ __forceinline__ float round_f16(float x) {
  return f16_of_bits(bits_of_f16(x));
}
)"},
    {"bf16_of_bits",
     R"(static __device__ __forceinline__ float bf16_of_bits(unsigned short bits) {
  return __uint_as_float(static_cast<unsigned>(bits) << 16);
}
)"},
    {"round_bf16",
     R"(static __device__ __forceinline__ float round_bf16(float x) {
  return bf16_of_bits(rounded_bf16(x));
}
)"},
    {"bits_of_bf16",
     R"(static __device__ __forceinline__ unsigned short bits_of_bf16(float x) {
  return static_cast<unsigned short>(__float_as_uint(x) >> 16);
}
)"},
    {"narrowed",
     R"(// Toward zero with the last bit set when inexact: rounded once more, it is rounded right.
static __device__ __forceinline__ float narrowed(double x) {
  const float cut = __double2float_rz(x);
  return cut == x ? cut : __uint_as_float(__float_as_uint(cut) | 1u);
}
)"},

    // Casts to integers: toward zero, saturating, NaN to 0.
    {"int_of",
     R"([[maybe_unused]] static __device__ __forceinline__ int int_of(float x) {
  return x == x ? __float2int_rz(x) : 0;
}
[[maybe_unused]] static __device__ __forceinline__ int int_of(double x) {
  return x == x ? __double2int_rz(x) : 0;
}
)"},
    {"long_of",
     R"([[maybe_unused]] static __device__ __forceinline__ long long long_of(float x) {
  return x == x ? __float2ll_rz(x) : 0;
}
[[maybe_unused]] static __device__ __forceinline__ long long long_of(double x) {
  return x == x ? __double2ll_rz(x) : 0;
}
)"},

    {"random_uniform",
     R"(static __device__ __forceinline__ float random_uniform(long long key, long long sequence,
                                                       long long stream, unsigned long long index) {
  unsigned k0 = static_cast<unsigned>(key), k1 = static_cast<unsigned>(key >> 32);
  const unsigned long long low = index / 4;
  const unsigned long long high =
      static_cast<unsigned long long>(sequence) + (static_cast<unsigned long long>(stream) << 40);
  unsigned c0 = static_cast<unsigned>(low), c1 = static_cast<unsigned>(low >> 32);
  unsigned c2 = static_cast<unsigned>(high), c3 = static_cast<unsigned>(high >> 32);
#pragma unroll
  for (int round = 0; round < 10; ++round) {
    const unsigned h0 = __umulhi(0xD2511F53u, c0), l0 = 0xD2511F53u * c0;
    const unsigned h1 = __umulhi(0xCD9E8D57u, c2), l1 = 0xCD9E8D57u * c2;
    c0 = h1 ^ c1 ^ k0;
    c1 = l1;
    c2 = h0 ^ c3 ^ k1;
    c3 = l0;
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  const unsigned which = static_cast<unsigned>(index) & 3u;
  const unsigned bits = which == 0 ? c0 : which == 1 ? c1 : which == 2 ? c2 : c3;
  return static_cast<float>(bits >> 8) * 0x1p-24f;
}
)"},

    // Vectors of elements, moved by words of up to 16 bytes.
    {"Pack",
     R"(template <int kBytes>
struct WordOf;
template <>
struct WordOf<2> { using Word = unsigned short; };
template <>
struct WordOf<4> { using Word = unsigned; };
template <>
struct WordOf<8> { using Word = uint2; };
template <>
struct WordOf<16> { using Word = uint4; };
template <class T, int kCount>
union Pack {
  static constexpr int kBytes = sizeof(T) * kCount;
  static constexpr int kWords = kBytes > 16 ? kBytes / 16 : 1;
  using Word = typename WordOf<kBytes / kWords>::Word;
  Word words[kWords];
  unsigned pairs[kBytes > 4 ? kBytes / 4 : 1];
  T at[kCount];
};
)"},
    {"bf16_at",
     R"(template <int kCount>
static __device__ __forceinline__ float bf16_at(const Pack<unsigned short, kCount>& pack, int e) {
  const unsigned pair = pack.pairs[e / 2];
  return __uint_as_float(e % 2 != 0 ? pair & 0xffff0000u : pair << 16);
}
)"},
    {"fetch_pack",
     R"(template <int kCount, class T>
static __device__ __forceinline__ Pack<T, kCount> fetch_pack(const T* from) {
  using P = Pack<T, kCount>;
  P pack;
#pragma unroll
  for (int w = 0; w < P::kWords; ++w)
    pack.words[w] = __ldg(reinterpret_cast<const typename P::Word*>(from) + w);
  return pack;
}
)"},
    {"load_pack",
     R"(template <int kCount, class T>
static __device__ __forceinline__ Pack<T, kCount> load_pack(const T* from) {
  using P = Pack<T, kCount>;
  P pack;
#pragma unroll
  for (int w = 0; w < P::kWords; ++w)
    pack.words[w] = reinterpret_cast<const typename P::Word*>(from)[w];
  return pack;
}
)"},
    {"store_pack",
     R"(template <int kCount, class T>
static __device__ __forceinline__ void store_pack(T* to, const Pack<T, kCount>& pack) {
  using P = Pack<T, kCount>;
#pragma unroll
  for (int w = 0; w < P::kWords; ++w)
    reinterpret_cast<typename P::Word*>(to)[w] = pack.words[w];
}
)"},

    // Reductions: the state of one lane, how an element is added, and how two states are joined.
    {"Sum",
     R"(template <class T>
struct Sum {
  T value;
  __device__ __forceinline__ void add(T x) { value += x; }
  __device__ __forceinline__ void join(const Sum& other) { value += other.value; }
  __device__ __forceinline__ Sum across(unsigned lanes, int by) const {
    return {__shfl_xor_sync(lanes, value, by)};
  }
  __device__ __forceinline__ T result() const { return value; }
};
)"},
    {"CompensatedSum",
     R"([[maybe_unused]] static __device__ __forceinline__ float plus(float a, float b) {
  return __fadd_rn(a, b);
}
[[maybe_unused]] static __device__ __forceinline__ double plus(double a, double b) {
  return __dadd_rn(a, b);
}
// `error` is what rounding took away from the running sum.
template <class T>
struct CompensatedSum {
  T value, error;
  __device__ __forceinline__ void add(T x) {
    const T sum = plus(value, x);
    const T part = plus(sum, -value);
    error = plus(error, plus(plus(value, -plus(sum, -part)), plus(x, -part)));
    value = sum;
  }
  __device__ __forceinline__ void join(const CompensatedSum& other) {
    add(other.value);
    error = plus(error, other.error);
  }
  __device__ __forceinline__ CompensatedSum across(unsigned lanes, int by) const {
    return {__shfl_xor_sync(lanes, value, by), __shfl_xor_sync(lanes, error, by)};
  }
  // The error of an infinite sum is not a number.
  __device__ __forceinline__ T result() const {
    const T sum = plus(value, error);
    return sum == sum ? sum : value;
  }
};
)"},
    {"Product",
     R"(template <class T>
struct Product {
  T value;
  __device__ __forceinline__ void add(T x) { value *= x; }
  __device__ __forceinline__ void join(const Product& other) { value *= other.value; }
  __device__ __forceinline__ Product across(unsigned lanes, int by) const {
    return {__shfl_xor_sync(lanes, value, by)};
  }
  __device__ __forceinline__ T result() const { return value; }
};
)"},
    {"Largest",
     R"(static __device__ __forceinline__ float larger(float a, float b) { return nan_max(a, b); }
template <class T>
static __device__ __forceinline__ T larger(T a, T b) { return b > a || b != b ? b : a; }
template <class T>
struct Largest {
  T value;
  __device__ __forceinline__ void add(T x) { value = larger(value, x); }
  __device__ __forceinline__ void join(const Largest& other) { add(other.value); }
  __device__ __forceinline__ Largest across(unsigned lanes, int by) const {
    return {__shfl_xor_sync(lanes, value, by)};
  }
  __device__ __forceinline__ T result() const { return value; }
};
)"},
    {"Smallest",
     R"(static __device__ __forceinline__ float smaller(float a, float b) { return nan_min(a, b); }
template <class T>
static __device__ __forceinline__ T smaller(T a, T b) { return b < a || b != b ? b : a; }
template <class T>
struct Smallest {
  T value;
  __device__ __forceinline__ void add(T x) { value = smaller(value, x); }
  __device__ __forceinline__ void join(const Smallest& other) { add(other.value); }
  __device__ __forceinline__ Smallest across(unsigned lanes, int by) const {
    return {__shfl_xor_sync(lanes, value, by)};
  }
  __device__ __forceinline__ T result() const { return value; }
};
)"},
    {"LargestAt",
     R"(// The largest value, NaN above all, and its smallest position.
template <class T>
struct LargestAt {
  T value;
  long long position;
  __device__ __forceinline__ void add(T x, long long at) {
    const bool both = x != x && value != value;
    const bool equal = x == value || both;
    if ((!both && (x > value || x != x)) || (equal && at < position)) {
      value = x;
      position = at;
    }
  }
  __device__ __forceinline__ void join(const LargestAt& other) { add(other.value, other.position); }
  __device__ __forceinline__ LargestAt across(unsigned lanes, int by) const {
    return {__shfl_xor_sync(lanes, value, by), __shfl_xor_sync(lanes, position, by)};
  }
  __device__ __forceinline__ T result() const { return value; }
  __device__ __forceinline__ long long place() const {
    return position == 0x7fffffffffffffffll ? 0 : position;
  }
};
)"},
    {"join_lanes",
     R"(// All lanes get the same bits: joining is symmetric.
template <int kLanes, class State>
static __device__ __forceinline__ void join_lanes(State& state, unsigned lanes) {
#pragma unroll
  for (int by = kLanes / 2; by > 0; by /= 2) state.join(state.across(lanes, by));
}
)"},
    {"join_warps",
     R"(// States of all warps, in the same order for every lane.
template <int kWarps, class State>
static __device__ __forceinline__ State join_warps(const State* states, unsigned lane) {
  if (kWarps > 8 && (kWarps & (kWarps - 1)) == 0) {
    State state = states[lane % kWarps];
    join_lanes<kWarps>(state, 0xffffffffu);
    return state;
  }
  State state = states[0];
#pragma unroll
  for (int w = 1; w < kWarps; ++w) state.join(states[w]);
  return state;
}
)"},
};

bool names(std::string_view text, std::string_view word) {
  auto part = [](char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_'; };
  for (std::size_t at = text.find(word); at != text.npos; at = text.find(word, at + 1)) {
    const std::size_t end = at + word.size();
    if ((at == 0 || !part(text[at - 1])) && (end == text.size() || !part(text[end]))) return true;
  }
  return false;
}

}  // namespace

Prelude prelude_for(std::string_view code) {
  // From the last piece up: what is taken names pieces above.
  std::vector<const Piece*> taken;
  std::string seen(code);
  for (std::size_t i = std::size(kPieces); i-- > 0;) {
    if (!names(seen, kPieces[i].name)) continue;
    taken.push_back(&kPieces[i]);
    seen += kPieces[i].text;
  }
  Prelude prelude;
  for (std::size_t i = taken.size(); i-- > 0;)
    (taken[i]->machine ? prelude.machine : prelude.plain) += taken[i]->text;
  return prelude;
}

}  // namespace segfuse::compiler::cuda
