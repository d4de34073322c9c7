#include "engine/executor.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>

#include "base/check.h"
#include "compiler/inputs.h"
#include "compiler/interpret/interpreter.h"
#include "engine/compiled/kernels.h"
#include "engine/device/device_program.h"
#include "engine/exec/growing_memory.h"
#include "engine/exec/plan.h"
#include "engine/exec/semicrf_ops.h"
#include "engine/numerics/cause.h"
#include "segfuse/error.h"

namespace segfuse::engine {
namespace {

constexpr std::size_t kMostPlans = 64;  // shapes remembered

/// The first element that is NaN (or infinite too), by row-major index.
struct Found {
  std::int64_t element = -1;
  double value = 0;
};

Found find_bad(const Array& array, bool infinite_too) {
  if (!is_float(array.dtype) || array.layout->size() == 0) return {};
  const Nest nest = collapse(array.shape(), {array.layout->strides});
  Odometer at(nest, nest.sizes.size(), 0);
  for (std::int64_t i = 0; i < array.layout->size(); ++i, at.next()) {
    const double value = array.dtype == DType::kF32 ? array.as<const float>()[at.offset(0)]
                                                    : array.as<const double>()[at.offset(0)];
    if (std::isnan(value) || (infinite_too && std::isinf(value))) return {i, value};
  }
  return {};
}

double value_at(const Array& array, std::int64_t offset) {
  switch (array.dtype) {
    case DType::kF32: return array.as<const float>()[offset];
    case DType::kF64: return array.as<const double>()[offset];
    case DType::kI32: return array.as<const std::int32_t>()[offset];
    case DType::kI64: return static_cast<double>(array.as<const std::int64_t>()[offset]);
    default: return array.as<const std::uint8_t>()[offset];
  }
}

Shape unravel(std::int64_t element, const Shape& shape) {
  Shape index(shape.size());
  for (std::size_t axis = shape.size(); axis-- > 0; element /= shape[axis])
    index[axis] = element % shape[axis];
  return index;
}

}  // namespace

struct Executable::State {
  State(ir::Fusion program, ThreadPool& workers, ExecutorOptions how)
      : fusion(std::move(program)),
        pool(workers),
        options(how),
        groups(make_groups(fusion, !how.check_numerics || how.backend != Backend::kLoops)),
        semicrf(workers) {
    const bool on_device = options.accelerator && options.backend == Backend::kCompiled;
    if (options.backend != Backend::kLoops && options.check_numerics && !on_device) {
      ir::Fusion looked_at = fusion;
      for (const ir::Alias& alias : fusion.aliases()) looked_at.remove_alias(alias.input);
      checker = std::make_unique<State>(
          std::move(looked_at), pool,
          ExecutorOptions{.backend = Backend::kLoops, .check_numerics = true});
      options.check_numerics = false;
    }
    if (options.backend != Backend::kCompiled) return;
    if (options.accelerator) {
      device = std::make_unique<DeviceProgram>(
          fusion, options.accelerator,
          PlanOptions{.measure = options.profile, .poison = options.poison},
          options.excess_precision);
      return;
    }
    if (auto compiler = shared_cpu_compiler(options.context))
      compiled =
          std::make_unique<CpuKernels>(fusion, std::move(compiler), options.excess_precision);
  }

  CpuPlan& plan_for(std::span<const Tensor> inputs) {
    std::vector<Shape> key;
    for (const Tensor& input : inputs) key.push_back(input.shape());
    const auto known = plans.find(key);
    if (known != plans.end() && inputs.size() == fusion.inputs().size()) {
      check_types(inputs);
      return known->second;
    }
    const CpuContext context{pool, semicrf};
    CpuPlanOptions how{{.measure = options.profile, .poison = options.poison}, {}};
    if (options.check_numerics)
      how.check = [this](ir::ExprId expr, std::span<const Ref> operands,
                         std::span<const Ref> results,
                         const Run& run) { check(expr, operands, results, run); };
    CpuPlan plan =
        compiled ? make_plan(*compiled, inputs, context, how)
                 : make_plan(fusion, groups, compiler::bind_inputs(fusion, inputs), context, how);
    if (plans.size() >= kMostPlans) plans.clear();
    last_plan = nullptr;
    return plans.emplace(std::move(key), std::move(plan)).first->second;
  }

