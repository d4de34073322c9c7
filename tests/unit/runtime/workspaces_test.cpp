// Workspaces of a GPU for streams that others made: on a device only.

#include <gtest/gtest.h>

#include <cstdlib>
#include <string>
#include <vector>

#include "runtime/cuda/cuda_device.h"
#include "runtime/gpu.h"

namespace segfuse::runtime {
namespace {

TEST(Workspaces, MoreStreamsThanATimelineHas) {
  const char* const wanted = std::getenv("SEGFUSE_TEST_DEVICE");
  if (wanted == nullptr || std::string(wanted) != "cuda")
    GTEST_SKIP() << "SEGFUSE_TEST_DEVICE is not cuda";
  const std::shared_ptr<Gpu> gpu = open_cuda_gpu(0);
  const std::unique_ptr<Device> device = open_cuda_device(0);
  std::vector<StreamHandle> streams;
  for (int i = 0; i < 80; ++i) streams.push_back(device->create_stream());
  constexpr std::size_t kBytes = std::size_t{1} << 20;
  void* const first = gpu->allocate(kBytes, streams[0]);
  for (std::size_t i = 0; i < streams.size(); ++i) {
    void* const memory = gpu->allocate(kBytes, streams[i]);
    gpu->fill(memory, static_cast<std::uint8_t>(i), kBytes, streams[i]);
    std::vector<std::uint8_t> content(kBytes);
    gpu->copy_to_host(content.data(), memory, kBytes, streams[i]);
    EXPECT_EQ(content, std::vector<std::uint8_t>(kBytes, static_cast<std::uint8_t>(i)));
    gpu->release(memory, streams[i]);
  }
  gpu->release(first, streams.back());  // by a stream that the timeline does not know
  for (const StreamHandle stream : streams) {
    gpu->synchronize(stream);
    device->destroy_stream(stream);
  }
}

}  // namespace
}  // namespace segfuse::runtime
