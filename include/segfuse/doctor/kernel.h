#pragma once
// segfuse doctor kernel: what a kernel of a GPU needs, from PTX, a cubin or CUDA C++; what the
// vectorisers make of the loops of C.
//
// docs/doctor.md explains the output.

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace segfuse {

/// Atomic instructions of one kind in a kernel.
struct KernelAtomic {
  std::string instruction;  ///< "red.global.add.f32"
  std::uint64_t count = 0;  ///< in the text
  /// "independent": memory has the same final content in every order. "returned": the same, but the
  /// value that the instruction returns depends on the order. "dependent": memory depends on it.
  std::string order;
};

/// How much of a multiprocessor one kernel can fill.
struct KernelOccupancy {
  std::string architecture;
  std::uint64_t block = 0;   ///< threads
  std::uint64_t blocks = 0;  ///< at the same time on a multiprocessor
  double share = 0;          ///< of the warps it can have
  std::string limit;         ///< "registers", "shared memory", "threads", "blocks"
};

/// A member that is not set is not known from the input.
struct KernelInfo {
  std::string name;
  std::string architecture;
  std::optional<std::uint64_t> registers;  ///< of a thread
  std::optional<std::uint64_t> spill_store_bytes;
  std::optional<std::uint64_t> spill_load_bytes;
  std::optional<std::uint64_t> stack_bytes;
  std::uint64_t shared_bytes = 0;  ///< without the dynamic shared memory of the launch
  std::optional<std::uint64_t> barriers;
  std::uint64_t max_threads = 0;  ///< of a block, as declared; 0: not declared
  std::uint64_t code_bytes = 0;   ///< 0: the input is not machine code
  std::string entry;              ///< of a cache: the name of its folder
  // Of PTX only.
  bool has_text = false;
  std::uint64_t declared_registers = 0;
  std::uint64_t local_bytes = 0;  ///< of arrays in local memory
  std::uint64_t local_loads = 0;  ///< instructions
  std::uint64_t local_stores = 0;
  std::vector<KernelAtomic> atomics;
  std::vector<KernelOccupancy> occupancy;

  bool spills() const { return spill_store_bytes.value_or(0) + spill_load_bytes.value_or(0) > 0; }
};

struct KernelOptions {
  std::string architecture;  ///< to compile or assemble for; empty: PTX's own, else sm_90
  std::uint64_t block = 0;   ///< threads; 0: as declared, else 256
};

/// The remark of the CPU's compiler on a loop in C.
struct KernelLoop {
  std::uint64_t line = 0;  ///< of the text, from 1
  bool vectorized = false;
  std::string remark;       ///< in the compiler's words
  std::string kernel = {};  ///< if there are several texts: its kernel
};

struct KernelReport {
  std::string file;
  /// "cubin", "PTX", "PTX, assembled by ptxas", "CUDA C++, compiled by NVRTC", "C, compiled by
  /// clang 19.1.7 for znver5"
  std::string source;
  std::vector<KernelInfo> kernels;  ///< by name
  std::vector<KernelLoop> loops;    ///< of C, by line
  std::vector<std::string> notes;

  bool spills() const;
};

/// By the ending of the file's name (.ptx, .cu, .c), or, for a cubin, by its first bytes. DataError
/// for what cannot be read or does not compile; DeviceError where the compiler is missing.
KernelReport examine_kernels(const std::filesystem::path& file, const KernelOptions& options = {});

/// Kernels that Triton, and torch.compile by it, left in their caches: those below `folder`, or, if
/// it is empty, in $TRITON_CACHE_DIR or ~/.triton/cache, and $TORCHINDUCTOR_CACHE_DIR or
/// /tmp/torchinductor_USER. Their shared memory is with that of the launch. What is damaged is left
/// out with a note; `architecture` leaves out those of others. DataError without such a folder.
KernelReport examine_triton_cache(const std::filesystem::path& folder,
                                  const KernelOptions& options = {});

KernelReport examine_cubin(const std::string& name, std::string_view cubin,
                           const KernelOptions& options = {});

std::string kernel_report_text(const KernelReport& report);
std::string kernel_report_json(const KernelReport& report);
std::string kernel_comparison_text(const KernelReport& former, const KernelReport& report);
std::string kernel_comparison_json(const KernelReport& former, const KernelReport& report);

}  // namespace segfuse
