#include "comm/peer/trial_sum.h"

#include <fmt/core.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <functional>
#include <optional>

#include "comm/patience.h"

namespace segfuse::comm {
namespace {

/// How long one may take: another rank compiles the kernel meanwhile, and then it takes no time.
constexpr std::chrono::seconds kLimit{60};

/// The sum of the words of `range`, which is what a node of it has; exact for 4096 shards.
void fill(float* to, std::int64_t words, ShardRange range) {
  std::int64_t of_shards = 0;
  for (std::int64_t shard = range.begin; shard < range.end; ++shard) of_shards += shard % 7 + 1;
  for (std::int64_t word = 0; word < words; ++word)
    to[word] = static_cast<float>(of_shards * (word % 13));
}

class PinnedWords {
 public:
  PinnedWords(runtime::Device& device, std::size_t bytes)
      : device_(device), bytes_(bytes), memory_(device.allocate_pinned(bytes)) {}
  ~PinnedWords() { device_.release_pinned(memory_, bytes_); }
  PinnedWords(const PinnedWords&) = delete;
  PinnedWords& operator=(const PinnedWords&) = delete;
  std::byte* bytes() const { return memory_; }
  float* words() const { return reinterpret_cast<float*>(memory_); }

 private:
  runtime::Device& device_;
  std::size_t bytes_;
  std::byte* memory_;
};

/// The memory of a trial, with what is summed.
struct Trial {
  Trial(std::int64_t shards, runtime::OpenDevice& device, runtime::StreamId stream,
        const PeerExchange& exchange, std::int64_t words)
      : bytes(static_cast<std::size_t>(words) * sizeof(float)), host(device.device(), bytes) {
    for (const TreeNode node : nodes_of(exchange.own_shards(), shards, shards)) {
      fill(host.words(), words, {node.index << node.level, (node.index + 1) << node.level});
      nodes.push_back(device.heap().allocate(bytes, stream, "trial sum"));
      device.executor().copy_in(stream, nodes.back(), 0, host.bytes(), bytes);
      device.timeline().synchronize(stream);
    }
    sum = device.heap().allocate(bytes, stream, "trial sum");
    device.executor().fill(stream, sum, 0);
  }

  std::size_t bytes;
  PinnedWords host;
  std::vector<runtime::Buffer> nodes;
  runtime::Buffer sum;
};

std::string run(Trial& trial, Group& control, std::int64_t shards, runtime::OpenDevice& device,
                runtime::StreamId stream, PeerExchange& exchange, std::int64_t words) {
  const auto& [bytes, host, nodes, sum] = trial;
  exchange.sum(nodes, shards, sum);
  runtime::Frontier over(device.executor().copy_out(stream, host.bytes(), sum, 0, bytes));
  device.timeline().settle(over, runtime::kMaxStreams);
  const auto begin = std::chrono::steady_clock::now();
  for (Patience patience; !device.timeline().over(over); patience.rest()) {
    control.poll();
    device.timeline().poll();
    if (std::chrono::steady_clock::now() - begin > kLimit) {
      exchange.abort("a trial sum did not end");
      device.timeline().synchronize(stream);
      return fmt::format("a trial sum of {} words was not over after {} s", words, kLimit.count());
    }
  }
  std::vector<float> expected(static_cast<std::size_t>(words));
  fill(expected.data(), words, {0, shards});
  if (std::memcmp(expected.data(), host.words(), bytes) != 0)
    return fmt::format("a trial sum of {} words is wrong", words);
  return "";
}

}  // namespace

std::string until_one_is_wrong(Group& control, std::span<const std::int64_t> trials,
                               const std::function<std::string(std::int64_t)>& wrong_in) {
  const auto all_right = [](const std::string& wrong) { return wrong.empty(); };
  std::string own;
  for (const std::int64_t trial : trials) {
    own = wrong_in(trial);
    if (!std::ranges::all_of(control.gather(own), all_right)) break;
  }
  return own;
}

std::string trial_sums(Group& control, std::int64_t shards, runtime::OpenDevice& device,
                       runtime::StreamId stream, PeerExchange& exchange) {
  // In one step and in two, each of several tiles and a rest.
  const std::int64_t sizes[] = {1003, 300001};
  const auto wrong_in = [](const std::function<std::string()>& part) -> std::string {
    try {
      return part();
    } catch (const CommError&) {
      throw;
    } catch (const Error& error) {
      return error.what();
    } catch (const runtime::NoMemory&) {
      return "there is no memory for a trial sum";
    }
  };
  return until_one_is_wrong(control, sizes, [&](std::int64_t words) {
    std::optional<Trial> trial;
    const std::string unready = wrong_in([&] {
      trial.emplace(shards, device, stream, exchange, words);
      return std::string();
    });
    // A rank without memory says so before the others wait for its part of the sum.
    if (!std::ranges::all_of(control.gather(unready), &std::string::empty)) return unready;
    const std::string wrong =
        wrong_in([&] { return run(*trial, control, shards, device, stream, exchange, words); });
    if (!wrong.empty()) exchange.abort(wrong);
    return wrong;
  });
}

}  // namespace segfuse::comm
