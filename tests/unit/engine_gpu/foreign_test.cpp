// Programs on arrays of others (segfuse/device_function.h): nothing is copied, nobody waits, and
// the race checker sees what the others enqueue, too.

#include <gmock/gmock.h>

#include <cstring>

#include "engine/device/accelerator.h"
#include "segfuse/device_function.h"
#include "segfuse/error.h"
#include "segfuse/ops.h"
#include "support/gpu/program_gpu.h"
#include "support/tensors.h"
#include "unit/engine_gpu/device_test.h"

namespace segfuse::engine::testing {
namespace {

using ops::FusionBuilder;
using ops::Value;
using runtime::StreamHandle;
using runtime::sim::Call;
using segfuse::testing::make_sim_accelerator;
using segfuse::testing::row;
using segfuse::testing::SimAccelerator;
using ::testing::HasSubstr;

/// A context whose device of that name it is.
Context context_of(const SimAccelerator& sim) {
  const Context context{Options()};
  keep_in(context, sim.accelerator);
  return context;
}

RunOptions on_device(const SimAccelerator& sim) {
  return {.context = context_of(sim), .device = sim.accelerator->name()};
}

/// Another library on the device: memory, a stream and kernels of its own, all of it seen by the
/// checker.
class Others {
 public:
  explicit Others(Accelerator& accelerator)
      : device_(accelerator.heap().device()), stream_(device_.create_stream()) {
    bytes_ = 64 * device_.granule();
    base_ = device_.reserve(bytes_);
    device_.map(base_, bytes_);
  }
  ~Others() {
    device_.drain();
    device_.unmap(base_, bytes_);
    device_.unreserve(base_, bytes_);
    device_.destroy_stream(stream_);
  }
  Others(const Others&) = delete;
  Others& operator=(const Others&) = delete;

  StreamHandle stream() const { return stream_; }
  StreamHandle another_stream() { return device_.create_stream(); }

  std::byte* allocate(std::size_t bytes, std::size_t skip = 0) {
    std::byte* const address = base_ + used_ + skip;
    used_ += (bytes + skip + 255) / 256 * 256;
    return address;
  }
  /// A kernel of theirs that writes `values`.
  ForeignArray write(const Tensor& values, StreamHandle stream, std::size_t skip = 0) {
    ForeignArray array{.address = allocate(values.bytes(), skip),
                       .dtype = values.dtype(),
                       .shape = values.shape()};
    rewrite(array, values, stream);
    return array;
  }
  void rewrite(const ForeignArray& array, const Tensor& values, StreamHandle stream) {
    auto* const to = static_cast<std::byte*>(array.address);
    const runtime::MemoryAccess access{to, values.bytes(), true, "theirs"};
    device_.launch(stream,
                   {"their write",
                    [to, values](StreamHandle) { std::memcpy(to, values.data(), values.bytes()); }},
                   {&access, 1});
  }
  ForeignArray room(DType dtype, const Shape& shape) {
    const Tensor like(dtype, shape);
    return {.address = allocate(like.bytes()), .dtype = dtype, .shape = shape};
  }
  /// What a kernel of theirs finds at an address when its stream comes to it.
  std::shared_ptr<Tensor> read(const void* address, DType dtype, const Shape& shape,
                               StreamHandle stream) {
    auto found = std::make_shared<Tensor>(dtype, shape);
    auto* const from = static_cast<std::byte*>(const_cast<void*>(address));
    const runtime::MemoryAccess access{from, found->bytes(), false, "theirs"};
    device_.launch(
        stream,
        {"their read",
         [from, found](StreamHandle) { std::memcpy(found->data(), from, found->bytes()); }},
        {&access, 1});
    return found;
  }
  std::shared_ptr<Tensor> read(const ForeignArray& array, StreamHandle stream) {
    return read(array.address, array.dtype, array.shape, stream);
  }
  void wait() { device_.drain(); }
  void order(StreamHandle after, StreamHandle before) {
    const runtime::EventHandle event = device_.create_event();
    device_.record(before, event);
    device_.wait(after, event);
    device_.destroy_event(event);
  }

