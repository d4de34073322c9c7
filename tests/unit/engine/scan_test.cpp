// scan against the same program with its steps written out.

#include <fmt/core.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <memory>

#include "compiler/autodiff.h"
#include "engine/device/accelerator.h"
#include "engine/executable.h"
#include "ir/body.h"
#include "ir/builder.h"
#include "ir/interpret/interpreter.h"
#include "ir/rules/verify.h"
#include "ir/text.h"
#include "runtime/check/listener.h"
#include "runtime/cpu/cpu_device.h"
#include "segfuse/error.h"
#include "support/tensors.h"

namespace segfuse::engine {
namespace {

using ir::Builder;
using ir::Extents;
using ir::Fusion;
using ir::Op;
using ir::ValId;
using segfuse::testing::same_bits;
using segfuse::testing::uniform;

/// carry (B, H), counter i64[], x (B, I), w (I + H, H) -> tanh of the product, counter + 1; stacked
/// are the carry beside x, and the counter.
Fusion make_body(DType dtype) {
  Fusion body("cell");
  const Extents state{body.symbol("B"), body.symbol("H")};
  const ValId h = body.add_input("h", dtype, state);
  const ValId n = body.add_input("n", DType::kI64, {});
  const ValId x = body.add_input("x", dtype, {body.symbol("B"), 3});
  const ValId w = body.add_input("w", dtype, {3 + ir::Extent(body.symbol("H")), body.symbol("H")});
  Builder b(body);
  const ValId both = b.concat({x, h}, 1);
  const ValId next = b.tanh(b.matmul(both, w));
  body.add_output(next, "h");
  body.add_output(b.add(n, b.constant_like(1, n)), "n");
  body.add_output(b.concat({next, x}, 1), "y");
  body.add_output(n, "step");
  return body;
}

constexpr std::int64_t kBatch = 2;
constexpr std::int64_t kState = 4;

struct Made {
  Fusion fusion;
  std::vector<ValId> inputs;
  std::vector<ValId> results;
};

Made begin(DType dtype, std::int64_t length) {
  Made made;
  made.inputs = {made.fusion.add_input("h", dtype, {kBatch, kState}),
                 made.fusion.add_input("n", DType::kI64, {}),
                 made.fusion.add_input("x", dtype, {length, kBatch, 3}),
                 made.fusion.add_input("w", dtype, {3 + kState, kState})};
  return made;
}

Made with_scan(DType dtype, std::int64_t length, bool reverse) {
  Made made = begin(dtype, length);
  Builder b(made.fusion);
  made.results =
      b.make_all(Op::scan, made.inputs,
                 {std::int64_t{2}, std::int64_t{1}, Extents{length}, std::int64_t{reverse},
                  ir::Body{std::make_shared<const Fusion>(make_body(dtype))}});
  return made;
}

/// The same, step by step.
Made written_out(DType dtype, std::int64_t length, bool reverse) {
  Made made = begin(dtype, length);
  Builder b(made.fusion);
  const Fusion body = make_body(dtype);
  ValId h = made.inputs[0];
  ValId n = made.inputs[1];
  std::vector<std::vector<ValId>> stacked(2);
  for (std::int64_t i = 0; i < length; ++i) {
    const std::int64_t t = reverse ? length - 1 - i : i;
    const ValId x = b.squeeze(b.slice_axis(made.inputs[2], 0, t, 1), {0});
    const ValId step[] = {h, n, x, made.inputs[3]};
    const std::vector<ValId> out = ir::inline_body(made.fusion, body, step);
    h = out[0];
    n = out[1];
    for (std::size_t s = 0; s < 2; ++s) {
      Extents one = made.fusion.val(out[2 + s]).shape;
      one.insert(one.begin(), 1);
      stacked[s].insert(reverse ? stacked[s].begin() : stacked[s].end(),
                        b.reshape(out[2 + s], one));
    }
  }
  made.results = {h, n, b.concat(stacked[0], 0), b.concat(stacked[1], 0)};
  return made;
}

/// All results, and the gradients of a sum that weighs each element of the float ones differently.
void add_outputs(Made& made, bool gradients) {
  Fusion& f = made.fusion;
  Builder b(f);
  if (gradients) {
    ValId total = b.cast(b.constant(0), f.val(made.results[0]).dtype);
    for (const std::size_t r : {0U, 2U}) {
      ir::Extent count(1);
      for (const ir::Extent& size : f.val(made.results[r]).shape) count = count * size;
      const ValId all = b.reshape(made.results[r], {count});
      const ValId weights = b.sin(b.iota(count, DType::kF64));
      total = b.add(total, b.sum(b.mul(all, b.cast(weights, f.val(all).dtype)), {0}));
    }
    const ValId wrt[] = {made.inputs[0], made.inputs[2], made.inputs[3]};
    for (const ValId gradient : compiler::gradients(f, total, wrt)) f.add_output(gradient);
  }
  for (const ValId result : made.results) f.add_output(result);
}

std::vector<Tensor> draw(const Fusion& fusion, std::uint64_t seed) {
  Rng rng(seed);
  std::vector<Tensor> inputs;
  for (const ir::Input& input : fusion.inputs()) {
    Shape shape;
    for (const ir::Extent& size : fusion.val(input.val).shape) shape.push_back(size.constant());
    if (fusion.val(input.val).dtype == DType::kI64)
      inputs.push_back(Tensor::full(DType::kI64, shape, 5));
    else
      inputs.push_back(uniform(rng, fusion.val(input.val).dtype, shape));
  }
  return inputs;
}

template <class Action>
std::string refusal_of(Action action) {
  try {
    action();
  } catch (const DataError& error) {
    return error.what();
  }
  return "no error";
}

class Scan : public ::testing::TestWithParam<std::string> {};

TEST_P(Scan, IsItsStepsWrittenOut) {
  ThreadPool one(1);
  ThreadPool four(4);
  for (const DType dtype : {DType::kF32, DType::kF64, DType::kF16, DType::kBF16})
    for (const std::int64_t length : {1, 2, 5})
      for (const bool reverse : {false, true}) {
        SCOPED_TRACE(fmt::format("{}, {} steps, reverse {}", name_of(dtype), length, reverse));
        Made made = with_scan(dtype, length, reverse);
        add_outputs(made, true);
        ir::verify(made.fusion);
        EXPECT_EQ(ir::print(ir::parse(ir::print(made.fusion))), ir::print(made.fusion));
        Made long_form = written_out(dtype, length, reverse);
        add_outputs(long_form, true);
        const std::vector<Tensor> inputs = draw(made.fusion, 3);
        const auto expected = ir::interpret(long_form.fusion, inputs);
        const auto reference = ir::interpret(made.fusion, inputs);
        const auto found =
            Executable(made.fusion, one, {.backend = GetParam(), .poison = true}).run(inputs);
        const auto again =
            Executable(made.fusion, four, {.backend = GetParam(), .poison = true}).run(inputs);
        const double unit = dtype == DType::kF64   ? 1e-12
                            : dtype == DType::kF32 ? 1e-5
                            : dtype == DType::kF16 ? 2e-2
                                                   : 2e-1;
        ASSERT_EQ(found.size(), expected.size());
        for (std::size_t o = 0; o < found.size(); ++o) {
          ASSERT_EQ(found[o].shape(), expected[o].shape()) << o;
          EXPECT_TRUE(same_bits(found[o], again[o])) << o;
          for (std::int64_t i = 0; i < found[o].size(); ++i) {
            EXPECT_NEAR(reference[o].at(i), expected[o].at(i), 1e-12) << o << ", " << i;
            EXPECT_NEAR(found[o].at(i), expected[o].at(i), unit) << o << ", " << i;
          }
        }
      }
}

TEST_P(Scan, OfNoStepsGivesItsCarries) {
  ThreadPool pool(1);
  Made made = with_scan(DType::kF32, 0, false);
  add_outputs(made, true);
  const std::vector<Tensor> inputs = draw(made.fusion, 4);
  const auto expected = ir::interpret(made.fusion, inputs, {}, {.outputs_as_f64 = false});
  const auto found =
      Executable(made.fusion, pool, {.backend = GetParam(), .poison = true}).run(inputs);
  for (std::size_t o = 0; o < found.size(); ++o) EXPECT_TRUE(same_bits(found[o], expected[o])) << o;
  EXPECT_TRUE(same_bits(found[3], inputs[0]));
  EXPECT_TRUE(same_bits(found[4], inputs[1]));
}

TEST_P(Scan, RoundsEachStepAsTheInterpreterDoes) {
  if (GetParam() == "reference") GTEST_SKIP() << "it rounds at the end";
  ThreadPool pool(1);
  for (const DType dtype : {DType::kF16, DType::kBF16}) {
    // A sum whose parts are lost when they are rounded: without rounding it would be much larger.
    Fusion body("sum");
    const ValId h = body.add_input("h", dtype, {1});
    const ValId x = body.add_input("x", dtype, {1});
    Builder s(body);
    body.add_output(s.add(h, x));
    Fusion f;
    const ValId first = f.add_input("h", dtype, {1});
    const ValId steps = f.add_input("x", dtype, {100, 1});
    Builder b(f);
    f.add_output(b.make_all(Op::scan, {first, steps},
                            {std::int64_t{1}, std::int64_t{1}, Extents{100}, std::int64_t{0},
                             ir::Body{std::make_shared<const Fusion>(std::move(body))}})[0]);
    const std::vector<Tensor> inputs{Tensor::full(dtype, {1}, 1024),
                                     Tensor::full(dtype, {100, 1}, 0.25)};
    const auto expected =
        ir::interpret(f, inputs, {}, {.outputs_as_f64 = false, .round_to_dtype = true});
    const auto found = Executable(f, pool, {.backend = GetParam()}).run(inputs);
    EXPECT_TRUE(same_bits(found[0], expected[0]));
    EXPECT_EQ(found[0].at(0), 1024);
  }
}

TEST_P(Scan, TakesAnyLength) {
  ThreadPool pool(2);
  Fusion f;
  const ir::Extent length = f.symbol("T");
  const ir::Extent width = f.symbol("N");
  const ValId first = f.add_input("h", DType::kF64, {width});
  const ValId steps = f.add_input("x", DType::kF64, {length, width});
  Fusion body("decay");
  const ValId h = body.add_input("h", DType::kF64, {body.symbol("K")});
  const ValId x = body.add_input("x", DType::kF64, {body.symbol("K")});
  Builder s(body);
  const ValId next = s.add(s.mul(h, s.constant_like(0.5, h)), x);
  body.add_output(next);
  body.add_output(s.sum(next, {0}));
  Builder b(f);
  const auto all = b.make_all(Op::scan, {first, steps},
                              {std::int64_t{1}, std::int64_t{1}, Extents{length}, std::int64_t{0},
                               ir::Body{std::make_shared<const Fusion>(std::move(body))}});
  f.add_output(all[0]);
  f.add_output(all[1]);
  Executable run(f, pool, {.backend = GetParam()});
  Rng rng(1);
  for (const std::int64_t t : {1, 7, 3, 7}) {
    const std::vector<Tensor> inputs{uniform(rng, DType::kF64, {5}),
                                     uniform(rng, DType::kF64, {t, 5})};
    const auto found = run.run(inputs);
    std::vector<double> state;
    for (std::int64_t i = 0; i < 5; ++i) state.push_back(inputs[0].at(i));
    for (std::int64_t step = 0; step < t; ++step) {
      double total = 0;
      for (std::int64_t i = 0; i < 5; ++i) {
        const auto n = static_cast<std::size_t>(i);
        state[n] = 0.5 * state[n] + inputs[1].at(step * 5 + i);
        total += state[n];
      }
      EXPECT_NEAR(found[1].at(step), total, 1e-12);
    }
    for (std::int64_t i = 0; i < 5; ++i)
      EXPECT_NEAR(found[0].at(i), state[static_cast<std::size_t>(i)], 1e-12);
  }
}

TEST_P(Scan, SecondDerivativesAreThoseOfItsSteps) {
  ThreadPool pool(1);
  std::vector<std::vector<Tensor>> found;
  std::vector<Tensor> inputs;
  for (const bool scanned : {true, false}) {
    Made made = scanned ? with_scan(DType::kF64, 3, false) : written_out(DType::kF64, 3, false);
    Fusion& f = made.fusion;
    Builder b(f);
    const ValId total = b.sum(b.square(made.results[2]), {0, 1, 2});
    const ValId w = made.inputs[3];
    const ValId first = compiler::gradients(f, total, std::vector{w})[0];
    const ValId norm = b.sum(b.square(first), {0, 1});
    const ValId wrt[] = {w, made.inputs[2], made.inputs[0]};
    for (const ValId second : compiler::gradients(f, norm, wrt)) f.add_output(second);
    inputs = draw(f, 9);
    found.push_back(Executable(f, pool, {.backend = GetParam()}).run(inputs));
  }
  for (std::size_t o = 0; o < found[0].size(); ++o)
    for (std::int64_t i = 0; i < found[0][o].size(); ++i)
      EXPECT_NEAR(found[0][o].at(i), found[1][o].at(i), 1e-9 * (1 + std::abs(found[1][o].at(i))));
}

TEST_P(Scan, WithinAScan) {
  ThreadPool pool(1);
  Fusion inner("inner");
  const ValId a = inner.add_input("a", DType::kF64, {});
  const ValId v = inner.add_input("v", DType::kF64, {});
  Builder i(inner);
  inner.add_output(i.add(i.mul(a, v), v));
  Fusion outer("outer");
  const ValId h = outer.add_input("h", DType::kF64, {});
  const ValId row = outer.add_input("row", DType::kF64, {outer.symbol("M")});
  Builder o(outer);
  const ValId made =
      o.make_all(Op::scan, {h, row},
                 {std::int64_t{1}, std::int64_t{1}, Extents{outer.symbol("M")}, std::int64_t{1},
                  ir::Body{std::make_shared<const Fusion>(std::move(inner))}})[0];
  outer.add_output(made);
  outer.add_output(o.square(made));
  Fusion f;
  const ValId x = f.add_input("x", DType::kF64, {f.symbol("T"), f.symbol("N")});
  Builder b(f);
  const auto all =
      b.make_all(Op::scan, {f.constant(1, DType::kF64), x},
                 {std::int64_t{1}, std::int64_t{1}, Extents{f.symbol("T")}, std::int64_t{0},
                  ir::Body{std::make_shared<const Fusion>(std::move(outer))}});
  f.add_output(all[1]);
  f.add_output(compiler::gradients(f, b.sum(all[1], {0}), std::vector{x})[0]);
  EXPECT_EQ(ir::print(ir::parse(ir::print(f))), ir::print(f));
  Rng rng(2);
  const std::vector<Tensor> inputs{uniform(rng, DType::kF64, {3, 4})};
  const auto found = Executable(f, pool, {.backend = GetParam()}).run(inputs);
  const auto squares = [&](const Tensor& of) {
    std::vector<double> result;
    double state = 1;
    for (std::int64_t t = 0; t < 3; ++t) {
      for (std::int64_t m = 3; m >= 0; --m) state = state * of.at(t * 4 + m) + of.at(t * 4 + m);
      result.push_back(state * state);
    }
    return result;
  };
  const std::vector<double> expected = squares(inputs[0]);
  for (std::int64_t t = 0; t < 3; ++t)
    EXPECT_NEAR(found[0].at(t), expected[static_cast<std::size_t>(t)], 1e-12);
  for (std::int64_t at = 0; at < 12; ++at) {
    double change = 0;
    for (const double side : {1.0, -1.0}) {
      Tensor moved = inputs[0].clone();
      moved.set(at, moved.at(at) + side * 1e-6);
      for (const double value : squares(moved)) change += side * value / 2e-6;
    }
    EXPECT_NEAR(found[1].at(at), change, 1e-6);
  }
}

TEST(ScanChecks, OnStreamsItHasTheSameBitsAndNoRace) {
  const auto host = Accelerator::make("cpu", nullptr, std::make_unique<runtime::CpuDevice>(),
                                      {.streams = 2, .check_streams = true});
  const runtime::RaceListener listener;
  ThreadPool pool(2);
  Made made = with_scan(DType::kF32, 5, false);  // and one that does not depend on it
  Builder b(made.fusion);
  made.fusion.add_output(
      b.make_all(Op::scan, made.inputs,
                 {std::int64_t{2}, std::int64_t{1}, Extents{5}, std::int64_t{1},
                  ir::Body{std::make_shared<const Fusion>(make_body(DType::kF32))}})[2]);
  add_outputs(made, true);
  const std::vector<Tensor> inputs = draw(made.fusion, 6);
  for (const char* backend : {"compiled", "loops"}) {
    Executable on_streams(made.fusion, pool, {.backend = backend, .poison = true, .host = host});
    const auto expected = Executable(made.fusion, pool, {.backend = backend}).run(inputs);
    for (int repeat = 0; repeat < 3; ++repeat) {
      const auto found = on_streams.run(inputs);
      for (std::size_t o = 0; o < found.size(); ++o)
        EXPECT_TRUE(same_bits(found[o], expected[o])) << o;
    }
  }
  EXPECT_TRUE(listener.findings().empty());
  EXPECT_GT(listener.operations(), 0U);
}

TEST(ScanChecks, NaNWithinAStepIsOfTheScan) {
  ThreadPool pool(1);
  for (const DType dtype : {DType::kF32, DType::kF16}) {
    Made made = with_scan(dtype, 3, false);
    add_outputs(made, false);
    std::vector<Tensor> inputs = draw(made.fusion, 5);
    const auto run = [&] {
      return Executable(made.fusion, pool, {.check_numerics = true}).run(inputs);
    };
    EXPECT_NO_THROW(run());
    inputs[2].set(7, std::nan(""));
    const std::string message = refusal_of(run);
    EXPECT_THAT(message, ::testing::HasSubstr("scan gave nan"));
  }
}

INSTANTIATE_TEST_SUITE_P(On, Scan, ::testing::Values("loops", "compiled", "reference"),
                         [](const auto& instance) { return instance.param; });

}  // namespace
}  // namespace segfuse::engine
