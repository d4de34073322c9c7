#include "compiler/codegen/cuda/print_cuda.h"

#include <fmt/core.h>

#include "compiler/codegen/cuda/prelude.h"
#include "compiler/codegen/cuda/printer.h"
#include "segfuse/error.h"

namespace segfuse::compiler::cuda {

using loop::KernelBuffer;

CudaText print_cuda_parts(const loop::Kernel& kernel) {
  const std::string function = KernelPrinter(kernel).run();
  Prelude prelude = prelude_for(function);
  return {std::move(prelude.machine), prelude.plain + function};
}

namespace {

void check_schedule(const loop::Kernel& kernel) {
  const Schedule& s = kernel.schedule;
  const bool warp = s.threads >= 1 && s.threads <= 32 && (s.threads & (s.threads - 1)) == 0;
  const bool warps = s.threads > 32 && s.threads % 32 == 0;
  const bool vector = s.vector == 1 || s.vector == 2 || s.vector == 4 || s.vector == 8;
  const bool rows = s.rows_at_once >= 1 && s.threads * s.rows_at_once <= 1024 &&
                    (s.threads <= 32 || s.rows_at_once <= 15);
  const bool strip = s.strip == 1 || (s.strip > 1 && s.threads == 1 && s.vector == 1);
  if (!(warp || warps) || !vector || !rows || !strip || s.unroll < 1 || s.resident < 1)
    throw InternalError(
        fmt::format("kernel {}: no block has the schedule '{}'", kernel.name, to_string(s)));
}

}  // namespace

KernelPrinter::KernelPrinter(const loop::Kernel& kernel)
    : kernel_(kernel),
      facts_(facts_of(kernel)),
      promised_(promised_multiples(kernel, kernel.schedule.vector)),
      threads_(kernel.schedule.threads),
      rows_(kernel.schedule.rows_at_once),
      vector_(kernel.schedule.vector),
      positions_(kernel) {
  check_schedule(kernel);
}

void KernelPrinter::open(const std::string& head) {
  line("{}{{", head.empty() ? "" : head + " ");
  ++depth_;
}

void KernelPrinter::close() {
  --depth_;
  line("}}");
}

std::string KernelPrinter::argument_type() const {
  std::string text = "struct Arguments {\n";
  for (std::size_t i = 0; i < kernel_.buffers.size(); ++i) {
    const KernelBuffer& buffer = kernel_.buffers[i];
    if (buffer.kind == KernelBuffer::Kind::kRow) continue;
    text += fmt::format("  {}{}* b{};\n", buffer.kind == KernelBuffer::Kind::kInput ? "const " : "",
                        stored_type(buffer.dtype), i);
  }
  for (std::size_t i = 0; i < kernel_.sizes().size(); ++i)
    text += fmt::format("  long long n{};\n", i);
  return text + "  long long outer_count;\n  int* status;\n};\n";
}

bool KernelPrinter::shares_memory() const {
  bool scratch = false;
  for (const KernelBuffer& buffer : kernel_.buffers)
    scratch =
        scratch || (buffer.kind == KernelBuffer::Kind::kRow && buffer.hold != Hold::kRegister);
  return scratch || facts_.state_bytes > 0;
}

/// Pointers to shared memory: states of reductions first, then row buffers.
void KernelPrinter::declare_memory() {
  if (!shares_memory()) return;
  std::vector<const KernelBuffer*> scratch;
  std::string bytes = fmt::format("{}u", facts_.state_bytes);
  auto bytes_of = [&](const KernelBuffer& buffer) {
    return fmt::format("((unsigned({}) * {}u + 15u) & ~15u)", positions_.size(buffer.elements),
                       size_of(buffer.dtype));
  };
  for (const KernelBuffer& buffer : kernel_.buffers)
    if (buffer.kind == KernelBuffer::Kind::kRow && buffer.hold != Hold::kRegister)
      bytes += " + " + bytes_of(buffer);
  line("unsigned char* const row_memory = shared_memory(){};",
       rows_ > 1 ? fmt::format(" + threadIdx.y * ({})", bytes) : "");
  for (std::size_t i = 0; i < facts_.reductions.size(); ++i) {
    const loop::ReductionId id{static_cast<std::uint32_t>(i)};
    if (facts_.state_bytes > 0 && facts_.reductions[i].joined)
      line("{0}* const w{1} = reinterpret_cast<{0}*>(row_memory + {2});", state_type(id), i,
           facts_.reductions[i].slots);
  }
  std::string offset = fmt::format("{}u", facts_.state_bytes);
  for (std::size_t i = 0; i < kernel_.buffers.size(); ++i) {
    const KernelBuffer& buffer = kernel_.buffers[i];
    if (buffer.kind != KernelBuffer::Kind::kRow || buffer.hold == Hold::kRegister) continue;
    line("{0}* const b{1} = reinterpret_cast<{0}*>(row_memory + {2});", stored_type(buffer.dtype),
         i, offset);
    offset += " + " + bytes_of(buffer);
  }
}

/// What belongs to one outer iteration: registers and the states of reductions.
void KernelPrinter::outer_iteration() {
  for (std::size_t i = 0; i < kernel_.buffers.size(); ++i) {
    const KernelBuffer& buffer = kernel_.buffers[i];
    if (!in_registers({static_cast<std::uint32_t>(i)})) continue;
    if (buffer.capacity < 1)
      throw InternalError(
          fmt::format("kernel {}: a row in registers without a bound", kernel_.name));
    const std::string type = vector_ > 1
                                 ? fmt::format("Pack<{}, {}>", stored_type(buffer.dtype), vector_)
                                 : stored_type(buffer.dtype);
    line("{} b{}[{}];", type, i, register_slots(kernel_));
  }
  for (std::size_t i = 0; i < kernel_.reductions.size(); ++i) {
    const loop::ReductionId id{static_cast<std::uint32_t>(i)};
    if (facts_.reductions[i].in_lane) continue;
    const int count = accumulators(id);
    line("{} r{}{};", state_type(id), i, count > 1 ? fmt::format("[{}]", count) : "");
  }
  uniform(kernel_.body);
  if (shares_memory()) barrier();
}

/// One outer iteration, with what it divides before it.
void KernelPrinter::outer_body() {
  const std::size_t begin = text_.size();
  outer_iteration();
  std::string definitions;
  for (const std::string& one : positions_.definitions())
    definitions += fmt::format("{}{}\n", std::string(2 * depth_, ' '), one);
  text_.insert(begin, definitions);
}

void KernelPrinter::outer_loop() {
  const std::string rows = rows_ > 1 ? fmt::format(" * {}", rows_) : "";
  line("for (long long row = (long long)(blockIdx.x){0}{1}; row < arguments.outer_count;", rows,
       rows_ > 1 ? " + threadIdx.y" : "");
  line("     row += (long long)(gridDim.x){}) {{", rows);
  ++depth_;
  line("const {0} {1} = {2}(row);", positions_.type(), positions_.text(kernel_.outer),
       kernel_.schedule.narrow ? "int" : "(long long)");
  outer_body();
  close();
}

/// The size of which a strip knows the number: what lane loops run to.
ir::Extent KernelPrinter::row_of_strip() const {
  for (const loop::Statement& statement : kernel_.body)
    if (const auto* lane = std::get_if<loop::For>(&statement.node)) return lane->end.constant;
  return {};
}

/// Elements that are moved together.
int KernelPrinter::pack_of(const StripBuffer& strip) const {
  const int all = kernel_.schedule.strip * strip.elements(kernel_.schedule);
  int pack = std::min(8, 16 / static_cast<int>(size_of(kernel_.buffer(strip.buffer).dtype)));
  while (all % pack != 0) pack /= 2;
  return pack;
}

std::string KernelPrinter::strip_name(const StripBuffer& strip) const {
  return fmt::format("x{}", strip.buffer.index);
}

void KernelPrinter::move_strip(const StripBuffer& strip, bool load) {
  const int pack = pack_of(strip);
  const int elements = strip.elements(kernel_.schedule);
  pragma("unroll");
  open(fmt::format("for (int p = 0; p < {}; ++p)", kernel_.schedule.strip * elements / pack));
  const std::string at =
      fmt::format("{} + (first * {} + p * {})", name(strip.buffer), elements, pack);
  if (load) {
    line("{}[p] = fetch_pack<{}>({});", strip_name(strip), pack, at);
  } else {
    line("store_pack<{}>({}, {}[p]);", pack, at, strip_name(strip));
  }
  close();
}

/// A lane takes rows that follow each other: their elements are one piece of memory, which it moves
/// in whole vectors. The last rows, and buffers that begin elsewhere, row by row.
void KernelPrinter::strip_loop() {
  const int rows = kernel_.schedule.strip;
  const std::string& type = positions_.type();
  const std::string outer = positions_.text(kernel_.outer);
  const std::vector<StripBuffer> strips = strip_buffers(kernel_);
  std::string addresses;
  for (const StripBuffer& strip : strips)
    addresses += fmt::format("{}(unsigned long long)({})", addresses.empty() ? "" : " | ",
                             name(strip.buffer));
  line("const bool aligned = ({}) % 16 == 0;", addresses);
  line("for (long long strip = (long long)(blockIdx.x) * {0} + threadIdx.y;", rows_);
  line("     strip * {} < arguments.outer_count; strip += (long long)(gridDim.x) * {}) {{", rows,
       rows_);
  ++depth_;
  line("const {} first = {}(strip * {});", type, kernel_.schedule.narrow ? "int" : "(long long)",
       rows);
  open(fmt::format("if (aligned && strip * {0} + {0} <= arguments.outer_count)", rows));
  for (const StripBuffer& strip : strips) {
    const KernelBuffer& buffer = kernel_.buffer(strip.buffer);
    line("Pack<{}, {}> {}[{}];", stored_type(buffer.dtype), pack_of(strip), strip_name(strip),
         rows * strip.elements(kernel_.schedule) / pack_of(strip));
    if (buffer.kind == KernelBuffer::Kind::kInput) move_strip(strip, true);
  }
  pragma("unroll");
  open(fmt::format("for (int q = 0; q < {}; ++q)", rows));
  line("[[maybe_unused]] const {} {} = first + q;", type, outer);
  strips_ = strips;
  outer_body();
  strips_.clear();
  close();
  for (const StripBuffer& strip : strips)
    if (kernel_.buffer(strip.buffer).kind == KernelBuffer::Kind::kOutput) move_strip(strip, false);
  --depth_;
  line("}} else {{");
  ++depth_;
  open(fmt::format("for ({0} {1} = first; {1} < first + {2} && {1} < arguments.outer_count; ++{1})",
                   type, outer, rows));
  outer_body();
  close();
  close();
  close();
}

std::string KernelPrinter::run() {
  const std::string& type = positions_.type();
  depth_ = 1;
  for (std::size_t i = 0; i < kernel_.buffers.size(); ++i) {
    const KernelBuffer& buffer = kernel_.buffers[i];
    if (buffer.kind == KernelBuffer::Kind::kRow) continue;
    line("{0}{1}* const{2} b{3} = arguments.b{3};",
         buffer.kind == KernelBuffer::Kind::kInput ? "const " : "", stored_type(buffer.dtype),
         buffer.kind == KernelBuffer::Kind::kInOut ? "" : " __restrict__", i);
  }
  const std::vector<ir::Extent> sizes = kernel_.sizes();
  const bool strip = kernel_.schedule.strip > 1;
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    if (strip && sizes[i] == row_of_strip())
      line("constexpr {} n{} = {};", type, i, kernel_.schedule.strip_row);
    else
      line("const {0} n{1} = {2}(arguments.n{1});", type, i,
           kernel_.schedule.narrow ? "int" : "(long long)");
  }
  line("{}", strip ? "constexpr int lane = 0;" : "const int lane = threadIdx.x;");
  if (threads_ > 1 && threads_ <= 32)
    line("[[maybe_unused]] const unsigned lanes = {};",
         threads_ == 32
             ? std::string("0xffffffffu")
             : fmt::format("{}u << (threadIdx.y * {} % 32)", (1U << threads_) - 1, threads_));
  if (threads_ > 32) line("[[maybe_unused]] const unsigned lanes = 0xffffffffu;");
  declare_memory();
  kernel_.schedule.strip > 1 ? strip_loop() : outer_loop();
  // Without a number the assembler spills a few registers to make room for more blocks.
  std::string function = fmt::format(
      "extern \"C\" __global__ void __launch_bounds__({}, {}) {}(const Arguments arguments) "
      "{{\n{}}}\n",
      threads_ * rows_, kernel_.schedule.resident, kernel_.name, text_);
  return operations_.functions() + argument_type() + function;
}

}  // namespace segfuse::compiler::cuda
