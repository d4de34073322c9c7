#include "runtime/cuda/cublas_lt.h"

#include <fmt/core.h>

#include <cstdlib>
#include <utility>
#include <vector>

#include "base/os/python_packages.h"
#include "base/os/shared_library.h"
#include "segfuse/error.h"

namespace segfuse::runtime::cuda {
namespace {

// Numbers of the library's documentation, under its names.
constexpr int kReal32 = 0;        // CUDA_R_32F
constexpr int kReal64 = 1;        // CUDA_R_64F
constexpr int kReal16 = 2;        // CUDA_R_16F
constexpr int kBrain16 = 14;      // CUDA_R_16BF
constexpr int kCompute32 = 68;    // CUBLAS_COMPUTE_32F
constexpr int kCompute64 = 70;    // CUBLAS_COMPUTE_64F
constexpr int kComputeTF32 = 77;  // CUBLAS_COMPUTE_32F_FAST_TF32
constexpr int kTransposeA = 3;    // CUBLASLT_MATMUL_DESC_TRANSA
constexpr int kTransposeB = 4;    // CUBLASLT_MATMUL_DESC_TRANSB
constexpr int kBatchCount = 5;    // CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT
constexpr int kBatchStride = 6;   // CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET
constexpr int kMaxWorkspace = 1;  // CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES
constexpr int kReduction = 3;     // CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK
constexpr int kAlignmentA = 5;    // CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, then B, C, D
/// CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE: where k is divided, partial sums are of the type that is
/// computed in, and not of the result's.
constexpr std::uint32_t kOfComputeType = 2;

constexpr std::uint64_t kWorkspace = std::uint64_t{32} << 20;

struct Algorithm {
  std::uint64_t data[8];
};
struct Heuristic {  // cublasLtMatmulHeuristicResult_t
  Algorithm algorithm;
  std::size_t workspace;
  int state;
  float waves;
  int reserved[4];
};
using Opaque = void*;

struct Library {
  int (*create)(Opaque*);
  int (*destroy)(Opaque);
  std::size_t (*version)();
  const char* (*status_name)(int);
  int (*desc_create)(Opaque*, int compute, int scale);
  int (*desc_destroy)(Opaque);
  int (*desc_set)(Opaque, int, const void*, std::size_t);
  int (*layout_create)(Opaque*, int type, std::uint64_t rows, std::uint64_t columns,
                       std::int64_t leading);
  int (*layout_destroy)(Opaque);
  int (*layout_set)(Opaque, int, const void*, std::size_t);
  int (*preference_create)(Opaque*);
  int (*preference_destroy)(Opaque);
  int (*preference_set)(Opaque, int, const void*, std::size_t);
  int (*heuristic)(Opaque handle, Opaque desc, Opaque a, Opaque b, Opaque c, Opaque d,
                   Opaque preference, int wanted, Heuristic*, int* found);
  int (*matmul)(Opaque handle, Opaque desc, const void* alpha, const void* a, Opaque a_layout,
                const void* b, Opaque b_layout, const void* beta, const void* c, Opaque c_layout,
                void* d, Opaque d_layout, const Algorithm*, void* workspace, std::size_t bytes,
                void* stream);
};

const SharedLibrary& opened() {
  static const auto& library = *new SharedLibrary([] {
    std::vector<std::string> names;
    if (const char* named = ::secure_getenv("SEGFUSE_CUBLASLT")) names.emplace_back(named);
    std::vector<std::string> folders = {""};
    if (const char* home = ::secure_getenv("CUDA_HOME"))
      folders.push_back(fmt::format("{}/lib64/", home));
    folders.emplace_back("/usr/local/cuda/lib64/");
    for (const std::string& folder : folders)
      for (const char* name : {"libcublasLt.so.13", "libcublasLt.so.12", "libcublasLt.so"})
        names.push_back(folder + name);
    for (std::string& file : files_of_python_packages(
             {"nvidia/cu13/lib/libcublasLt.so.13", "nvidia/cublas/lib/libcublasLt.so.12"}))
      names.push_back(std::move(file));
    return SharedLibrary::open_first_lazily(names);
  }());
  return library;
}

Library load() {
  const SharedLibrary& library = opened();
  if (!library)
    throw DeviceError(fmt::format(
        "CUDA: the library libcublasLt cannot be opened ({}); install the CUDA toolkit or the "
        "Python package nvidia-cublas, or set SEGFUSE_CUBLASLT to the library's path",
        library.error()));
  Library l{};
  library.load("cublasLtCreate", l.create);
  library.load("cublasLtDestroy", l.destroy);
  library.load("cublasLtGetVersion", l.version);
  library.load("cublasLtGetStatusName", l.status_name);
  library.load("cublasLtMatmulDescCreate", l.desc_create);
  library.load("cublasLtMatmulDescDestroy", l.desc_destroy);
  library.load("cublasLtMatmulDescSetAttribute", l.desc_set);
  library.load("cublasLtMatrixLayoutCreate", l.layout_create);
  library.load("cublasLtMatrixLayoutDestroy", l.layout_destroy);
  library.load("cublasLtMatrixLayoutSetAttribute", l.layout_set);
  library.load("cublasLtMatmulPreferenceCreate", l.preference_create);
  library.load("cublasLtMatmulPreferenceDestroy", l.preference_destroy);
  library.load("cublasLtMatmulPreferenceSetAttribute", l.preference_set);
  library.load("cublasLtMatmulAlgoGetHeuristic", l.heuristic);
  library.load("cublasLtMatmul", l.matmul);
  return l;
}

const Library& lt() {
  static const Library loaded = load();
  return loaded;
}

void check_status(int status, const char* what) {
  if (status != 0)
    throw DeviceError(fmt::format("cuBLASLt: {} failed with {}", what, lt().status_name(status)));
}

/// An object of the library's, destroyed with this.
class Object {
 public:
  explicit Object(int (*destroy)(Opaque)) : destroy_(destroy) {}
  ~Object() {
    if (value_ != nullptr) destroy_(value_);
  }
  Object(const Object&) = delete;
  Object& operator=(const Object&) = delete;
  Opaque* slot() { return &value_; }
  Opaque get() const { return value_; }

