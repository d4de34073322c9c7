#include <fmt/core.h>

#include <algorithm>
#include <mutex>
#include <tuple>

#include "base/mutex.h"
#include "base/os/file.h"
#include "base/text.h"
#include "compiler/compile.h"
#include "engine/compiled/emit.h"
#include "engine/compiled/html.h"
#include "engine/device/accelerator.h"
#include "engine/exec/semicrf_ops.h"
#include "engine/program_state.h"
#include "engine/shared_inputs.h"
#include "ir/interpret/interpreter.h"
#include "ir/rules/verify.h"
#include "ir/text.h"
#include "segfuse/error.h"
#include "segfuse/ops.h"

namespace segfuse {
namespace {

template <class Named>
std::vector<ValueInfo> describe(const ir::Fusion& fusion, const std::vector<Named>& named) {
  std::vector<ValueInfo> all;
  for (const Named& item : named) {
    const ir::Val& val = fusion.val(item.val);
    all.push_back({item.name, val.dtype, fusion.to_string(val.shape)});
  }
  return all;
}

/// The memory of a tensor; of one on a device a name for it.
engine::InputBytes memory_of(const Tensor& tensor) {
  if (tensor.bytes() == 0) return {};
  if (tensor.device_memory()) {
    const auto* name = reinterpret_cast<const std::byte*>(tensor.device_memory().get());
    return {name, name + 1};
  }
  const auto* begin = static_cast<const std::byte*>(tensor.data());
  return {begin, begin + tensor.bytes()};
}

/// The inputs, those that share memory with an overwritten one copied; nothing where none does.
/// UsageError where both are overwritten.
std::vector<Tensor> apart(const ir::Fusion& fusion, std::span<const std::size_t> overwritten,
                          std::span<const Tensor> inputs) {
  if (overwritten.empty() || inputs.size() != fusion.inputs().size()) return {};
  std::vector<engine::InputBytes> memory(inputs.size());
  std::ranges::transform(inputs, memory.begin(), memory_of);
  std::vector<bool> written(inputs.size());
  for (const std::size_t i : overwritten) written[i] = true;
  const std::vector<bool> shared =
      engine::shared_with_overwritten(memory, written, [&](std::size_t a, std::size_t b) {
        throw UsageError(
            fmt::format("inputs '{}' and '{}' of the Fusion '{}' share memory, and it overwrites "
                        "both; copy one "
                        "of them first",
                        fusion.inputs()[a].name, fusion.inputs()[b].name, fusion.name()));
      });
  if (std::ranges::find(shared, true) == shared.end()) return {};
  std::vector<Tensor> copies(inputs.begin(), inputs.end());
  for (std::size_t i = 0; i < inputs.size(); ++i)
    if (shared[i]) copies[i] = inputs[i].clone();
  return copies;
}

}  // namespace

Program Program::from_text(std::string_view text, std::string_view source) {
  try {
    ir::Fusion fusion = ir::parse(text, source);
    ir::verify(fusion);
    return Program(std::make_shared<State>(std::move(fusion)));
  } catch (const UsageError& error) {  // a rule that knows no lines
    throw DataError(fmt::format("{}: {}", source, error.what()));
  }
}

Program Program::from_file(const std::filesystem::path& path) {
  return from_text(read_file(path), path.string());
}

const std::string& Program::name() const { return state_->fusion.name(); }

std::vector<ValueInfo> Program::inputs() const {
  return describe(state_->fusion, state_->fusion.inputs());
}

std::vector<ValueInfo> Program::outputs() const {
  return describe(state_->fusion, state_->fusion.outputs());
}

std::vector<std::size_t> overwritten_inputs(const Program& program) {
  return program.state().overwritten;
}

Program::State::State(ir::Fusion program) : fusion(std::move(program)) {
  for (std::size_t i = 0; i < fusion.inputs().size(); ++i)
    for (const ir::Alias& alias : fusion.aliases())
      if (alias.input == fusion.inputs()[i].val) overwritten.push_back(i);
}

std::vector<std::string> Program::emit_kinds() {
  return {"ir", "segments", "plan", "loop", "kernels", "c", "h", "cuda", "cubin", "html"};
}

std::string Program::emit(std::string_view kind, const EmitOptions& how) const {
  compiler::SizeHints hints;
  hints.symbols = how.sizes;
  const compiler::CompileOptions cpu{.hints = hints, .excess_precision = how.excess_precision};
  compiler::CompileOptions cuda = cpu;
  cuda.target = compiler::Target::kCuda;
  const ir::Fusion& fusion = state_->fusion;
  if (kind == "ir") return ir::print(fusion);
  if (kind == "plan") return engine::describe_plan(fusion, cpu);
  if (kind == "loop") return engine::print_loops(fusion, cpu);
  if (kind == "kernels") return engine::print_kernels(fusion, cpu);
  if (kind == "c") return engine::print_program(fusion, cpu, how.function).source;
  if (kind == "h") return engine::print_program(fusion, cpu, how.function).header;
  if (kind == "cuda") return engine::print_kernels(fusion, cuda);
  if (kind == "html") return engine::describe_html(fusion, hints, how);
  if (kind == "cubin") return engine::compile_kernels(fusion, cuda, how.architecture).cubin;
  if (kind == "segments")
    return compiler::describe(compiler::CompiledFusion(fusion, cpu).segmented());
  throw UsageError(
      fmt::format("'{}' cannot be emitted; what can is {}", kind, quoted_list(emit_kinds())));
}

void Program::make_kernels(std::string_view target, const SizeExamples& sizes,
                           const Context& context) const {
  compiler::SizeHints hints;
  hints.symbols = sizes;
  if (target == "cpu") {
    engine::make_cpu_kernels(state_->fusion, hints, context);
  } else {
    engine::make_cuda_kernels(state_->fusion, hints, target);
  }
}

std::vector<PassInfo> Program::passes() const {
  ir::Fusion fusion = state_->fusion;
  std::vector<PassInfo> all;
  for (const compiler::PassTime& time : compiler::run_passes(fusion))
    all.push_back({std::string(time.pass->name), std::string(time.pass->before),
                   std::string(time.pass->after), time.seconds * 1e3, time.runs, time.changes,
                   time.before, time.after});
  return all;
}

std::string Program::after_pass(std::string_view name) const {
  const compiler::Pass& wanted = compiler::find_pass(name);
  ir::Fusion fusion = state_->fusion;
  std::string text;
  compiler::PassOptions options;
  options.after = [&](const compiler::Pass& pass, const ir::Fusion& now) {
    if (text.empty() && pass.name == wanted.name) text = ir::print(now);
  };
  compiler::run_passes(fusion, options);
  return text;
}

Program::State::Prepared& Program::State::prepared(const RunOptions& options) {
  RunOptions wanted = options;
  wanted.threads = 0;
  if (last != nullptr && last->options == wanted) return *last;
  const engine::ExecutableOptions how{
      .backend = wanted.backend,
      .check_numerics = wanted.check_numerics,
      .excess_precision = wanted.excess_precision,
      .tf32 = engine::allows_tf32(wanted.precision),
      .accelerator = engine::open_accelerator(wanted.device, wanted.context),
      .host = engine::open_host(wanted.context),
      .context = wanted.context};
  const auto key = [](const engine::ExecutableOptions& of) {
    return std::tie(of.backend, of.check_numerics, of.excess_precision, of.tf32, of.accelerator,
                    of.host);
  };
  for (Prepared& known : all)
    if (key(known.how) == key(how)) {
      known.options = wanted;
      return *(last = &known);
    }
  return *(last = &all.emplace_back(wanted, how, engine::Executable(fusion, pool, how)));
}

std::vector<Tensor> Program::run(std::span<const Tensor> inputs, const RunOptions& how) const {
  const Options& defaults = how.context.options();
  RunOptions wanted = how;
  constexpr int kMaxThreads = 4096;  // as the option `threads` has it
  if (wanted.threads < 0 || wanted.threads > kMaxThreads)
    throw UsageError(fmt::format("a run on {} threads; expected 1 to {}, or 0 for the context's",
                                 wanted.threads, kMaxThreads));
  if (wanted.threads == 0) wanted.threads = static_cast<int>(defaults.get(options::kThreads));
  if (wanted.backend.empty()) wanted.backend = defaults.get(options::kBackend);
  if (wanted.device.empty()) wanted.device = defaults.get(options::kDevice);
  wanted.check_numerics = wanted.check_numerics || defaults.get(options::kCheckNumerics) == "op";
  State& state = *state_;
  const MutexLock running(state.running);
  if (state.pool_threads != wanted.threads) {
    state.pool.resize(wanted.threads);
    state.pool_threads = wanted.threads;
  }
  State::Prepared& prepared = state.prepared(wanted);
  std::unique_lock<std::mutex> alone;  // a GPU serves one program at a time
  if (prepared.how.accelerator) alone = std::unique_lock(prepared.how.accelerator->calls());
  const std::vector<Tensor> copies = apart(state.fusion, state.overwritten, inputs);
  std::vector<Tensor> outputs = prepared.executable.run(copies.empty() ? inputs : copies);
  for (Tensor& output : outputs)  // written in place: the caller's memory is the caller's
    for (const Tensor& input : inputs)
      if (output.shares_storage_with(input)) {
        output = output.clone();
        break;
      }
  return outputs;
}

void Program::check() const {
  const MutexLock running(state_->running);
  for (State::Prepared& prepared : state_->all) prepared.executable.check();
}

std::vector<Tensor> Program::run_reference(std::span<const Tensor> inputs) const {
  return ir::interpret(state_->fusion, inputs, engine::reference_opaque_ops());
}

}  // namespace segfuse
