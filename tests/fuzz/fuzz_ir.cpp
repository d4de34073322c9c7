// Any bytes are a Fusion that prints and parses to itself, or a DataError. A Fusion becomes kernels
// for both targets and runs, or a UsageError says why not.

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "engine/compiled/emit.h"
#include "engine/exec/semicrf_ops.h"
#include "engine/executable.h"
#include "ir/bind.h"
#include "ir/interpret/interpreter.h"
#include "ir/rules/verify.h"
#include "ir/text.h"
#include "segfuse/error.h"
#include "support/structure.h"

using namespace segfuse;  // NOLINT(google-build-using-namespace): a program of one function

namespace {

constexpr std::size_t kMaxOperations = 60;      // of what is compiled
constexpr std::int64_t kMaxElements = 1 << 14;  // of what is run, in all values together
constexpr std::uint64_t kCompiledOnce = 64;     // of so many, one is run by machine code

void require(bool holds) {
  if (!holds) std::abort();
}

/// All sizes alike, but for those that are numbers.
std::vector<Shape> shapes_of(const ir::Fusion& fusion, std::int64_t all) {
  std::vector<Shape> shapes;
  for (const ir::Input& input : fusion.inputs()) {
    shapes.emplace_back();
    for (const ir::Extent& extent : fusion.val(input.val).shape) {
      const ir::Extent size = fusion.canonical(extent);
      shapes.back().push_back(size.is_constant() ? size.constant() : all);
    }
  }
  return shapes;
}

/// Whether all values together are small enough to be computed.
bool is_small(const ir::Fusion& fusion, const ir::Sizes& sizes) {
  std::int64_t elements = 0;
  for (const ir::ValId id : fusion.vals()) {
    const std::int64_t of_one = num_elements(sizes.of(fusion.val(id).shape));
    if (of_one > kMaxElements - elements) return false;
    elements += of_one;
  }
  return true;
}

/// The texts of all kernels.
void compile(const ir::Fusion& fusion) {
  for (const compiler::Target target : {compiler::Target::kCpu, compiler::Target::kCuda})
    for (const std::int64_t size : {3, 300}) {
      compiler::CompileOptions how;
      how.target = target;
      for (const ir::Symbol& symbol : fusion.storage().symbols)
        if (!symbol.derived) how.hints.symbols[symbol.name] = size;
      (void)engine::print_kernels(fusion, how);
    }
}

void run(const ir::Fusion& fusion, const std::vector<Shape>& shapes, const std::string& backend) {
  std::vector<Tensor> inputs;
  for (std::size_t i = 0; i < shapes.size(); ++i) {
    const DType dtype = fusion.val(fusion.inputs()[i].val).dtype;
    inputs.push_back(Tensor::zeros(dtype, shapes[i]));
    for (std::int64_t e = 0; e < inputs[i].size(); ++e)
      inputs[i].set(e, static_cast<double>(e % 3) / (is_float(dtype) ? 2 : 1));
  }
  try {
    const std::vector<Tensor> expected =
        ir::interpret(fusion, inputs, engine::reference_opaque_ops());
    ThreadPool pool(1);
    engine::Executable executable(fusion, pool, {.backend = backend});
    const std::vector<Tensor> found = executable.run(inputs);
    require(found.size() == expected.size());
    for (std::size_t i = 0; i < found.size(); ++i) require(found[i].shape() == expected[i].shape());
  } catch (const UsageError&) {  // an index out of range
  } catch (const DataError&) {   // scores of a CRF
  }
}

void check(const ir::Fusion& fusion) {
  ir::verify(fusion);
  const std::string text = ir::print(fusion);
  const ir::Fusion again = ir::parse(text);
  require(ir::print(again) == text);
  const auto hash = ir::structural_hash(fusion);
  require(hash == ir::structural_hash(again));
  if (fusion.exprs().size() > kMaxOperations) return;
  try {
    compile(fusion);
  } catch (const UsageError&) {  // what has no kernels
  }
  for (const std::int64_t size : {3, 0}) {
    const std::vector<Shape> shapes = shapes_of(fusion, size);
    try {
      if (!is_small(fusion, ir::bind(fusion, shapes))) continue;
    } catch (const UsageError&) {  // such sizes do not fit
      continue;
    }
    run(fusion, shapes, "loops");
    if (hash % kCompiledOnce == 0) run(fusion, shapes, "compiled");
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  try {
    check(ir::parse(text));
  } catch (const DataError&) {  // says what is wrong with the text
  }
  return 0;
}
