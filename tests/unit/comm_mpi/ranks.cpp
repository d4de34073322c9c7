#include "ranks.h"

#include <fmt/core.h>
#include <sys/resource.h>

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <thread>

#include "comm/mpi/mpi_group.h"
#include "comm/tree_exchange.h"
#include "support/shard_sums.h"

namespace segfuse::test {
namespace {

using comm::Group;

void require(bool holds, const std::string& what) {
  if (!holds) throw InternalError("not so: " + what);
}

void sum_once(Group& group, std::int64_t shards, std::int64_t present, std::int64_t words) {
  comm::TreeExchange exchange(group, shards);
  const auto nodes = nodes_of_range(exchange.own_shards(), shards, present, words);
  Values sum(static_cast<std::size_t>(words), 77);
  exchange.sum(std::vector<std::span<const float>>(nodes.begin(), nodes.end()), present, sum);
  const std::string difference = first_difference(sum, sum_of_shards(shards, present, words));
  require(difference.empty(), fmt::format("{} of {} shards on rank {} of {}: {}", present, shards,
                                          group.rank(), group.size(), difference));
}

void sums(Group& group) {
  int made = 0;
  for (std::int64_t shards = 1; shards <= 16; shards *= 2)
    for (std::int64_t present = 1; group.size() <= shards && present <= shards; ++present, ++made)
      sum_once(group, shards, present, 200);
  for (const std::int64_t words : {0, 1, 4096, 4097, 3 * 4096, 50000}) {
    sum_once(group, 8, 7, words);
    ++made;
  }
  if (group.rank() == 0)
    fmt::print("{} sums on {} ranks of {}\n", made, group.size(), group.engine());
}

std::vector<std::byte> some_bytes(std::size_t size, int seed) {
  std::vector<std::byte> bytes(size);
  for (std::size_t i = 0; i < size; ++i)
    bytes[i] = static_cast<std::byte>(i * 7 + i / 256 + static_cast<std::size_t>(seed));
  return bytes;
}

void gather_and_broadcast(Group& group) {
  for (std::size_t round = 0; round < 4; ++round) {
    std::vector<std::string> expected;
    for (int rank = 0; rank < group.size(); ++rank)
      expected.emplace_back(round * static_cast<std::size_t>(rank) * 700,
                            static_cast<char>('a' + rank));
    require(group.gather(expected[static_cast<std::size_t>(group.rank())]) == expected, "gather");
  }
  for (int root = 0; root < group.size(); ++root)
    for (const std::size_t size : {0U, 1U, 5000U}) {
      auto bytes = some_bytes(size, group.rank());
      group.broadcast(bytes, root);
      require(bytes == some_bytes(size, root), "broadcast");
    }
}

/// Two spans to each rank, of sizes that differ by pair.
void exchange(Group& group) {
  const auto size_of = [](int from, int to, int k) {
    return static_cast<std::size_t>((from + 1) * 1000 + to * 500 * k);
  };
  std::vector<std::vector<std::byte>> sent;
  std::vector<std::vector<std::byte>> places;
  std::vector<int> peers;
  for (int peer = 0; peer < group.size(); ++peer)
    for (int k = 0; k < 2 && peer != group.rank(); ++k) {
      peers.push_back(peer);
      sent.push_back(some_bytes(size_of(group.rank(), peer, k), k));
      places.emplace_back(size_of(peer, group.rank(), k));
    }
  std::vector<comm::Outgoing> out;
  std::vector<comm::Incoming> in;
  for (std::size_t i = 0; i < peers.size(); ++i) out.push_back({peers[i], sent[i]});
  for (std::size_t i = 0; i < peers.size(); ++i) in.push_back({peers[i], places[i]});
  group.exchange(out, in);
  for (std::size_t i = 0; i < peers.size(); ++i)
    require(places[i] == some_bytes(places[i].size(), static_cast<int>(i % 2)), "exchange");
}

void primitives(Group& group) {
  for (int round = 0; round < 3; ++round) {
    gather_and_broadcast(group);
    exchange(group);
    group.barrier();
  }
  if (group.rank() == 0) fmt::print("primitives on {} ranks of {}\n", group.size(), group.engine());
}

void fault(Group& group) {
  gather_and_broadcast(group);
  if (group.rank() == 1) throw DataError("recording 'x.wav' ends early");
  exchange(group);
}

/// Rank 0 sends so many bytes, and rank 1 expects as many.
void mismatch(Group& group, std::size_t sent, std::size_t expected) {
  std::vector<std::byte> memory(std::max(sent, expected));
  const std::span<std::byte> all(memory);
  const comm::Outgoing out{1, all.first(sent)};
  const comm::Incoming in{0, all.first(expected)};
  if (group.rank() == 0)
    group.exchange({&out, 1}, {});
  else
    group.exchange({}, {&in, 1});
  group.barrier();
}

/// Another thread ends what the rank waits for.
void watched(Group& group) {
  if (group.rank() == 0) {
    std::thread([&group] { group.abort("rank 1 has not been heard of"); }).join();
    group.barrier();
  }
  while (true) std::this_thread::sleep_for(std::chrono::seconds(1));  // the hanging rank
}

double processor_seconds() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<double>(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
         static_cast<double>(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) * 1e-6;
}

/// Rank 0 comes two seconds later than the others, who are to leave the processor to it.
void idle(Group& group) {
  group.barrier();
  const double before = processor_seconds();
  if (group.rank() == 0) std::this_thread::sleep_for(std::chrono::seconds(2));
  group.barrier();
  const double spent = processor_seconds() - before;
  require(spent < 0.5, fmt::format("{} s of the processor for a wait of 2 s", spent));
}

void killed(Group& group) {
  group.barrier();
  if (group.rank() == 1) static_cast<void>(std::raise(SIGKILL));
  group.barrier();
}

void other_thread(Group& group) {
  bool refused = false;
  std::thread([&] {
    try {
      group.barrier();
    } catch (const InternalError&) {
      refused = true;
    }
  }).join();
  require(refused, "a call from another thread is refused");
}

using Job = std::function<void(Group&)>;

const std::map<std::string, Job>& jobs() {
  static const std::map<std::string, Job> all = {
      {"sums", sums},
      {"primitives", primitives},
      {"fault", fault},
      {"too-long", [](Group& group) { mismatch(group, 8, 4); }},
      {"too-short", [](Group& group) { mismatch(group, 4, 8); }},
      {"watched", watched},
      {"idle", idle},
      {"killed", killed},
      {"other-thread", other_thread}};
  return all;
}

/// Without the last call: what becomes of the others.
void leave_early() {
  const auto group = comm::open_mpi_group();
  if (group->rank() != 1) group->barrier();
}

void start_twice() {
  for (int round = 0; round < 2; ++round) {
    const auto group = comm::open_mpi_group();
    comm::run_rank(*group, [&] { group->barrier(); });
  }
}

}  // namespace

int run_as_rank(std::span<const std::string> arguments) {
  try {
    if (arguments[0] == "leave-early") {
      leave_early();
    } else if (arguments[0] == "start-twice") {
      start_twice();
    } else {
      comm::MpiOptions options;
      if (arguments.size() > 1) options.largest_message = std::stoll(arguments[1]);
      const auto group = comm::open_mpi_group(options);
      comm::run_rank(*group, [&] { jobs().at(arguments[0])(*group); });
    }
    return 0;
  } catch (const Error& error) {
    fmt::print(stderr, "said: {}\n", error.what());
    return static_cast<int>(error.exit_code());
  }
}

}  // namespace segfuse::test
