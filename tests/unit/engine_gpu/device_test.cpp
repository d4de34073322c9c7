#include "unit/engine_gpu/device_test.h"

#include <fmt/format.h>
#include <gmock/gmock.h>

#include <cstdlib>
#include <filesystem>
#include <functional>
#include <map>
#include <mutex>
#include <set>

#include "base/code/code_store.h"
#include "comm/registered/pool.h"
#include "engine/device/device_kernels.h"
#include "runtime/cpu/cpu_device.h"
#include "segfuse/error.h"
#include "support/bad_indices.h"
#include "support/random/random_fusion.h"
#include "support/random/random_runs.h"

namespace segfuse::engine::testing {
namespace {

using ir::Builder;
using ir::Fusion;
using ir::ValId;
using segfuse::testing::row;
using segfuse::testing::tensor;
using segfuse::testing::uniform;

INSTANTIATE_TEST_SUITE_P(Places, OnDevice, ::testing::Values("simulated", "cuda"),
                         [](const auto& instance) { return std::string(instance.param); });

double tolerance_of(DType dtype) {
  switch (dtype) {
    case DType::kF64: return 1e-12;
    case DType::kF16: return 4e-3;
    case DType::kBF16: return 3e-2;
    default: return 1e-5;
  }
}

TEST_P(OnDevice, RefusesWhatPassesLeaveOut) {
  const ir::Fusion fusion = ir::parse(
      "fusion \"empty\" {\n  symbols N\n  %0 = input \"x\" : f32[N]\n"
      "  %1 = slice(%0) {starts=[8], sizes=[0]}\n  %2 = sum(%1) {axes=[0]}\n"
      "  output %2\n}\n");
  Executable executable(fusion, pool, on_device());
  const auto run = [&] { executable.run(std::vector{Tensor::zeros(DType::kF32, {4})}); };
  const std::string message = message_of<UsageError>(run);
  EXPECT_NE(message.find("is outside axis 0 of 4 elements"), std::string::npos) << message;
}

TEST_P(OnDevice, MatrixProductsOfAllForms) {
  Rng rng(1);
  for (const DType dtype : {DType::kF32, DType::kF64, DType::kBF16, DType::kF16})
    for (const bool transpose_a : {false, true})
      for (const bool transpose_b : {false, true}) {
        TestProgram p;
        const auto matrix = [&](Shape batch, std::int64_t rows, std::int64_t columns, bool turned) {
          batch.push_back(turned ? columns : rows);
          batch.push_back(turned ? rows : columns);
          return p.input(uniform(rng, dtype, batch));
        };
        const auto multiply = [&](ValId a, ValId b) {
          p.output(p.b.matmul(a, b, transpose_a, transpose_b));
        };
        multiply(matrix({}, 5, 19, transpose_a), matrix({}, 19, 33, transpose_b));
        multiply(matrix({3}, 17, 4, transpose_a), matrix({3}, 4, 6, transpose_b));
        multiply(matrix({2, 3}, 8, 5, transpose_a), matrix({}, 5, 16, transpose_b));
        multiply(matrix({}, 1, 1, transpose_a), matrix({}, 1, 1, transpose_b));
        multiply(matrix({}, 4, 0, transpose_a), matrix({}, 0, 3, transpose_b));
        multiply(matrix({}, 0, 4, transpose_a), matrix({}, 4, 3, transpose_b));
        // Views: a part of the columns, and axes in another order.
        multiply(p.b.slice_axis(matrix({}, 6, 8, transpose_a), transpose_a ? 0 : 1, 1, 6),
                 matrix({}, 6, 7, transpose_b));
        multiply(p.b.permute(matrix({4}, 3, 5, !transpose_a), {0, 2, 1}),
                 matrix({}, 5, 2, transpose_b));
        compare(p.fusion, p.inputs, 20 * tolerance_of(dtype));
      }
}

TEST_P(OnDevice, AttentionOfNumbers) {
  ir::Fusion fusion;
  ir::Builder b(fusion);
  const ir::Extents shape{2, 3, 40, 8};
  const ir::ValId q = fusion.add_input("q", DType::kF32, shape);
  const ir::ValId k = fusion.add_input("k", DType::kF32, shape);
  const ir::ValId v = fusion.add_input("v", DType::kF32, shape);
  const ir::ValId scores = b.matmul(q, b.permute(k, {0, 1, 3, 2}));
  fusion.add_output(b.matmul(b.softmax(scores, 3), v));
  // The same through other orders, with what is turned computed on the way.
  const ir::ValId turned = b.permute(b.reshape(b.exp(k), {6, 40, 8}), {0, 2, 1});
  fusion.add_output(b.matmul(b.reshape(q, {6, 40, 8}), turned));
  fusion.add_output(b.exp(b.reshape(b.permute(k, {1, 0, 3, 2}), {6, 320})));
  std::vector<Tensor> inputs;
  Rng rng(3);
  for (int i = 0; i < 3; ++i) {
    inputs.emplace_back(DType::kF32, Shape{2, 3, 40, 8});
    for (std::int64_t e = 0; e < inputs.back().size(); ++e) inputs.back().set(e, rng.normal());
  }
  compare(fusion, inputs, 1e-4);
}

TEST_P(OnDevice, NamesTheFirstIndexOutOfRange) {
  for (const auto& [name, text, inputs, message] : segfuse::testing::bad_indices()) {
    SCOPED_TRACE(name);
    Executable executable(ir::parse(text), pool, on_device());
    const auto said = [&](const std::vector<Tensor>& given) {
      return message_of<UsageError>([&] {
        executable.run(given);
        executable.check();
      });
    };
    EXPECT_THAT(said(inputs), ::testing::HasSubstr(message));
    std::vector<Tensor> there;
    for (const Tensor& input : inputs) there.push_back(accelerator->upload(input));
    EXPECT_THAT(said(there), ::testing::HasSubstr(message));
  }
}

TEST_P(OnDevice, SumsIntoChosenPlaces) {
  Rng rng(2);
  for (const DType dtype : {DType::kF32, DType::kF64, DType::kBF16, DType::kI64}) {
    TestProgram p;
    const auto values = [&](const Shape& shape) {
      return is_float(dtype) ? uniform(rng, dtype, shape)
                             : segfuse::testing::counting(shape, dtype);
    };
    std::vector<double> many(700);
    for (double& index : many) index = static_cast<double>(rng.below(9));
    const ValId few = p.input(row({3, 0, 3, 2}, DType::kI64));
    const ValId lots = p.input(row(many, DType::kI32));
    p.output(p.b.scatter_add(p.input(values({4, 5})), few, 0, 6));
    p.output(p.b.scatter_add(p.input(values({2, 4, 3})), few, 1, 4));
    p.output(p.b.scatter_add(p.input(values({700, 300})), lots, 0, 9));
    p.output(p.b.scatter_add(p.input(values({700, 300})), lots, 0, 6000));  // many rows of a block
    std::vector<double> more(4321);                                         // in chunks
    for (double& index : more) index = static_cast<double>(rng.below(20));
    const ValId chunks = p.input(row(more, DType::kI64));
    p.output(p.b.scatter_add(p.input(values({2, 4321, 3})), chunks, 1, 20));
    p.output(p.b.scatter_add(p.input(values({4})), few, 0, 5));
    if (is_float(dtype)) {
      for (const auto& [size, stride, dilation] :
           {std::tuple{3, 1, 1}, {3, 2, 1}, {2, 1, 3}, {4, 3, 2}}) {
        const std::int64_t windows = (20 - (size - 1) * dilation - 1) / stride + 1;
        p.output(p.b.fold(p.input(values({2, windows, size, 5})), 1, stride, dilation, 20));
      }
    }
    compare(p.fusion, p.inputs, 700 * tolerance_of(dtype) / 10);
  }
}

TEST_P(OnDevice, ASumOfAsManyUpdatesAsThereAre) {
  Fusion fusion("sum");
  Builder b(fusion);
  const ir::Extent n = fusion.symbol("N");
  const ValId x = fusion.add_input("x", DType::kF32, {n, 5});
  const ValId at = fusion.add_input("at", DType::kI64, {n});
  fusion.add_output(b.scatter_add(x, at, 0, 6));
  Rng rng(3);
  for (const std::int64_t count : {0, 1, 2047, 2048, 2500}) {
    std::vector<double> places(static_cast<std::size_t>(count));
    for (double& place : places) place = static_cast<double>(rng.below(6));
    compare(fusion, {uniform(rng, DType::kF32, {count, 5}), row(places, DType::kI64)}, 1e-3);
  }
}

TEST_P(OnDevice, ViewsAndInputsAsOutputs) {
  Rng rng(3);
  for (const DType dtype : {DType::kBool, DType::kI64, DType::kF16, DType::kF32}) {
    TestProgram p;
    const ValId x = p.input(segfuse::testing::counting({3, 4, 5}, dtype));
    p.output(x);
    p.output(p.b.permute(x, {2, 0, 1}));
    p.output(p.b.slice(x, {1, 1, 2}, {2, 3, 2}));
    p.output(p.b.reshape(p.b.permute(x, {1, 0, 2}), {4, 15}));
    p.output(p.b.broadcast(p.b.slice(x, {0, 0, 0}, {1, 4, 1}), {0, 1, 2}, {7, 4, 3}));
    p.output(p.b.unfold(x, 2, 2, 2, 1));
    p.output(x);
    p.output(p.b.slice(x, {0, 0, 0}, {0, 4, 5}));
    compare(p.fusion, p.inputs, 0);
  }
}

struct CrfProgram : TestProgram {
  CrfProgram(DType dtype, bool boundaries, std::int64_t kT = 12) {
    constexpr std::int64_t kB = 3, kC = 3, kK = 4;
    Rng rng(10);
    std::vector<ValId> ids;
    for (const Shape& shape :
         {Shape{kB, kT, kC}, Shape{1, kC, kC}, Shape{kK, kC}, Shape{kC}, Shape{kC}})
      ids.push_back(input(uniform(rng, dtype, shape)));
    for (int i = 0; i < (boundaries ? 2 : 0); ++i)
      ids.push_back(input(uniform(rng, dtype, {kB, kT, kC})));
    ids.push_back(input(row({static_cast<double>(kT), 0, 7}, DType::kI64)));
    Tensor labels = Tensor::zeros(DType::kI32, {kB, kT});
    Tensor starts = Tensor::zeros(DType::kBool, {kB, kT});
    for (std::int64_t i = 0; i < kB * kT; ++i) {
      labels.set(i, static_cast<double>(i / 3 % kC));
      starts.set(i, i % 3 == 0);
    }
    labels_at = inputs.size();
    ids.push_back(input(labels));
    ids.push_back(input(starts));
    output(b.make(ir::Op::semicrf_loss, ids));
    ids.push_back(b.full(0.7, {kB}, dtype));
    const auto gradients = b.make_all(ir::Op::semicrf_loss_grad, ids);
    for (std::size_t i = 0; i < gradients.size(); ++i)
      if (i != 2) output(gradients[i]);  // one is not wanted
  }
  std::size_t labels_at = 0;
};

TEST_P(OnDevice, SemicrfAgreesWithTheReference) {
  for (const bool boundaries : {false, true}) {
    const CrfProgram single(DType::kF32, boundaries);
    compare(single.fusion, single.inputs, 1e-5);
    const CrfProgram twice(DType::kF64, boundaries);
    compare(twice.fusion, twice.inputs, 1e-10);
  }
}

TEST_P(OnDevice, WrongLabelsAreToldByTheRunOrByTheCheck) {
  CrfProgram p(DType::kF32, false);
  p.inputs[p.labels_at].set(4, 2);
  Executable executable(p.fusion, pool, on_device());
  const char* const sentence =
      "semicrf: batch 0, time 4: the label changes without the start of a segment";
  EXPECT_EQ(message_of<DataError>([&] { executable.run(p.inputs); }), sentence);
  std::vector<Tensor> inputs = p.inputs;
  inputs[0] = accelerator->upload(inputs[0]);
  executable.run(inputs);
  EXPECT_EQ(message_of<DataError>([&] { executable.check(); }), sentence);
  p.inputs[p.labels_at].set(4, 1);
  EXPECT_NO_THROW(executable.run(p.inputs));
}

TEST_P(OnDevice, WrongIndicesAreNamed) {
  TestProgram p;
  const ValId table = p.input(segfuse::testing::counting({4, 3}, DType::kF32));
  const ValId at = p.input(row({0, 3, 1}, DType::kI64));
  p.output(p.b.exp(p.b.take(table, at, 0)));
  p.output(p.b.scatter_add(p.input(segfuse::testing::counting({3, 3}, DType::kF32)), at, 0, 4));
  compare(p.fusion, p.inputs, 1e-5);
  Executable executable(p.fusion, pool, on_device());
  Executable on_host(p.fusion, pool);
  p.inputs[1] = row({0, 4, 1}, DType::kI64);
  const std::string expected = message_of<UsageError>([&] { on_host.run(p.inputs); });
  EXPECT_EQ(message_of<UsageError>([&] { executable.run(p.inputs); }), expected);
  std::vector<Tensor> inputs = p.inputs;
  inputs[0] = accelerator->upload(inputs[0]);
  executable.run(inputs);
  EXPECT_EQ(message_of<UsageError>([&] { executable.check(); }), expected);
  EXPECT_NO_THROW(executable.check());
  p.inputs[1] = row({0, 2, 1}, DType::kI64);
  EXPECT_NO_THROW(executable.run(p.inputs));
}

TEST_P(OnDevice, ElementsAreNotReadFromTheHost) {
  Tensor there = accelerator->upload(row({1, 2}));
  EXPECT_EQ(message_of<UsageError>([&] { static_cast<void>(there.at(0)); }),
            "a tensor f64[2] is in the memory of " + accelerator->name() +
                "; copy it to the host with to_host() first");
  EXPECT_THROW(static_cast<void>(there.data()), UsageError);
  EXPECT_THROW(there.span<double>(), UsageError);
  const Tensor copy = there.clone();
  EXPECT_FALSE(copy.shares_storage_with(there));
  EXPECT_TRUE(there.reshaped({2, 1}).shares_storage_with(there));
  EXPECT_EQ(segfuse::testing::values(copy.to_host()), (std::vector<double>{1, 2}));
  TestProgram p;
  p.output(p.b.exp(p.input(row({1, 2}))));
  Executable on_host(p.fusion, pool);
  EXPECT_THROW(on_host.run(std::vector{there}), UsageError);
}

TEST_P(OnDevice, LargeTensorsTravelInPieces) {
  constexpr std::int64_t kMany = (std::int64_t{80} << 20) / 4 + 3;
  Tensor host(DType::kI32, {kMany});
  for (std::int64_t i = 0; i < kMany; ++i)
    host.span<std::int32_t>()[static_cast<std::size_t>(i)] = static_cast<std::int32_t>(i * 7);
  EXPECT_TRUE(segfuse::testing::same_bits(accelerator->upload(host).to_host(), host));
}

std::uint64_t number_of(const char* variable, std::uint64_t otherwise) {
  const char* const wanted = std::getenv(variable);
  return wanted != nullptr ? std::strtoull(wanted, nullptr, 10) : otherwise;
}

/// SEGFUSE_RANDOM_FUSIONS programs of each kind, the first made from SEGFUSE_RANDOM_SEED.
TEST_P(OnDevice, RandomProgramsAgreeWithTheInterpreter) {
  using segfuse::testing::Numbers;
  const std::uint64_t count = number_of("SEGFUSE_RANDOM_FUSIONS", simulated() ? 12 : 100);
  const std::uint64_t first = number_of("SEGFUSE_RANDOM_SEED", 8001);
  const auto functions = numerics::Functions::kDevice;
  const ExecutableOptions poisoned{.poison = true, .accelerator = accelerator};
  const auto run = [this](Executable& executable, const std::vector<Tensor>& inputs) {
    std::vector<Tensor> outputs = executable.run(inputs);
    executable.check();
    for (Tensor& output : outputs) output = output.to_host();
    return outputs;
  };
  const segfuse::testing::Evaluator alone = [&](const Fusion& fusion,
                                                const std::vector<Tensor>& inputs) {
    Executable executable(fusion, pool, poisoned);
    return run(executable, inputs);
  };
  for (std::uint64_t seed = first; seed < first + count && !HasFatalFailure(); ++seed)
    for (const Numbers numbers : {Numbers::kSmooth, Numbers::kSmooth32, Numbers::kExact}) {
      SCOPED_TRACE("seed " + std::to_string(seed));
      const auto program = segfuse::testing::random_fusion(seed, numbers);
      Executable executable(program.fusion, pool, poisoned);
      for (const auto& [b, t] : {std::pair<std::int64_t, std::int64_t>{2, 5}, {1, 7}, {0, 4}}) {
        const auto inputs = segfuse::testing::random_inputs(program, seed, b, t);
        const std::vector<Tensor> found = run(executable, inputs);
        const std::string fault =
            segfuse::testing::difference(program.fusion, numbers, inputs, found, functions);
        ASSERT_EQ(fault, "") << "B = " << b << ", T = " << t << ": "
                             << segfuse::testing::shrunk(program.fusion, numbers, inputs, alone,
                                                         functions);
        std::vector<Tensor> there;
        for (const Tensor& input : inputs) there.push_back(accelerator->upload(input));
        const std::vector<Tensor> again = run(executable, there);
        for (std::size_t o = 0; o < found.size(); ++o)
          EXPECT_TRUE(segfuse::testing::same_bits(found[o], again[o])) << "output " << o;
      }
    }
}

/// Two layers with an in-place update: many steps, several of which may run beside each other.
TestProgram two_layers(std::int64_t rows) {
  Rng rng(5);
  TestProgram p;
  const ValId x = p.input(uniform(rng, DType::kF32, {rows, 8}));
  const ValId w = p.input(uniform(rng, DType::kF32, {8, 8}));
  const ValId v = p.input(uniform(rng, DType::kF32, {8, 8}));
  const ValId a = p.b.softmax(p.b.matmul(x, w), 1);
  const ValId c = p.b.tanh(p.b.matmul(x, v));
  const ValId g = p.b.matmul(a, c, true, false);
  const ValId moved = p.b.sub(w, p.b.mul(g, p.b.constant(0.1)));
  p.output(p.b.sum(p.b.mul(a, c), {0, 1}));
  p.output(moved);
  p.fusion.add_alias(moved, w);
  return p;
}

TEST_P(OnDevice, MemoryStopsGrowingWhenAllShapesWereSeen) {
  const TestProgram first = two_layers(6);
  Executable executable(first.fusion, pool, on_device());
  const TestProgram second = two_layers(6);
  std::uint64_t grown = 0;
  const Tensor w = accelerator->upload(first.inputs[1]);
  for (int round = 0; round < 20; ++round) {
    const std::vector<Tensor> inputs{first.inputs[0], w, first.inputs[2]};
    const std::vector<Tensor> outputs = executable.run(inputs);
    EXPECT_TRUE(std::isfinite(outputs[0].to_host().at(0)));
    if (round == 3) grown = accelerator->heap().statistics().grown;
  }
  EXPECT_EQ(accelerator->heap().statistics().grown, grown);
}

TEST(SimulatedPrograms, GiveTheSameBitsInEveryScheduleWithoutARace) {
  const TestProgram p = two_layers(5);
  ThreadPool pool(1);
  std::vector<Tensor> expected;
  for (const runtime::sim::NamedSchedule& schedule : runtime::sim::all_schedules(4, 6)) {
    SCOPED_TRACE(schedule.name);
    const segfuse::testing::SimAccelerator sim = segfuse::testing::make_sim_accelerator(
        {.streams = 3, .check_streams = true}, schedule.make());
    Executable executable(p.fusion, pool, {.accelerator = sim.accelerator});
    std::vector<Tensor> inputs{p.inputs[0], sim.accelerator->upload(p.inputs[1]), p.inputs[2]};
    std::vector<Tensor> found;
    for (int step = 0; step < 3; ++step) found = executable.run(inputs);
    found[0] = found[0].to_host();
    found[1] = inputs[1].to_host();
    if (expected.empty()) expected = found;
    for (std::size_t o = 0; o < found.size(); ++o)
      EXPECT_TRUE(segfuse::testing::same_bits(found[o], expected[o])) << "output " << o;
  }
}

TEST(SimulatedPrograms, RunOnAfterTheyWereOutOfMemory) {
  const segfuse::testing::SimAccelerator sim = segfuse::testing::make_sim_accelerator();
  ThreadPool pool(1);
  TestProgram p;
  const ValId x = p.fusion.add_input("x", DType::kF32, {p.fusion.symbol("N")});
  p.output(p.b.exp(x));
  Executable executable(p.fusion, pool, {.accelerator = sim.accelerator});
  const Tensor small = sim.accelerator->upload(Tensor::zeros(DType::kF32, {1000}));
  sim.device->set_limit(std::size_t{8} << 20);
  const Tensor large = sim.accelerator->upload(Tensor::zeros(DType::kF32, {1 << 20}));
  const std::string report =
      message_of<runtime::OutOfDeviceMemory>([&] { executable.run(std::vector{large}); });
  EXPECT_NE(report.find("output"), std::string::npos) << report;
  EXPECT_EQ(executable.run(std::vector{small})[0].to_host().at(999), 1.0);
}

/// Slabs leave a forked child alone, and a child cannot change what is being copied.
TEST(Accelerators, StageTheirCopiesInSlabs) {
  comm::Registry registry;
  auto pool = std::make_shared<comm::RegisteredPool>(registry);
  std::size_t held = 0;
  {
    const auto accelerator = Accelerator::make(
        "cpu:0", segfuse::testing::make_program_kernels(), std::make_unique<runtime::CpuDevice>(),
        {.staging = comm::staging_from(*pool, std::size_t{1} << 20), .behind_staging = pool});
    const Tensor host = segfuse::testing::counting({1000}, DType::kI32);
    EXPECT_TRUE(segfuse::testing::same_bits(accelerator->upload(host).to_host(), host));
    held = pool->live_bytes();
  }
  EXPECT_GE(held, 4000U);
  EXPECT_EQ(pool->live_bytes(), 0U);
}

/// Compiles nothing; kernels for which registers were kept spill.
class SpillingKernels final : public runtime::KernelLoader {
 public:
  std::vector<std::string> texts;