  void check_types(std::span<const Tensor> inputs) const {
    for (std::size_t i = 0; i < inputs.size(); ++i)
      if (inputs[i].dtype() != fusion.val(fusion.inputs()[i].val).dtype)
        (void)compiler::bind_inputs(fusion, inputs);  // throws
  }

  void check(ir::ExprId id, std::span<const Ref> operands, std::span<const Ref> results,
             const Run& run) const {
    const ir::Expr& expr = fusion.expr(id);
    bool finite = true;
    for (const Ref& operand : operands)
      finite = finite && find_bad(run.array(operand), true).element < 0;
    for (std::size_t i = 0; i < results.size(); ++i) {
      const Array array = run.array(results[i]);
      if (array.dtype != DType::kF32 && array.dtype != DType::kF64) continue;
      const Found found = find_bad(array, finite);
      if (found.element < 0) continue;
      const std::vector<double> made_of = elements(expr, operands, run, found.element);
      const DType dtype = fusion.val(expr.results[i]).dtype;
      throw DataError(fmt::format(
          "{} gave {} at element {} of value {} {}{}; its operands were {}{}: {}",
          ir::info(expr.op).name, std::isnan(found.value) ? "nan" : fmt::format("{}", found.value),
          to_string(unravel(found.element, array.shape())), expr.results[i].index, name_of(dtype),
          to_string(array.shape()), finite ? "finite" : "not all finite",
          made_of.empty() ? "" : fmt::format(" ({} there)", fmt::join(made_of, ", ")),
          numerics::cause_of(expr.op, dtype, std::isnan(found.value), made_of)));
    }
  }

  /// What an element of an elementwise operation was made of, by operand; else nothing.
  static std::vector<double> elements(const ir::Expr& expr, std::span<const Ref> operands,
                                      const Run& run, std::int64_t element) {
    if (ir::info(expr.op).op_class != ir::OpClass::kElementwise) return {};
    std::map<ir::ValId, std::size_t> loaded;  // each value once, in the order of the operands
    for (const ir::ValId operand : expr.operands) loaded.emplace(operand, loaded.size());
    if (loaded.size() != operands.size()) return {};
    std::vector<double> all;
    for (const ir::ValId operand : expr.operands) {
      const Ref& ref = operands[loaded.at(operand)];
      const Array array = run.array(ref);
      const Shape index = unravel(element, array.shape());
      std::int64_t at = 0;
      for (std::size_t axis = 0; axis < index.size(); ++axis)
        at += index[axis] * array.layout->strides[axis];
      all.push_back(value_at(array, at));
    }
    return all;
  }

  std::vector<StepTime> times() const {
    if (device) return device->step_times();
    std::vector<StepTime> all;
    if (last_plan != nullptr)
      for (const std::shared_ptr<StepTime>& time : last_plan->times()) all.push_back(*time);
    return all;
  }

  std::vector<Tensor> run(std::span<const Tensor> inputs) {
    if (checker) (void)checker->run(on_host(inputs));
    if (device) {
      if (options.check_numerics)
        if (const std::string fault = device->look(inputs); !fault.empty()) throw DataError(fault);
      return device->run(inputs);
    }
    if (std::none_of(inputs.begin(), inputs.end(),
                     [](const Tensor& input) { return input.device_memory() != nullptr; }))
      return run_on_host(inputs);
    return run_on_copies(inputs);
  }

  static std::vector<Tensor> on_host(std::span<const Tensor> inputs) {
    std::vector<Tensor> copies;
    for (const Tensor& input : inputs) copies.push_back(input.to_host());
    return copies;
  }

  /// Operands come to the host, results and overwritten inputs go back to where they were.
  std::vector<Tensor> run_on_copies(std::span<const Tensor> inputs) {
    if (!options.accelerator)
      throw UsageError(fmt::format(
          "an input is in the memory of {}, and the program runs on the CPU; bring it "
          "to the host with to_host() or choose the device",
          std::find_if(inputs.begin(), inputs.end(),
                       [](const Tensor& input) { return input.device_memory() != nullptr; })
              ->device_memory()
              ->device()));
    const std::vector<Tensor> copies = on_host(inputs);
    std::vector<Tensor> outputs = run_on_host(copies);
    for (Tensor& output : outputs) {
      std::size_t shared = 0;
      while (shared < copies.size() && !output.shares_storage_with(copies[shared])) ++shared;
      output = shared < copies.size() ? inputs[shared] : options.accelerator->upload(output);
    }
    for (const ir::Alias& alias : fusion.aliases()) {
      std::size_t to = 0;
      while (fusion.inputs()[to].val != alias.input) ++to;
      if (inputs[to].device_memory() != nullptr)
        options.accelerator->upload_into(copies[to], inputs[to]);
    }
    return outputs;
  }

