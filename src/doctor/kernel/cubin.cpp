#include "doctor/kernel/cubin.h"

#include <fmt/core.h>

#include <algorithm>
#include <map>

#include "doctor/elf.h"
#include "segfuse/error.h"

namespace segfuse::doctor {

namespace {

constexpr std::uint16_t kCuda = 190;
/// Since this ABI version the architecture stands in the second byte of the file's flags.
constexpr int kSecondByteAbi = 8;
/// From sm_90 on, sections of shared memory begin with what the system keeps for itself.
constexpr std::uint64_t kReservedShared = 1024;

// Attributes of .nv.info sections.
constexpr int kMaxThreads = 0x05;
constexpr int kFrameSize = 0x11;
constexpr int kRegistersAttribute = 0x2f;
constexpr int kBarriers = 0x4c;
constexpr int kAnnotations = 0x55;  ///< pairs (kind, offset of an instruction)
constexpr std::uint64_t kSpillAnnotation = 1;
/// Where files without the attribute (CUDA 12, before sm_100) have the barriers: the flags of the
/// code's section, from this bit on.
constexpr int kBarrierBit = 20;
constexpr std::uint64_t kBarrierMask = 0x7f;
// How an attribute's value is stored.
constexpr int kByteFormat = 2;
constexpr int kSizedFormat = 4;

// Instructions of 16 bytes (sm_70 and later): the opcode in the low 12 bits, the width of a memory
// access in bits 73 to 75.
constexpr std::uint64_t kLoadLocal = 0x983;
constexpr std::uint64_t kStoreLocal = 0x387;
constexpr std::uint64_t kWidths[8] = {1, 1, 2, 2, 4, 8, 16, 0};

struct Attribute {
  int format = 0;
  int code = 0;
  std::uint64_t value = 0;
  std::string_view bytes;
};

std::vector<Attribute> attributes_of(std::string_view bytes) {
  std::vector<Attribute> attributes;
  for (std::size_t at = 0; at + 4 <= bytes.size();) {
    Attribute attribute;
    attribute.format = static_cast<int>(little_endian(bytes, at, 1));
    attribute.code = static_cast<int>(little_endian(bytes, at + 1, 1));
    attribute.value = little_endian(bytes, at + 2, 2);
    at += 4;
    if (attribute.format == kByteFormat) attribute.value &= 0xff;
    if (attribute.format == kSizedFormat) {
      attribute.bytes = bytes.substr(at, attribute.value);
      at += attribute.bytes.size();
    }
    attributes.push_back(attribute);
  }
  return attributes;
}

void count_spills(KernelInfo& kernel, std::string_view annotations, std::string_view code) {
  for (std::size_t at = 0; at + 8 <= annotations.size(); at += 8) {
    const std::uint64_t offset = little_endian(annotations, at + 4, 4);
    if (little_endian(annotations, at, 4) != kSpillAnnotation || offset + 16 > code.size())
      continue;
    const std::uint64_t opcode = little_endian(code, offset, 2) & 0xfff;
    const std::uint64_t width = kWidths[(little_endian(code, offset + 8, 2) >> 9) & 7];
    if (opcode == kLoadLocal) *kernel.spill_load_bytes += width;
    if (opcode == kStoreLocal) *kernel.spill_store_bytes += width;
  }
}

void read_own_attributes(KernelInfo& kernel, const ElfSection& info, std::string_view code) {
  for (const Attribute& attribute : attributes_of(info.bytes)) {
    if (attribute.code == kBarriers) kernel.barriers = attribute.value;
    if (attribute.code == kAnnotations) count_spills(kernel, attribute.bytes, code);
    if (attribute.code == kMaxThreads && attribute.bytes.size() >= 12)
      kernel.max_threads = little_endian(attribute.bytes, 0, 4) *
                           little_endian(attribute.bytes, 4, 4) *
                           little_endian(attribute.bytes, 8, 4);
  }
}

/// Values that the file keeps for all its functions in one section, by number of the symbol.
std::map<std::string_view, std::uint64_t> values_of(const Elf& elf, int code) {
  std::map<std::string_view, std::uint64_t> values;
  const ElfSection* info = elf.find(".nv.info");
  if (info == nullptr) return values;
  for (const Attribute& attribute : attributes_of(info->bytes)) {
    if (attribute.code != code || attribute.bytes.size() < 8) continue;
    const std::uint64_t symbol = little_endian(attribute.bytes, 0, 4);
    if (symbol < elf.symbols.size())
      values[elf.symbols[symbol]] = little_endian(attribute.bytes, 4, 4);
  }
  return values;
}

}  // namespace

std::vector<KernelInfo> read_cubin(std::string_view bytes, const std::string& file) {
  const Elf elf = parse_elf(bytes, file);
  if (elf.machine != kCuda)
    throw DataError(fmt::format(
        "{}: this ELF file is for machine {}, expected {} (CUDA), or a program or library with "
        "kernels in it; pass a cubin (nvcc -cubin), a fat binary, or what was linked with one",
        file, elf.machine, kCuda));
  const std::uint32_t architecture =
      elf.abi_version >= kSecondByteAbi ? (elf.flags >> 8) & 0xff : elf.flags & 0xff;
  const auto registers = values_of(elf, kRegistersAttribute);
  const auto frames = values_of(elf, kFrameSize);
  std::vector<KernelInfo> kernels;
  constexpr std::string_view kPrefix = ".nv.info.";
  for (const ElfSection& info : elf.sections) {
    if (!info.name.starts_with(kPrefix)) continue;
    const std::string name(info.name.substr(kPrefix.size()));
    const ElfSection* code = elf.find(".text." + name);
    // Only kernels have parameters in constant memory; functions that they call have not.
    if (code == nullptr || elf.find(".nv.constant0." + name) == nullptr) continue;
    KernelInfo kernel;
    kernel.name = name;
    kernel.architecture = fmt::format("sm_{}", architecture);
    kernel.code_bytes = code->size;
    kernel.spill_load_bytes = kernel.spill_store_bytes = 0;
    kernel.barriers = (code->flags >> kBarrierBit) & kBarrierMask;
    kernel.registers = code->info >> 24;
    if (const auto found = registers.find(name); found != registers.end())
      kernel.registers = found->second;
    if (const auto found = frames.find(name); found != frames.end())
      kernel.stack_bytes = found->second;
    if (const ElfSection* shared = elf.find(".nv.shared." + name))
      kernel.shared_bytes =
          shared->size - (architecture >= 90 ? std::min(shared->size, kReservedShared) : 0);
    read_own_attributes(kernel, info, code->bytes);
    kernels.push_back(std::move(kernel));
  }
  std::sort(kernels.begin(), kernels.end(),
            [](const KernelInfo& a, const KernelInfo& b) { return a.name < b.name; });
  return kernels;
}

}  // namespace segfuse::doctor
