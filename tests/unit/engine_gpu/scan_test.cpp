// scan on a device against the interpreter: results, gradients, and what a loop may contain.

#include <cmath>

#include "compiler/autodiff.h"
#include "ir/body.h"
#include "segfuse/error.h"
#include "unit/engine_gpu/device_test.h"

namespace segfuse::engine::testing {
namespace {

using ir::Builder;
using ir::Extents;
using ir::Fusion;
using ir::Op;
using ir::ValId;
using segfuse::testing::uniform;

std::vector<ValId> add_scan(Builder& b, std::vector<ValId> operands, std::int64_t carries,
                            std::int64_t sequences, std::int64_t length, bool reverse,
                            Fusion body) {
  return b.make_all(Op::scan, std::move(operands),
                    {carries, sequences, Extents{length}, std::int64_t{reverse},
                     ir::Body{std::make_shared<const Fusion>(std::move(body))}});
}

/// h (B, H), n i64[], x (B, 3), w (3 + H, H) -> tanh of the product, n + 1; stacked: the state
/// beside x, and n. Steps of 3 B elements begin anywhere.
Fusion cell(DType dtype) {
  Fusion body("cell");
  const ValId h = body.add_input("h", dtype, {body.symbol("B"), body.symbol("H")});
  const ValId n = body.add_input("n", DType::kI64, {});
  const ValId x = body.add_input("x", dtype, {body.symbol("B"), 3});
  const ValId w = body.add_input("w", dtype, {3 + ir::Extent(body.symbol("H")), body.symbol("H")});
  Builder b(body);
  const ValId next = b.tanh(b.matmul(b.concat({x, h}, 1), w));
  body.add_output(next, "h");
  body.add_output(b.add(n, b.constant_like(1, n)), "n");
  body.add_output(b.concat({next, x}, 1), "y");
  body.add_output(n, "step");
  return body;
}

TEST_P(OnDevice, LoopsAndTheirGradients) {
  for (const DType dtype : {DType::kF32, DType::kF64, DType::kBF16})
    for (const std::int64_t length : {0, 1, 6})
      for (const bool reverse : {false, true})
        for (const std::int64_t state : {4, 64}) {
          if ((length < 2 || dtype != DType::kF32) && (reverse || state > 4)) continue;
          Rng rng(static_cast<std::uint64_t>(length));
          TestProgram p;
          const std::int64_t batch = 2;
          const ValId h = p.input(uniform(rng, dtype, {batch, state}));
          const ValId n = p.input(Tensor::full(DType::kI64, {}, 5));
          const ValId x = p.input(uniform(rng, dtype, {length, batch, 3}));
          Tensor weights = uniform(rng, dtype, {3 + state, state});  // loops that forget
          for (std::int64_t i = 0; i < weights.size(); ++i)
            weights.set(i, weights.at(i) / std::sqrt(static_cast<double>(state)));
          const ValId w = p.input(weights);
          const std::vector<ValId> out =
              add_scan(p.b, {h, n, x, w}, 2, 1, length, reverse, cell(dtype));
          if (dtype != DType::kBF16) {
            const ValId wrt[] = {h, x, w};
            const ValId total = p.b.add(p.b.sum(p.b.mul(out[0], out[0]), {0, 1}),
                                        p.b.sum(p.b.sin(out[2]), {0, 1, 2}));
            for (const ValId gradient : compiler::gradients(p.fusion, total, wrt))
              p.output(gradient);
          }
          for (const ValId result : out) p.output(result);
          compare(p.fusion, p.inputs,
                  static_cast<double>(state) * (dtype == DType::kBF16 ? 8e-2 : 2e-5));
        }
}

TEST_P(OnDevice, LoopsWhoseStepsAreReadAndWrittenInPlace) {
  Rng rng(7);
  TestProgram p;  // steps of 256 bytes, and a stacked result that nobody reads
  Fusion body("sum");
  const ValId total = body.add_input("total", DType::kF32, {64});
  const ValId x = body.add_input("x", DType::kF32, {64});
  Builder b(body);
  const ValId next = b.add(total, x);
  body.add_output(next, "total");
  body.add_output(next, "so far");
  body.add_output(b.mul(next, next), "unread");
  const ValId from = p.input(uniform(rng, DType::kF32, {64}));
  const ValId all = p.input(uniform(rng, DType::kF32, {9, 64}));
  const std::vector<ValId> out = add_scan(p.b, {from, all}, 1, 1, 9, false, std::move(body));
  p.output(out[0]);
  p.output(out[1]);
  compare(p.fusion, p.inputs, 1e-5);
}

/// A loop within a loop, sequences of columns, and nothing in a batch.
TEST_P(OnDevice, LoopsWithinLoopsAndOfNothing) {
  for (const std::int64_t batch : {0, 1, 3}) {
    Rng rng(3);
    TestProgram p;
    Fusion inner("inner");
    {
      const ValId c = inner.add_input("c", DType::kF32, {inner.symbol("B")});
      const ValId x = inner.add_input("x", DType::kF32, {inner.symbol("B")});
      Builder b(inner);
      const ValId next = b.add(b.mul(c, b.constant_like(0.5, c)), x);
      inner.add_output(next, "c");
      inner.add_output(next, "y");
    }
    Fusion outer("outer");
    {
      const ValId c = outer.add_input("c", DType::kF32, {outer.symbol("B")});
      const ValId x = outer.add_input("x", DType::kF32, {4, outer.symbol("B")});
      Builder b(outer);
      const std::vector<ValId> out = add_scan(b, {c, x}, 1, 1, 4, true, inner);
      outer.add_output(out[0], "c");
      outer.add_output(b.sum(out[1], {0}), "sums");
    }
    const ValId c = p.input(uniform(rng, DType::kF32, {batch}));
    const ValId x = p.input(uniform(rng, DType::kF32, {4, batch, 5}));
    const ValId turned = p.b.permute(x, {2, 0, 1});
    for (const ValId result : add_scan(p.b, {c, turned}, 1, 1, 5, false, std::move(outer)))
      p.output(result);
    compare(p.fusion, p.inputs, 1e-5);
  }
}

/// Its zeros would have to be filled in at each step.
TEST_P(OnDevice, LoopsWithAProductOverNothingAreRefused) {
  Fusion body("nothing");
  const ValId sum = body.add_input("sum", DType::kF32, {2, 3});
  const ValId a = body.add_input("a", DType::kF32, {2, body.symbol("K")});
  const ValId w = body.add_input("w", DType::kF32, {body.symbol("K"), 3});
  Builder b(body);
  body.add_output(b.add(sum, b.matmul(a, w)), "sum");
  TestProgram p;
  const ValId start = p.input(Tensor::full(DType::kF32, {2, 3}, 1));
  const ValId all = p.input(Tensor::zeros(DType::kF32, {4, 2, 0}));
  const ValId weights = p.input(Tensor::zeros(DType::kF32, {0, 3}));
  p.output(add_scan(p.b, {start, all, weights}, 1, 1, 4, false, std::move(body))[0]);
  Executable executable(p.fusion, pool, on_device());
  const std::string message = message_of<UsageError>([&] { executable.run(p.inputs); });
  EXPECT_NE(message.find("a matrix product over no elements within a loop"), std::string::npos)
      << message;
}

TEST_P(OnDevice, AnIndexOutOfRangeWithinALoopIsAnError) {
  Fusion body("look up");
  const ValId sum = body.add_input("sum", DType::kF32, {});
  const ValId i = body.add_input("i", DType::kI64, {2});
  const ValId table = body.add_input("table", DType::kF32, {5});
  Builder b(body);
  body.add_output(b.add(sum, b.sum(b.take(table, i, 0), {0})), "sum");
  TestProgram p;
  Rng rng(5);
  const ValId start = p.input(Tensor::full(DType::kF32, {}, 0));
  const ValId indices = p.input(Tensor::full(DType::kI64, {3, 2}, 4));
  const ValId values = p.input(uniform(rng, DType::kF32, {5}));
  p.output(add_scan(p.b, {start, indices, values}, 1, 1, 3, false, std::move(body))[0]);
  compare(p.fusion, p.inputs, 1e-5);
  p.inputs[1].set(4, 5);
  Executable executable(p.fusion, pool, on_device());
  const std::string message = message_of<UsageError>([&] { executable.run(p.inputs); });
  EXPECT_NE(message.find("take: index along axis 0 is out of range"), std::string::npos) << message;
  p.inputs[1].set(4, 0);
  executable.run(p.inputs);
}

}  // namespace
}  // namespace segfuse::engine::testing