 private:
  runtime::Device& device_;
  StreamHandle stream_;
  std::byte* base_ = nullptr;
  std::size_t bytes_ = 0;
  std::size_t used_ = 0;
};

/// Two outputs that can be made beside each other, then one of both.
Program diamond() {
  FusionBuilder f("diamond");
  const Value x = f.input("x", DType::kF32, {"N"});
  const Value y = f.input("y", DType::kF32, {"N"});
  const Value up = ops::take(x, f.constant(0, DType::kI64), 0);
  f.output(x + up, "a");
  f.output(sum(y) * y, "b");
  f.output(x * y + sum(x), "c");
  return f.build();
}

Program doubled() {
  FusionBuilder f("doubled");
  f.output(f.input("x", DType::kF32, {"A", "B"}) * 2, "y");
  return f.build();
}

std::vector<Shape> shapes_of(const std::vector<ForeignArray>& arrays) {
  std::vector<Shape> shapes;
  for (const ForeignArray& array : arrays) shapes.push_back(array.shape);
  return shapes;
}

std::vector<void*> addresses_of(const std::vector<ForeignArray>& inputs,
                                const std::vector<ForeignArray>& outputs) {
  std::vector<void*> addresses;
  for (const auto* arrays : {&inputs, &outputs})
    for (const ForeignArray& array : *arrays) addresses.push_back(array.address);
  return addresses;
}

/// By addresses alone where that can be done, else by the arrays: whether it could.
bool run_planned(DeviceFunction& function, const std::vector<ForeignArray>& inputs,
                 const std::vector<ForeignArray>& outputs, StreamHandle stream) {
  const auto planned = function.planned(shapes_of(inputs));
  if (planned && function.run(*planned, addresses_of(inputs, outputs), stream.get())) return true;
  function.run(inputs, outputs, stream.get());
  return false;
}

std::vector<Tensor> on_the_host(const Program& program, const std::vector<Tensor>& inputs) {
  std::vector<Tensor> all;
  for (const Tensor& output : program.run_reference(inputs)) all.push_back(output.to(DType::kF32));
  return all;
}

const std::vector<Tensor> kPair = {row({1, 2, 3, 4}, DType::kF32), row({5, 6, 7, 8}, DType::kF32)};

TEST(ForeignArrays, AreUsedInTheOrderOfTheCallersStreamInEverySchedule) {
  const Program program = diamond();
  const std::vector<Tensor> expected = on_the_host(program, kPair);
  const Tensor zeros = Tensor::zeros(DType::kF32, {4});
  for (const auto& [streams, planned] : {std::pair(1, false), {3, false}, {1, true}, {3, true}})
    for (const runtime::sim::NamedSchedule& schedule : runtime::sim::all_schedules(4, 6)) {
      SCOPED_TRACE(schedule.name);
      const SimAccelerator sim =
          make_sim_accelerator({.streams = streams, .check_streams = true}, schedule.make());
      Others others(*sim.accelerator);
      DeviceFunction function(program, on_device(sim));
      std::vector<std::shared_ptr<Tensor>> found;
      std::vector<ForeignArray> inputs{others.room(DType::kF32, {4}),
                                       others.room(DType::kF32, {4})};
      std::vector<ForeignArray> outputs(3, others.room(DType::kF32, {4}));
      for (ForeignArray& output : outputs) output = others.room(DType::kF32, {4});
      for (int step = 0; step < 3; ++step) {
        // Written just before the call, read and overwritten just after it.
        for (std::size_t i = 0; i < 2; ++i) others.rewrite(inputs[i], kPair[i], others.stream());
        if (planned)
          EXPECT_EQ(run_planned(function, inputs, outputs, others.stream()), streams == 1);
        else
          function.run(inputs, outputs, others.stream().get());
        for (const ForeignArray& input : inputs) others.rewrite(input, zeros, others.stream());
        for (const ForeignArray& output : outputs)
          found.push_back(others.read(output, others.stream()));
        for (const ForeignArray& output : outputs) others.rewrite(output, zeros, others.stream());
      }
      others.wait();
      for (std::size_t i = 0; i < found.size(); ++i)
        EXPECT_TRUE(segfuse::testing::same_bits(*found[i], expected[i % 3])) << i;
    }
}

TEST(ForeignArrays, CallsInACaptureAreRefusedBeforeAnythingIsDone) {
  const SimAccelerator sim = make_sim_accelerator();
  Others others(*sim.accelerator);
  DeviceFunction function(doubled(), on_device(sim));
  ForeignArray x = others.write(segfuse::testing::counting({2, 3}, DType::kF32), others.stream());
  const ForeignArray y = others.room(DType::kF32, {2, 3});
  function.run({{x}}, {{y}}, others.stream().get());
  const std::uint64_t calls = sim.device->calls();
  const auto refusal = ::testing::ThrowsMessage<UsageError>(
      HasSubstr("sim:0: a compiled function was called on a stream that is being captured"));
  sim.device->captured.insert(others.stream());
  EXPECT_THAT([&] { function.run({{x}}, {{y}}, others.stream().get()); }, refusal);
  EXPECT_THAT([&] { run_planned(function, {x}, {y}, others.stream()); }, refusal);
  x.ready = others.stream().get();
  EXPECT_THAT([&] { function.run({{x}}); }, refusal);
  EXPECT_EQ(sim.device->calls(), calls);
  sim.device->captured.clear();
  EXPECT_TRUE(run_planned(function, {x}, {y}, others.stream()));
  EXPECT_EQ(function.run({{x}}).size(), 1U);
}

TEST(ForeignArrays, OnOneStreamNeedNoEventAndNoWait) {
  const SimAccelerator sim = make_sim_accelerator();
  Others others(*sim.accelerator);
  DeviceFunction function(doubled(), on_device(sim));
  const ForeignArray x =
      others.write(segfuse::testing::counting({2, 3}, DType::kF32), others.stream());
  const ForeignArray y = others.room(DType::kF32, {2, 3});
  function.run({{x}}, {{y}}, others.stream().get());
  const auto waits = [&] {
    return sim.device->calls(Call::kRecord) + sim.device->calls(Call::kWait) +
           sim.device->calls(Call::kSynchronize) + sim.device->calls(Call::kSynchronizeEvent);
  };
  const std::uint64_t before = waits();
  const std::uint64_t launches = sim.device->calls(Call::kLaunch);
  for (int i = 0; i < 5; ++i) function.run({{x}}, {{y}}, others.stream().get());
  for (int i = 0; i < 5; ++i) EXPECT_TRUE(run_planned(function, {x}, {y}, others.stream()));
  EXPECT_EQ(waits(), before);
  EXPECT_EQ(sim.device->calls(Call::kLaunch), launches + 10);
}

/// From the second one on the scratch memory of one stream is used by another.
void run_on_many_streams(bool planned) {
  const Program program = diamond();
  const std::vector<Tensor> expected = on_the_host(program, kPair);
  const SimAccelerator sim = make_sim_accelerator({.check_streams = true}, runtime::sim::seeded(3));
  Others others(*sim.accelerator);
  DeviceFunction function(program, on_device(sim));
  std::vector<std::shared_ptr<Tensor>> found;
  for (int i = 0; i < 44; ++i) {  // more than are adopted
    const StreamHandle stream = others.another_stream();
    const std::vector<ForeignArray> inputs{others.write(kPair[0], stream),
                                           others.write(kPair[1], stream)};
    std::vector<ForeignArray> outputs;
    for (int o = 0; o < 3; ++o) outputs.push_back(others.room(DType::kF32, {4}));
    if (planned)
      EXPECT_EQ(run_planned(function, inputs, outputs, stream), i < 40);
    else
      function.run(inputs, outputs, stream.get());
    for (const ForeignArray& output : outputs) found.push_back(others.read(output, stream));
  }
  others.wait();
  for (std::size_t i = 0; i < found.size(); ++i)
    EXPECT_TRUE(segfuse::testing::same_bits(*found[i], expected[i % 3])) << i;
}

TEST(ForeignArrays, OfManyStreamsAreOrderedToo) { run_on_many_streams(false); }
TEST(PlannedRuns, OnManyStreamsAreOrderedToo) { run_on_many_streams(true); }

TEST(PlannedRuns, AreRefusedWhereTheArraysHaveToBeLookedAt) {
  const SimAccelerator sim = make_sim_accelerator();
  Others others(*sim.accelerator);
  DeviceFunction function(doubled(), on_device(sim));
  const std::vector<Shape> shapes{{2, 3}};
  const auto planned = function.planned(shapes);
  ASSERT_NE(planned, nullptr);
  const ForeignArray x =
      others.write(segfuse::testing::counting({2, 3}, DType::kF32), others.stream(), 4);
  const ForeignArray out = others.room(DType::kF32, {2, 3});
  const std::uint64_t launches = sim.device->calls(Call::kLaunch);
  EXPECT_FALSE(function.run(*planned, addresses_of({x}, {out}), others.stream().get()));
  EXPECT_EQ(sim.device->calls(Call::kLaunch), launches);
  EXPECT_THROW(function.run(*planned, addresses_of({}, {out}), others.stream().get()), UsageError);
  EXPECT_THROW(function.planned({}), UsageError);

  FusionBuilder f("in_place");
  const Value a = f.input("a", DType::kF32, {"N"});
  const Value y = a + 1;
  f.output(y, "y");
  f.alias(y, a);
  DeviceFunction overwrites(f.build(), on_device(sim));
  EXPECT_EQ(overwrites.planned(std::vector<Shape>{{4}}), nullptr);
}

TEST(PlannedRuns, TakeEmptyArraysWithoutMemory) {
  const SimAccelerator sim = make_sim_accelerator();
  Others others(*sim.accelerator);
  FusionBuilder f("sums");
  const Value x = f.input("x", DType::kF32, {"A", "B"});
  f.output(sum(x, std::vector<std::int64_t>{1}), "y");
  f.output(x * 2, "z");
  DeviceFunction function(f.build(), on_device(sim));
  const auto planned = function.planned(std::vector<Shape>{{2, 0}});
  const ForeignArray y = others.write(row({7, 7}, DType::kF32), others.stream());
  const std::vector<void*> addresses{nullptr, y.address, nullptr};
  EXPECT_TRUE(function.run(*planned, addresses, others.stream().get()));
  const auto found = others.read(y, others.stream());
  others.wait();
  EXPECT_TRUE(segfuse::testing::same_bits(*found, row({0, 0}, DType::kF32)));
}

/// Plans are forgotten when there are too many, and with their function.
TEST(PlannedRuns, HoldTheirPlan) {
  const SimAccelerator sim = make_sim_accelerator();
  Others others(*sim.accelerator);
  std::shared_ptr<DeviceFunction::Planned> planned;
  {
    DeviceFunction function(doubled(), on_device(sim));
    const Tensor values = segfuse::testing::counting({2, 3}, DType::kF32);
    const std::vector<ForeignArray> x{others.write(values, others.stream())};
    const std::vector<ForeignArray> y{others.room(DType::kF32, {2, 3})};
    planned = function.planned(shapes_of(x));
    for (std::int64_t n = 1; n < 300; ++n) function.prepare(std::vector<Shape>{{n, 1}});
    EXPECT_TRUE(function.run(*planned, addresses_of(x, y), others.stream().get()));
    const auto found = others.read(y[0], others.stream());
    others.wait();
    EXPECT_EQ(found->at(5), 2 * values.at(5));
  }
}

TEST(ForeignArrays, MayHaveAnyStridesAndAddresses) {
  const SimAccelerator sim = make_sim_accelerator({.check_streams = true}, runtime::sim::lazy());
  Others others(*sim.accelerator);
  DeviceFunction function(doubled(), on_device(sim));
  const Tensor values = segfuse::testing::counting({4, 6}, DType::kF32);
  const ForeignArray whole = others.write(values, others.stream(), 4);  // not aligned
  const auto run = [&](ForeignArray x,
                       const std::function<double(std::int64_t, std::int64_t)>& at) {
    const ForeignArray y = others.room(DType::kF32, x.shape);
    function.run({{x}}, {{y}}, others.stream().get());
    const auto found = others.read(y, others.stream());
    others.wait();
    for (std::int64_t i = 0; i < x.shape[0]; ++i)
      for (std::int64_t j = 0; j < x.shape[1]; ++j)
        EXPECT_EQ(found->at(i * x.shape[1] + j), 2 * at(i, j)) << i << ", " << j;
  };
  const auto element = [&](std::int64_t i, std::int64_t j) { return values.at(i * 6 + j); };
  run(whole, element);
  ForeignArray x = whole;
  x.shape = {6, 4};
  x.strides = {1, 6};
  run(x, [&](auto i, auto j) { return element(j, i); });
  x.shape = {2, 3};
  x.strides = {12, 2};
  run(x, [&](auto i, auto j) { return element(2 * i, 2 * j); });
  x.address = static_cast<float*>(whole.address) + 23;
  x.shape = {4, 6};
  x.strides = {-6, -1};
  run(x, [&](auto i, auto j) { return element(3 - i, 5 - j); });
  x.address = whole.address;
  x.shape = {3, 6};
  x.strides = {0, 1};
  run(x, [&](auto, auto j) { return element(0, j); });
  x.shape = {0, 6};
  run(x, element);
  function.check();
}

Program decayed() {
  FusionBuilder f("decayed");
  const Value w = f.input("w", DType::kF32, {"N"});
  const Value g = f.input("g", DType::kF32, {"N"});
  const Value next = w - g * 0.5;
  f.output(next, "w");
  f.alias(next, w);
  return f.build();
}

TEST(ForeignArrays, AreOverwrittenInPlace) {
  const SimAccelerator sim = make_sim_accelerator({.check_streams = true}, runtime::sim::seeded(1));
  Others others(*sim.accelerator);
  DeviceFunction function(decayed(), on_device(sim));
  const ForeignArray w = others.write(kPair[0], others.stream());
  const ForeignArray g = others.write(kPair[1], others.stream());
  const ForeignArray out = others.room(DType::kF32, {4});
  function.run({{w, g}}, {{out}}, others.stream().get());
  const auto result = others.read(out, others.stream());
  const auto written = others.read(w, others.stream());
  others.wait();
  const Tensor expected = row({-1.5, -1, -0.5, 0}, DType::kF32);
  EXPECT_TRUE(segfuse::testing::same_bits(*result, expected));
  EXPECT_TRUE(segfuse::testing::same_bits(*written, expected));
  // On a stream of the library the result is memory of its own all the same.
  const std::vector<Tensor> made = function.run(std::vector{w, g});
  EXPECT_NE(DeviceFunction::hand_out(made[0], nullptr), w.address);

  ForeignArray strided = others.room(DType::kF32, {8});
  strided.shape = {4};
  strided.strides = {2};
  EXPECT_THAT(
      message_of<UsageError>([&] { function.run({{strided, g}}, {{out}}, others.stream().get()); }),
      HasSubstr("'w' is overwritten by the program, expected it contiguous"));
}

TEST(ForeignArrays, ThatShareMemoryWithAnOverwrittenOneAreReadAsTheyWere) {
  const SimAccelerator sim = make_sim_accelerator({.check_streams = true}, runtime::sim::seeded(1));
  Others others(*sim.accelerator);
  DeviceFunction function(decayed(), on_device(sim));
  constexpr std::int64_t kLength = 40000;
  Rng rng(1);
  const Tensor values = segfuse::testing::uniform(rng, DType::kF32, {kLength + 4});
  const auto part = [](ForeignArray array, std::size_t first) {
    array.address = static_cast<std::byte*>(array.address) + first * sizeof(float);
    array.shape = {kLength};
    return array;
  };
  const ForeignArray out = others.room(DType::kF32, {kLength});
  for (const bool behind : {false, true}) {
    const ForeignArray all = others.write(values, others.stream());
    const ForeignArray w = part(all, behind ? 0 : 4);
    const ForeignArray g = part(all, behind ? 4 : 0);
    const ForeignArray alone = others.write(values, others.stream());
    function.run({{w, part(alone, behind ? 4 : 0)}}, {{out}}, others.stream().get());
    const auto expected = others.read(out, others.stream());
    others.rewrite(all, values, others.stream());
    function.run({{w, g}}, {{out}}, others.stream().get());
    const auto result = others.read(out, others.stream());
    others.wait();
    EXPECT_TRUE(segfuse::testing::same_bits(*result, *expected)) << behind;
  }

  FusionBuilder f("both");
  const Value a = f.input("a", DType::kF32, {"N"});
  const Value b = f.input("b", DType::kF32, {"N"});
  for (const Value& input : {a, b}) {
    const Value next = a + b;
    f.output(next);
    f.alias(next, input);
  }
  DeviceFunction both(f.build(), on_device(sim));
  const ForeignArray all = others.write(values, others.stream());
  EXPECT_THAT(message_of<UsageError>([&] {
                both.run({{part(all, 0), part(all, 4)}}, {{out, out}}, others.stream().get());
              }),
              HasSubstr("the arrays 'a' and 'b' share memory, and the program overwrites both"));
}

TEST(ForeignArrays, MayLieOnTheHost) {
  const SimAccelerator sim = make_sim_accelerator({.check_streams = true}, runtime::sim::seeded(2));
  Others others(*sim.accelerator);
  FusionBuilder f("scaled");
  const Value array = f.input("x", DType::kF32, {"N"});
  f.output(array * f.input("s", DType::kF32, {}), "y");
  DeviceFunction function(f.build(), on_device(sim));
  const ForeignArray x = others.write(kPair[0], others.stream());
  const ForeignArray y = others.room(DType::kF32, {4});
  std::vector<std::shared_ptr<Tensor>> found;
  for (int i = 1; i < 4; ++i) {
    float number = static_cast<float>(i);  // may change as soon as the call returns
    const ForeignArray s{.address = &number, .dtype = DType::kF32, .shape = {}, .on_host = true};
    function.run({{x, s}}, {{y}}, others.stream().get());
    number = -1;
    found.push_back(others.read(y, others.stream()));
  }
  others.wait();
  for (int i = 1; i < 4; ++i) EXPECT_EQ(found[static_cast<std::size_t>(i) - 1]->at(3), 4.0 * i);
}

/// How often something was let go.
struct Counted {
  std::shared_ptr<void> owner() {
    ++lent;
    return {nullptr, [this](void*) { ++returned; }};
  }
  int lent = 0;
  int returned = 0;
};

TEST(ForeignArrays, AreLetGoOnceWhenTheDeviceHasDoneWithThem) {
  Counted counted;
  {
    const SimAccelerator sim = make_sim_accelerator({.check_streams = true}, runtime::sim::lazy());
    Others others(*sim.accelerator);
    DeviceFunction function(doubled(), on_device(sim));
    const auto lend = [&] {
      ForeignArray x =
          others.write(segfuse::testing::counting({2, 3}, DType::kF32), others.stream());
      x.ready = others.stream().get();
      x.owner = counted.owner();
      return std::vector{x};
    };
    std::vector<Tensor> made = function.run(lend());
    EXPECT_EQ(counted.returned, 0);  // nothing has run yet
    EXPECT_EQ(made[0].to_host().at(5), 2 * segfuse::testing::counting({2, 3}, DType::kF32).at(5));
    function.run(lend());
    EXPECT_EQ(counted.returned, 1);  // the first; the host has seen it to be over
    // A call that fails lets go, too.
    std::vector<ForeignArray> wrong = lend();
    wrong.push_back(wrong[0]);
    EXPECT_THROW(function.run(wrong), UsageError);
    wrong.clear();
    EXPECT_EQ(counted.returned, 2);
    // Strided ones are copied, and kept until that was done.
    std::vector<ForeignArray> strided = lend();
    strided[0].shape = {3, 2};
    strided[0].strides = {1, 3};
    EXPECT_EQ(function.run(strided)[0].to_host().at(1),
              2 * segfuse::testing::counting({2, 3}, DType::kF32).at(3));
  }
  EXPECT_EQ(counted.returned, counted.lent);
}

TEST(ForeignArrays, ResultsAreReadyWhereTheyAreHandedOut) {
  const Program program = diamond();
  const std::vector<Tensor> expected = on_the_host(program, kPair);
  for (const runtime::sim::NamedSchedule& schedule : runtime::sim::all_schedules(4, 6)) {
    SCOPED_TRACE(schedule.name);
    const SimAccelerator sim =
        make_sim_accelerator({.streams = 2, .check_streams = true}, schedule.make());
    Others others(*sim.accelerator);
    DeviceFunction function(program, on_device(sim));
    std::vector<std::shared_ptr<Tensor>> found;
    for (int step = 0; step < 3; ++step) {
      std::vector<ForeignArray> inputs;
      for (const Tensor& values : kPair) {
        inputs.push_back(others.write(values, others.stream()));
        inputs.back().ready = others.stream().get();
      }
      const std::vector<Tensor> made = function.run(inputs);
      const StreamHandle reader = others.another_stream();
      for (const Tensor& result : made)
        found.push_back(
            others.read(DeviceFunction::hand_out(result, reader.get()), DType::kF32, {4}, reader));
    }  // the results go while they are read
    others.wait();
    for (std::size_t i = 0; i < found.size(); ++i)
      EXPECT_TRUE(segfuse::testing::same_bits(*found[i], expected[i % 3])) << i;
  }
}

TEST(ForeignArrays, MemoryThatWasHandedOutIsUsedAgainWhenTheDeviceIsIdle) {
  const SimAccelerator sim = make_sim_accelerator({.check_streams = true}, runtime::sim::lazy());
  Others others(*sim.accelerator);
  FusionBuilder f("ones");
  f.output(f.input("x", DType::kF32, {}) + f.full(1, {1 << 18}, DType::kF32), "y");
  DeviceFunction function(f.build(), on_device(sim));
  ForeignArray x = others.write(row({2}, DType::kF32).reshaped({}), others.stream());
  x.ready = others.stream().get();
  std::vector<std::shared_ptr<Tensor>> found;
  sim.device->set_limit(std::size_t{16} << 20);
  for (int i = 0; i < 30; ++i) {  // 30 MiB of 16
    const std::vector<Tensor> made = function.run(std::vector{x});
    found.push_back(others.read(DeviceFunction::hand_out(made[0], others.stream().get()),
                                DType::kF32, {8}, others.stream()));
  }
  others.wait();
  for (const auto& result : found) EXPECT_EQ(result->at(7), 3.0);
  EXPECT_GT(sim.accelerator->waiting_bytes(), 0U);
  (void)sim.accelerator->settle();
  EXPECT_EQ(sim.accelerator->waiting_bytes(), 0U);
  sim.accelerator->heap().verify();
  EXPECT_LT(sim.accelerator->heap().statistics().live_bytes, std::size_t{1} << 20);
}

TEST(ForeignArrays, AreRefusedInOneSentence) {
  const SimAccelerator sim = make_sim_accelerator();
  Others others(*sim.accelerator);
  DeviceFunction function(diamond(), on_device(sim));
  const ForeignArray x = others.write(kPair[0], others.stream());
  const ForeignArray y = others.room(DType::kF32, {3});
  EXPECT_THAT(message_of<UsageError>([&] { function.run({{x}}, {}, others.stream().get()); }),
              HasSubstr("has 2 inputs; 1 were given"));
  EXPECT_THAT(message_of<UsageError>([&] { function.prepare(std::vector<Shape>{{4}, {3}}); }),
              HasSubstr("N"));
  EXPECT_THROW(function.run(std::vector{x, y}), UsageError);
  EXPECT_EQ(function.prepare(std::vector<Shape>{{7}, {7}}), (std::vector<Shape>{{7}, {7}, {7}}));
  EXPECT_THROW(DeviceFunction(diamond(), {.device = "cpu"}), UsageError);
  EXPECT_THROW(DeviceFunction::hand_out(kPair[0], nullptr), UsageError);
}

TEST(ForeignArrays, WrongIndicesAreToldByTheCheck) {
  const SimAccelerator sim = make_sim_accelerator();
  Others others(*sim.accelerator);
  FusionBuilder f("rows");
  const Value table = f.input("x", DType::kF32, {"N"});
  f.output(take(table, f.input("i", DType::kI64, {"M"}), 0), "y");
  DeviceFunction function(f.build(), on_device(sim));
  const ForeignArray x = others.write(kPair[0], others.stream());
  const ForeignArray i = others.write(row({0, 9}, DType::kI64), others.stream());
  const ForeignArray y = others.room(DType::kF32, {2});
  for (const bool planned : {false, true}) {
    others.rewrite(i, row({0, 9}, DType::kI64), others.stream());
    const auto run = [&] {
      if (planned)
        EXPECT_TRUE(run_planned(function, {x, i}, {y}, others.stream()));
      else
        function.run({{x, i}}, {{y}}, others.stream().get());
    };
    run();
    others.rewrite(i, row({0, 1}, DType::kI64), others.stream());
    EXPECT_THAT(message_of<UsageError>([&] { function.check(); }), HasSubstr("out of range"));
    run();
    function.check();
    const auto found = others.read(y, others.stream());
    others.wait();
    EXPECT_EQ(found->at(1), 2.0);
  }
}

TEST(ForeignArrays, HostArraysTravel) {
  const SimAccelerator sim = make_sim_accelerator();
  DeviceFunction function(decayed(), on_device(sim));
  std::vector<Tensor> inputs{kPair[0].clone(), kPair[1].clone()};
  const std::vector<Tensor> made = function.run_on_copies(inputs);
  EXPECT_EQ(made[0].at(3), 0.0);
  EXPECT_EQ(inputs[0].at(3), 0.0);
  EXPECT_FALSE(made[0].shares_storage_with(inputs[0]));
}

/// The device of a run is one of its context, and no other context has it.
TEST(ForeignArrays, AProgramRunsOnTheDeviceOfItsContext) {
  const SimAccelerator sim = make_sim_accelerator();
  const Context context = context_of(sim);
  const std::string name = sim.accelerator->name();
  const std::uint64_t before = sim.device->calls(Call::kLaunch);
  const Program program = doubled();
  std::vector<Tensor> inputs;
  for (const ValueInfo& input : program.inputs())
    inputs.push_back(Tensor::full(input.dtype, {2, 2}, 1));
  (void)program.run(inputs, {.context = context, .device = name});
  EXPECT_GT(sim.device->calls(Call::kLaunch), before);
  EXPECT_THROW(program.run(inputs, {.device = name}), UsageError);
}

/// Sums in bf16 that are rounded after each operation, or once.
TEST(ForeignArrays, AreRoundedAsTheOptionsSay) {
  const SimAccelerator sim = make_sim_accelerator();
  const Program program = Program::from_text(
      "fusion \"chain\" {\n  %0 = input \"x\" : bf16[64]\n  %1 = mul(%0, %0) : bf16[64]\n"
      "  %2 = add(%1, %0) : bf16[64]\n  %3 = mul(%2, %0) : bf16[64]\n  output %3\n}\n");
  Rng rng(5);
  const std::vector<Tensor> inputs{segfuse::testing::uniform(rng, DType::kBF16, {64})};
  std::vector<Tensor> found;
  for (const bool excess : {false, true}) {
    RunOptions how = on_device(sim);
    how.excess_precision = excess;
    found.push_back(DeviceFunction(program, how).run_on_copies(inputs)[0]);
    EXPECT_TRUE(segfuse::testing::same_bits(found.back(), program.run(inputs, how)[0])) << excess;
  }
  EXPECT_FALSE(segfuse::testing::same_bits(found[0], found[1]));
}

}  // namespace
}  // namespace segfuse::engine::testing
