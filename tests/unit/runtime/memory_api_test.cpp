// segfuse/memory.h on the CPU: what outsiders are told, and what they may rely on.
#include "segfuse/memory.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <numeric>
#include <thread>

#include "segfuse/error.h"

namespace segfuse::memory {
namespace {

using ::testing::HasSubstr;

Work write_later(const Buffer& buffer, int value) {
  return {"write later", [at = reinterpret_cast<int*>(buffer.address()), value](void*) {
            std::this_thread::sleep_for(std::chrono::milliseconds(20));
            *at = value;
          }};
}

int first_int(const Device& device, Stream stream, const Buffer& buffer) {
  int value = 0;
  device.read(stream, std::as_writable_bytes(std::span(&value, 1)), buffer);
  return value;
}

template <class Call>
std::string refusal(Call call) {
  try {
    call();
  } catch (const UsageError& error) {
    return error.what();
  }
  return "";
}

TEST(MemoryApi, ALaunchWaitsForWhatItsBuffersDependOn) {
  const Device device = Device::open("cpu");
  const Stream one = device.stream("one");
  const Stream two = device.stream("two");
  const Buffer buffer = device.allocate(sizeof(int), one, "number");
  device.launch(one, write_later(buffer, 7), {writes(buffer)});
  EXPECT_EQ(first_int(device, two, buffer), 7);
  EXPECT_GE(device.statistics().waits, 1U);
}

TEST(MemoryApi, HostMemoryGoesThereAndBackInPieces) {
  const Device device = Device::open("cpu");
  const Stream stream = device.stream();
  std::vector<int> sent(9 << 20);
  std::iota(sent.begin(), sent.end(), 1);
  const Buffer buffer = device.allocate(sent.size() * sizeof(int), stream);
  device.write(stream, buffer, std::as_bytes(std::span(sent)));
  std::vector<int> got(sent.size());
  device.read(stream, std::as_writable_bytes(std::span(got)), buffer);
  EXPECT_EQ(got, sent);
}

TEST(MemoryApi, UnseenWorkIsCoveredByALoanOrByRecordStream) {
  for (const bool by_loan : {true, false}) {
    const Device device = Device::open("cpu", {.hard_limit = 1 << 20});
    const Stream home = device.stream("home");
    const Stream side = device.stream("side");
    std::byte* former = nullptr;
    {
      const Buffer buffer = device.allocate(1 << 20, home, "lent");
      former = buffer.address();
      if (by_loan) {
        const Loan loan = buffer.borrow(side);
        device.launch_unordered(side, write_later(buffer, 1), {});
      } else {
        device.launch_unordered(side, write_later(buffer, 1), {});
        buffer.record_stream(side);
      }
    }
    const Buffer next = device.allocate(1 << 20, home, "next");
    ASSERT_EQ(next.address(), former);
    device.launch(home, {"write", [at = reinterpret_cast<int*>(former)](void*) { *at = 2; }},
                  {writes(next)});
    device.synchronize(side);
    EXPECT_EQ(first_int(device, home, next), 2) << by_loan;
  }
}

TEST(MemoryApi, RacesOfUnorderedWorkAreFoundWhateverTheTiming) {
  const Device device = Device::open("cpu", {.check_streams = true});
  const Stream one = device.stream("one");
  const Stream two = device.stream("two");
  const Buffer buffer = device.allocate(64, one, "shared");
  const Access access{buffer.address(), 64, true, "shared"};
  const Work nothing{"nothing", [](void*) {}};
  device.launch_unordered(one, nothing, {&access, 1});
  device.wait(two, one);
  device.launch_unordered(two, nothing, {&access, 1});
  EXPECT_TRUE(device.races().empty());
  device.launch_unordered(one, nothing, {&access, 1});
  ASSERT_EQ(device.races().size(), 1U);
  EXPECT_THAT(device.races()[0].missing, HasSubstr("has to wait"));
  EXPECT_THAT(device.races()[0].picture, HasSubstr("<svg"));
}

TEST(MemoryApi, WhatCannotBeIsRefused) {
  EXPECT_THAT(refusal([] { Device::open("gpu"); }), HasSubstr("device 'gpu' is unknown"));
  EXPECT_THAT(refusal([] { Device::open("cuda:x"); }), HasSubstr("is unknown"));
  const Device device = Device::open("cpu");
  const Device other = Device::open("cpu");
  const Stream stream = device.stream();
  const Stream of_other = other.stream();
  const Buffer buffer = device.allocate(8, stream);
  const Buffer empty;
  const Work work{"work", [](void*) {}};
  EXPECT_THAT(refusal([&] { device.launch(of_other, work, {writes(buffer)}); }),
              HasSubstr("not one of this device"));
  EXPECT_THAT(refusal([&] { other.launch(of_other, work, {writes(buffer)}); }),
              HasSubstr("copy it first"));
  EXPECT_THAT(refusal([&] { device.launch(stream, work, {reads(empty)}); }), HasSubstr("is empty"));
  EXPECT_THAT(refusal([&] { static_cast<void>(empty.borrow(stream)); }), HasSubstr("is empty"));
  EXPECT_THAT(refusal([&] { device.kernel("", "f", 1, 1, {}); }), HasSubstr("needs a GPU"));
  std::vector<std::byte> long_text(9);
  EXPECT_THAT(refusal([&] { device.read(stream, long_text, buffer); }), HasSubstr("fit"));
  device.retire(stream);
  EXPECT_NE(refusal([&] { device.synchronize(stream); }), "");
}

TEST(MemoryApi, MemoryThatIsNotThereIsADeviceErrorThatSaysWhoHoldsIt) {
  const Device device = Device::open("cpu", {.hard_limit = std::size_t{4} << 20});
  const Stream stream = device.stream();
  const Buffer buffer = device.allocate(std::size_t{3} << 20, stream, "the big one");
  try {
    (void)device.allocate(std::size_t{3} << 20, stream, "one more");
    FAIL();
  } catch (const DeviceError& error) {
    EXPECT_THAT(error.what(), HasSubstr("the big one"));
  }
  EXPECT_EQ(device.statistics().out_of_memory, 1U);
  EXPECT_TRUE(device.allocate(256, stream));
}

TEST(MemoryApi, ABufferHoldsItsDevice) {
  Buffer buffer;
  {
    const Device device = Device::open("cpu");
    buffer = device.allocate(64, device.stream(), "left");
  }
  EXPECT_EQ(buffer.bytes(), 64U);
  EXPECT_NE(buffer.address(), nullptr);
}

}  // namespace
}  // namespace segfuse::memory