  int multiprocessors() const override { return 1; }
  runtime::GpuKernel kernel(const runtime::GpuProgram& program, const std::string&) override {
    const std::lock_guard lock(mutex_);
    texts.push_back(program.source);
    return {reinterpret_cast<void*>(texts.size())};
  }
  std::size_t local_bytes(runtime::GpuKernel kernel) override {
    const std::lock_guard lock(mutex_);
    return bytes_of(texts.at(reinterpret_cast<std::size_t>(kernel.handle) - 1));
  }
  std::function<std::size_t(const std::string& text)> bytes_of = [](const std::string& text) {
    return text.find("__launch_bounds__(256, 1)") == text.npos ? std::size_t{8} : 0;
  };
  void launch(runtime::StreamHandle, runtime::GpuKernel, const runtime::GpuLaunch&, const void*,
              std::size_t) override {}

 private:
  std::mutex mutex_;
};

TEST(DeviceKernels, ThatSpillAreCompiledAgainWithAllRegisters) {
  TestProgram p;
  Rng rng(3, 1);
  const ValId x = p.input(uniform(rng, DType::kF32, {8, 4096}));
  p.output(p.b.softmax(x, 1));
  const auto gpu = std::make_shared<SpillingKernels>();
  DeviceKernels fusion(p.fusion, gpu);
  ir::Sizes sizes;
  const std::vector<Shape> shapes{p.inputs[0].shape()};
  const std::vector<DeviceGroup> groups = fusion.prepare(shapes, sizes);
  ASSERT_EQ(groups.size(), 1U);
  const DeviceKernel& kernel = *groups[0].kernels.at(0);
  EXPECT_EQ(kernel.kernel.kernel.schedule.resident, 1);
  const std::string& used = gpu->texts.at(reinterpret_cast<std::size_t>(kernel.code.handle) - 1);
  EXPECT_NE(used.find("__launch_bounds__(256, 1)"), used.npos);
  EXPECT_EQ(gpu->texts.front().find("__launch_bounds__(256, 1)"), std::string::npos);
}

TEST(DeviceKernels, ThatStillSpillTakeFewerVectorsAtOnce) {
  const auto at_once = [](std::function<std::size_t(const std::string&)> bytes_of) {
    TestProgram p;
    Rng rng(3, 1);
    p.output(p.b.exp(p.input(uniform(rng, DType::kF32, {8, 4096}))));
    const auto gpu = std::make_shared<SpillingKernels>();
    gpu->bytes_of = std::move(bytes_of);
    DeviceKernels fusion(p.fusion, gpu);
    ir::Sizes sizes;
    const std::vector<Shape> shapes{p.inputs[0].shape()};
    const DeviceKernel kernel = *fusion.prepare(shapes, sizes).at(0).kernels.at(0);
    const std::string& used = gpu->texts.at(reinterpret_cast<std::size_t>(kernel.code.handle) - 1);
    const int unroll = kernel.kernel.kernel.schedule.unroll;
    EXPECT_EQ(used.find(fmt::format("u < {};", unroll)) != used.npos, unroll > 1);
    return unroll;
  };
  const auto if_more_than = [](int unroll) {
    return [unroll](const std::string& text) {
      std::size_t bytes = 0;
      for (int u = unroll + 1; u <= 4; ++u)
        if (text.find(fmt::format("u < {};", u)) != text.npos) bytes = 8 * u;
      return bytes;
    };
  };
  EXPECT_EQ(at_once(if_more_than(4)), 4);
  EXPECT_EQ(at_once(if_more_than(2)), 2);
  EXPECT_EQ(at_once(if_more_than(1)), 1);
  // A frame that has other reasons changes nothing.
  EXPECT_EQ(at_once([](const std::string&) { return std::size_t{40}; }), 4);
}

TEST(DeviceKernels, AreMadeOnceForAClassOfSizesAndAgainWhereVectorsDoNotFit) {
  Fusion program("norm");
  Builder b(program);
  const ir::Extent n = program.symbol("N");
  const ir::Extent c = program.symbol("C");
  const ValId x = program.add_input("x", DType::kF32, {n, c});
  program.add_output(b.softmax(x, 1));
  DeviceKernels fusion(program, std::make_shared<SpillingKernels>());
  Rng rng(3, 1);
  ir::Sizes sizes;
  const auto vector_for = [&](std::int64_t rows, std::int64_t columns) {
    const std::vector<Shape> inputs{{rows, columns}};
    return fusion.prepare(inputs, sizes).at(0).kernels.at(0)->kernel.kernel.schedule.vector;
  };
  EXPECT_EQ(vector_for(8, 4000), 4);
  const std::size_t once = fusion.kernels();
  for (const std::int64_t rows : {1, 9, 100}) EXPECT_EQ(vector_for(rows, 3996), 4);
  EXPECT_EQ(fusion.kernels(), once);
  EXPECT_EQ(vector_for(8, 3998), 2);
  EXPECT_EQ(vector_for(8, 3999), 1);
  const std::size_t all = fusion.kernels();
  EXPECT_EQ(all, once + 2);
  EXPECT_EQ(vector_for(9, 4000), 4);
  EXPECT_EQ(vector_for(9, 3997), 1);
  EXPECT_EQ(fusion.kernels(), all);
}

/// Those of make_program_kernels(), by the folders that their code was to be kept in.
class StoredKernels final : public runtime::KernelLoader {
 public:
  std::map<std::filesystem::path, std::set<std::string>> kept;