 private:
  int (*destroy_)(Opaque);
  Opaque value_ = nullptr;
};

int type_of(DType dtype) {
  switch (dtype) {
    case DType::kF64: return kReal64;
    case DType::kF16: return kReal16;
    case DType::kBF16: return kBrain16;
    default: return kReal32;
  }
}

int compute_type_of(const GpuProduct& p) {
  if (p.dtype == DType::kF64) return kCompute64;
  return p.tf32 && p.dtype == DType::kF32 ? kComputeTF32 : kCompute32;
}

template <class T>
void set(int (*function)(Opaque, int, const void*, std::size_t), const Object& object, int what,
         T value) {
  check_status(function(object.get(), what, &value, sizeof value), "setting an attribute");
}

/// The library counts by columns, where a matrix by rows is its transpose: out^T = b^T a^T.
class Prepared final : public GpuMatmul {
 public:
  Prepared(Opaque handle, const GpuProduct& p) : handle_(handle), f64_(p.dtype == DType::kF64) {
    check_status(lt().desc_create(desc_.slot(), compute_type_of(p), f64_ ? kReal64 : kReal32),
                 "describing a product");
    set<std::int32_t>(lt().desc_set, desc_, kTransposeA, p.b.by_columns ? 1 : 0);
    set<std::int32_t>(lt().desc_set, desc_, kTransposeB, p.a.by_columns ? 1 : 0);
    describe(first_, p, p.b, p.b.by_columns ? p.k : p.n, p.b.by_columns ? p.n : p.k);
    describe(second_, p, p.a, p.a.by_columns ? p.m : p.k, p.a.by_columns ? p.k : p.m);
    GpuMatrix out;
    out.leading = p.n;
    out.batch_stride = p.m * p.n;
    describe(out_, p, out, p.n, p.m);
  }

  bool choose(const GpuProduct& p) {
    Object preference(lt().preference_destroy);
    check_status(lt().preference_create(preference.slot()), "asking for a way");
    set(lt().preference_set, preference, kMaxWorkspace, kWorkspace);
    if (size_of(p.dtype) == 2) set(lt().preference_set, preference, kReduction, kOfComputeType);
    int which = kAlignmentA;
    for (const std::uint32_t bytes :
         {p.b.alignment, p.a.alignment, p.out_alignment, p.out_alignment})
      set(lt().preference_set, preference, which++, bytes);
    Heuristic best{};
    int found = 0;
    const int status = lt().heuristic(handle_, desc_.get(), first_.get(), second_.get(), out_.get(),
                                      out_.get(), preference.get(), 1, &best, &found);
    if (status != 0 || found == 0 || best.state != 0) return false;
    algorithm_ = best.algorithm;
    workspace_ = best.workspace;
    return true;
  }

  std::size_t workspace_bytes() const override { return workspace_; }

  void run(StreamHandle stream, const void* a, const void* b, void* out,
           void* workspace) const override {
    const double one64 = 1, zero64 = 0;
    const float one32 = 1, zero32 = 0;
    const void* one = f64_ ? static_cast<const void*>(&one64) : &one32;
    const void* zero = f64_ ? static_cast<const void*>(&zero64) : &zero32;
    check_status(
        lt().matmul(handle_, desc_.get(), one, b, first_.get(), a, second_.get(), zero, out,
                    out_.get(), out, out_.get(), &algorithm_, workspace, workspace_, stream.get()),
        "a matrix product");
  }

 private:
  static void describe(Object& layout, const GpuProduct& p, const GpuMatrix& matrix,
                       std::int64_t rows, std::int64_t columns) {
    check_status(
        lt().layout_create(layout.slot(), type_of(p.dtype), static_cast<std::uint64_t>(rows),
                           static_cast<std::uint64_t>(columns), matrix.leading),
        "describing a matrix");
    set(lt().layout_set, layout, kBatchCount, static_cast<std::int32_t>(p.batch));
    set(lt().layout_set, layout, kBatchStride, matrix.batch_stride);
  }

  Opaque handle_;
  bool f64_;
  Object desc_{lt().desc_destroy};
  Object first_{lt().layout_destroy};
  Object second_{lt().layout_destroy};
  Object out_{lt().layout_destroy};
  Algorithm algorithm_{};
  std::size_t workspace_ = 0;
};

}  // namespace

bool cublas_lt_is_there(std::string* reason) {
  try {
    static_cast<void>(lt());
    return true;
  } catch (const DeviceError& error) {
    if (reason != nullptr) *reason = error.what();
    return false;
  }
}

std::string cublas_lt_version() {
  const std::size_t version = lt().version();
  return fmt::format("{}.{}.{}", version / 10000, version / 100 % 100, version % 100);
}

CublasLt::CublasLt() { check_status(lt().create(&handle_), "opening the library"); }
CublasLt::~CublasLt() { lt().destroy(handle_); }

std::unique_ptr<GpuMatmul> CublasLt::prepare(const GpuProduct& product) const {
  auto prepared = std::make_unique<Prepared>(handle_, product);
  if (!prepared->choose(product)) return nullptr;
  return prepared;
}

}  // namespace segfuse::runtime::cuda