  std::vector<Tensor> run_on_host(std::span<const Tensor> inputs) {
    if (options.backend == Backend::kReference) {
      std::vector<Tensor> outputs =
          compiler::interpret(fusion, inputs, reference_opaque_ops(), {.outputs_as_f64 = false});
      write_aliases(inputs, outputs);
      return outputs;
    }
    CpuPlan& plan = plan_for(inputs);
    last_plan = &plan;
    given.clear();
    for (Tensor input : inputs) given.push_back(static_cast<std::byte*>(input.data()));
    std::vector<Tensor> outputs;
    for (std::size_t i = 0; i < plan.output_shapes().size(); ++i) {
      if (plan.in_place()[i]) {
        outputs.push_back(inputs[*plan.in_place()[i]]);
      } else {
        outputs.emplace_back(fusion.val(fusion.outputs()[i].val).dtype, plan.output_shapes()[i]);
        given.push_back(static_cast<std::byte*>(outputs.back().data()));
      }
    }
    plan.run(given, arena.at_least(plan.arena_bytes()));
    return outputs;
  }

  void write_aliases(std::span<const Tensor> inputs, const std::vector<Tensor>& outputs) const {
    for (const ir::Alias& alias : fusion.aliases()) {
      std::size_t from = 0;
      std::size_t to = 0;
      while (fusion.outputs()[from].val != alias.output) ++from;
      while (fusion.inputs()[to].val != alias.input) ++to;
      Tensor target = inputs[to];
      if (target.shares_storage_with(outputs[from])) continue;
      std::memcpy(target.data(), outputs[from].data(), target.bytes());
    }
  }

  ir::Fusion fusion;
  ThreadPool& pool;
  ExecutorOptions options;
  std::vector<Group> groups;
  SemicrfOps semicrf;
  std::unique_ptr<State> checker;  ///< the same program in loops, looked at; nothing is kept of it
  std::unique_ptr<CpuKernels> compiled;
  std::unique_ptr<DeviceProgram> device;
  std::map<std::vector<Shape>, CpuPlan> plans;
  const CpuPlan* last_plan = nullptr;
  std::vector<std::byte*> given;  ///< to the run at hand
  GrowingMemory arena;
};

Executable::Executable(ir::Fusion fusion, ThreadPool& pool, ExecutorOptions options)
    : state_(std::make_unique<State>(std::move(fusion), pool, options)) {}
Executable::~Executable() = default;
Executable::Executable(Executable&&) noexcept = default;
Executable& Executable::operator=(Executable&&) noexcept = default;

ExecutorOptions executor_options(const Context& context) {
  const Options& chosen = context.options();
  return {.backend = backend_from_name(chosen.get(options::kBackend)),
          .check_numerics = chosen.get(options::kCheckNumerics) == "op",
          .accelerator = open_accelerator(chosen.get(options::kDevice), context),
          .context = context};
}

std::string device_matmul_library() { return runtime::cuda_matmul_library(); }

std::string cpu_compiler_name(std::string* reason) {
  const std::shared_ptr<jit::CpuCompiler> compiler = shared_cpu_compiler({}, reason);
  return compiler ? compiler->version() : "";
}

Backend backend_from_name(std::string_view name) {
  if (name == "compiled") return Backend::kCompiled;
  if (name == "loops") return Backend::kLoops;
  if (name == "reference") return Backend::kReference;
  throw UsageError(
      fmt::format("backend '{}' is unknown; known are 'compiled', 'loops' and 'reference'", name));
}

void Executable::check() {
  if (state_->device) state_->device->check();
}
std::string Executable::look(std::span<const Tensor> inputs) {
  return state_->device ? state_->device->look(inputs) : "";
}
std::vector<Tensor> Executable::run(std::span<const Tensor> inputs) { return state_->run(inputs); }
const ir::Fusion& Executable::fusion() const noexcept { return state_->fusion; }
std::vector<StepTime> Executable::step_times() const { return state_->times(); }
std::size_t Executable::workspace_bytes() const noexcept { return state_->arena.size(); }

}  // namespace segfuse::engine