  int multiprocessors() const override { return kernels_->multiprocessors(); }
  runtime::GpuKernel kernel(const runtime::GpuProgram& program, const std::string& entry) override {
    {
      const std::lock_guard lock(mutex_);
      kept[program.store ? program.store->folder() : "nowhere"].insert(entry);
    }
    return kernels_->kernel(program, entry);
  }
  void launch(runtime::StreamHandle stream, runtime::GpuKernel kernel,
              const runtime::GpuLaunch& launch, const void* argument, std::size_t size) override {
    kernels_->launch(stream, kernel, launch, argument, size);
  }

 private:
  std::mutex mutex_;
  std::shared_ptr<runtime::KernelLoader> kernels_ = segfuse::testing::make_program_kernels();
};

/// Groups, library kernels and the CRF, on one device with one heap.
TEST(Accelerators, KeepCodeInTheFolderOfWhoeverRuns) {
  CrfProgram p(DType::kF32, false);
  const ValId table = p.input(segfuse::testing::counting({4, 3}, DType::kF32));
  p.output(p.b.matmul(p.b.exp(table), p.b.permute(table, {1, 0})));
  const auto kernels = std::make_shared<StoredKernels>();
  const auto accelerator = Accelerator::make(
      "sim:0", kernels, std::make_unique<runtime::sim::SimDevice>(runtime::sim::eager()));
  ThreadPool pool(1);
  for (const char* folder : {"one", "another"}) {
    const Context context = Context().with(options::kCacheDir, std::string(folder));
    (void)Executable(p.fusion, pool, {.accelerator = accelerator, .context = context})
        .run(p.inputs);
  }
  EXPECT_EQ(kernels->kept.size(), 2U);
  EXPECT_EQ(kernels->kept["one"], kernels->kept["another"]);
  EXPECT_GE(kernels->kept["one"].size(), 5U);
}

TEST(Accelerators, AreOneForADeviceWhateverTheFolderOfCode) {
  std::string reason;
  if (runtime::cuda_device_count(&reason) == 0) GTEST_SKIP() << reason;
  const Context one = Context().with(options::kCacheDir, std::string("one"));
  const Context another = Context().with(options::kCacheDir, std::string("another"));
  const auto accelerator = open_accelerator("cuda", one);
  EXPECT_EQ(open_accelerator("cuda:0", another), accelerator);
  EXPECT_EQ(runtime::open_cuda(0), accelerator->device());
}

TEST(Accelerators, HaveNames) {
  EXPECT_EQ(open_accelerator("cpu"), nullptr);
  for (const char* name : {"gpu", "cuda:", "cuda:x", "cuda:-1", "cuda0", "cuda:1 "})
    EXPECT_THROW(open_accelerator(name), UsageError) << name;
}

TEST(Accelerators, DoNotShareTensors) {
  const auto one = segfuse::testing::make_sim_accelerator().accelerator;
  const auto other = segfuse::testing::make_sim_accelerator().accelerator;
  ThreadPool pool(1);
  TestProgram p;
  p.output(p.b.exp(p.input(row({1, 2}))));
  Executable executable(p.fusion, pool, {.accelerator = one});
  EXPECT_THROW(executable.run(std::vector{other->upload(row({1, 2}))}), UsageError);
}

}  // namespace
}  // namespace segfuse::engine::testing
