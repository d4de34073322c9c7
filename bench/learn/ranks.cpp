// Ranks of a training on GPUs of this machine, as threads of one process.
//   segfuse_bench_ranks RANKS exchange [BLOCKS MOST_BLOCKS ONE_STEP_KIB TILE_KIB]
//                       sums of gradients; reference_ms is NCCL's all-reduce
//   segfuse_bench_ranks RANKS step WIDTH ROWS [peer|nccl [ROUNDS]]
//                       steps of a training; reference_ms is one GPU by itself, exchange_ms the
//                       median over rounds of what a step takes longer than without an exchange
// Prints one JSON list of rows; nothing where there are fewer GPUs. `device` says how many.

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdlib>
#include <mutex>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/os/shared_library.h"
#include "base/rng.h"
#include "comm/nccl/library.h"
#include "comm/nccl/nccl_exchange.h"
#include "comm/peer/peer_exchange.h"
#include "comm/threads/thread_group.h"
#include "engine/device/accelerator.h"
#include "learn/train/loop/ranks.h"
#include "learn/train/loop/training_step.h"

namespace {

using namespace segfuse;
using comm::Group;
using Clock = std::chrono::steady_clock;
using Accelerators = std::vector<std::shared_ptr<engine::Accelerator>>;

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

double ms_since(Clock::time_point begin) {
  return std::chrono::duration<double, std::milli>(Clock::now() - begin).count();
}

/// NCCL's own sum, by a communicator of its own.
class AllReduce {
 public:
  AllReduce(Group& group, engine::Accelerator& accelerator)
      : api_(comm::nccl()), library_(SharedLibrary::open_first({api_.where})) {
    library_.load("ncclAllReduce", all_reduce_);
    comm::NcclId id{};
    if (group.rank() == 0) api_.get_id(&id);
    group.broadcast(std::as_writable_bytes(std::span(id.bytes)), 0);
    runtime::OpenDevice& device = *accelerator.device();
    const auto start = [&](runtime::StreamHandle) {
      comm::NcclConfig config;
      config.blocking = 1;
      api_.init_rank(&comm_, group.size(), id, group.rank(), &config);
    };
    device.executor().launch(accelerator.streams()[0], {"start", start}, {});
  }
  void enqueue(engine::Accelerator& accelerator, const runtime::Buffer& buffer) {
    const auto call = [&](runtime::StreamHandle on) {
      all_reduce_(buffer.address(), buffer.address(), buffer.bytes() / 4, comm::kNcclFloat32, 0,
                  comm_, on.get());
    };
    accelerator.executor().launch(accelerator.streams()[0], {"all-reduce", call},
                                  {runtime::writes(buffer)});
  }

 private:
  const comm::NcclApi& api_;
  SharedLibrary library_;
  comm::NcclComm comm_ = nullptr;
  comm::NcclResult (*all_reduce_)(const void*, void*, std::size_t, int, int, comm::NcclComm,
                                  comm::NcclStream) = nullptr;
};

/// Milliseconds of one of many that follow one another, the median of some rounds.
double time_of(Group& group, engine::Accelerator& accelerator, int count,
               const std::function<void()>& enqueue) {
  std::vector<double> each;
  for (int round = 0; round < 7; ++round) {
    accelerator.device()->device().drain();
    group.barrier();
    const Clock::time_point begin = Clock::now();
    for (int i = 0; i < count; ++i) enqueue();
    accelerator.device()->device().drain();
    if (round >= 2) each.push_back(ms_since(begin) / count);
  }
  return median(each);
}

/// How many sums of so many bytes are timed together.
int count_of(std::size_t bytes) {
  return bytes < (std::size_t{4} << 20) ? 100 : bytes < (64U << 20) ? 40 : 10;
}

/// Sums by NCCL's calls and by peer memory beside NCCL's all-reduce.
nlohmann::ordered_json exchange_rows(int ranks, const Accelerators& accelerators,
                                     const comm::PeerOptions& options) {
  nlohmann::ordered_json rows = nlohmann::ordered_json::array();
  const std::int64_t shards = comm::least_shards(ranks);
  comm::run_ranks(ranks, [&](Group& group) {
    engine::Accelerator& accelerator = *accelerators[static_cast<std::size_t>(group.rank())];
    runtime::OpenDevice& device = *accelerator.device();
    const runtime::StreamId stream = accelerator.streams()[0];
    std::string reason;
    std::vector<std::unique_ptr<comm::DeviceExchange>> ways;
    ways.push_back(std::make_unique<comm::NcclExchange>(group, shards, device, stream));
    ways.push_back(comm::PeerExchange::open(group, shards, device, stream, reason, options));
    if (ways.back() == nullptr) {
      if (group.rank() == 0) fmt::print(stderr, "no peer memory: {}\n", reason);
      ways.pop_back();
    }
    AllReduce theirs(group, accelerator);
    const std::size_t nodes = comm::nodes_of(ways[0]->own_shards(), shards, shards).size();
    for (std::size_t bytes = 4096; bytes <= std::size_t{1} << 30; bytes *= 4) {
      const std::vector<runtime::Buffer> own(nodes, accelerator.allocate(bytes, "node"));
      const int count = count_of(bytes);
      const double reference =
          time_of(group, accelerator, count, [&] { theirs.enqueue(accelerator, own[0]); });
      for (const auto& way : ways) {
        const double ms =
            time_of(group, accelerator, count, [&] { way->sum(own, shards, own[0]); });
        const double alone = time_of(group, accelerator, 1, [&] {
          way->sum(own, shards, own[0]);
          way->wait();
        });
        if (group.rank() == 0)
          rows.push_back({{"name", fmt::format("sum of {} KiB, {}", bytes / 1024, way->name())},
                          {"device", fmt::format("{} x {}", ranks, device.device().name())},
                          {"threads", 1},
                          {"ms", ms},
                          {"error", 0},
                          {"reference_ms", reference},
                          {"ratio", ms / reference},
                          {"with_wait_ms", alone}});
      }
    }
    for (const auto& way : ways) way->finish();
  });
  return rows;
}

constexpr std::int64_t kFrames = 800;
constexpr std::int64_t kWhole = std::int64_t{1} << 60;  // a piece
constexpr int kSteps = 6;                               // of a round

std::vector<learn::Sequence> sequences(const learn::ModelConfig& model, std::int64_t rows) {
  Rng rng(1);
  std::vector<learn::Sequence> all;
  for (std::int64_t row = 0; row < rows; ++row) {
    learn::Sequence sequence;
    sequence.id = std::to_string(row);
    sequence.features = Tensor(DType::kF32, {kFrames, model.features});
    for (float& value : sequence.features.span<float>()) value = static_cast<float>(rng.normal());
    for (std::int64_t at = 0; at < kFrames; at += 10)
      sequence.segments.push_back(
          {at, 10,
           static_cast<std::int32_t>(rng.below(static_cast<std::uint64_t>(model.classes)))});
    all.push_back(std::move(sequence));
  }
  return all;
}

/// What ranks do of a step's exchange.
enum class How { kNothing, kAfter, kBeside };

/// Milliseconds of the host in all timed steps.
using Phases = std::array<double, 6>;
constexpr const char* kPhases[] = {"enqueue", "start sum", "losses", "join", "reduce", "update"};

/// One rank's part of a training.
class Rank {
 public:
  Rank(Group* group, const learn::Segmenter& segmenter,
       const std::shared_ptr<engine::Accelerator>& accelerator, std::int64_t piece,
       const learn::Batch& batch, const std::string& comm)
      : number_(group == nullptr ? 0 : group->rank()),
        shards_(group == nullptr ? 1 : comm::least_shards(group->size())),
        accelerator_(accelerator),
        layout_(segmenter.parameters(), learn::is_crf),
        ranks_(group, shards_),
        alone_(nullptr, shards_),
        batch_(batch) {
    execution_.accelerator = accelerator;
    ranks_.choose_exchange(comm, accelerator.get());
    const learn::FlatState state{optim::FlatTensors::copy(layout_, segmenter.initial(1)),
                                 optim::FlatTensors::zeros(layout_),
                                 optim::FlatTensors::zeros(layout_),
                                 {}};
    const Tensor limit =
        Tensor::zeros(DType::kF32, {segmenter.max_duration(), segmenter.config().classes});
    learn::StepOptions options;
    options.shards = shards_;
    options.piece = piece;
    step_ = std::make_unique<learn::TrainingStep>(segmenter, options, state, layout_,
                                                  learn::NamedTensors{{"duration_limit", limit}},
                                                  execution_);
    step_->stage(batch_);
  }
  void step(How how, Phases& phases) {
    const auto lap = [&, last = Clock::now()](std::size_t phase) mutable {
      phases[phase] += ms_since(last);
      last = Clock::now();
    };
    auto timed = lap;
    step_->begin(shards_, number_);
    step_->add(batch_, {1, number_, std::ssize(batch_.rows) * kFrames / 10 * shards_});
    timed(0);
    if (how == How::kBeside && ranks_.all_ready(true, step_->pieces())) step_->start_sum(ranks_);
    timed(1);
    learn::TrainingRanks::Report own;
    own.losses = step_->losses();
    timed(2);
    static_cast<void>(ranks_.join(own));
    timed(3);
    static_cast<void>(step_->reduce(how == How::kNothing ? alone_ : ranks_));
    timed(4);
    step_->update(1e-4, 1, ++steps_);
    timed(5);
  }
  /// Milliseconds of a step; those of its phases on the host are added.
  double time(How how, Phases& phases) {
    accelerator_->device()->device().drain();
    const Clock::time_point begin = Clock::now();
    for (int i = 0; i < kSteps; ++i) step(how, phases);
    accelerator_->device()->device().drain();
    return ms_since(begin) / kSteps;
  }
  void finish() { ranks_.finish(); }
  std::int64_t parameters() const { return layout_.size; }
  const std::string& pieces() const { return step_->pieces(); }

 private:
  std::int64_t number_;
  std::int64_t shards_;
  std::shared_ptr<engine::Accelerator> accelerator_;
  optim::FlatLayout layout_;
  engine::ExecutableOptions execution_;
  learn::TrainingRanks ranks_;
  learn::TrainingRanks alone_;
  learn::Batch batch_;
  std::unique_ptr<learn::TrainingStep> step_;
  std::int64_t steps_ = 0;
};

nlohmann::ordered_json step_rows(int ranks, const Accelerators& accelerators, std::int64_t width,
                                 std::int64_t count, const std::string& comm, std::int64_t rounds) {
  learn::ModelConfig model;
  model.width = width;
  model.features = 80;
  model.classes = 45;
  model.max_duration = 40;
  const learn::Segmenter segmenter(model);
  std::vector<std::int64_t> rows;
  for (std::int64_t row = 0; row < count; ++row) rows.push_back(row);
  const learn::Batch batch = learn::make_batch(sequences(model, count), rows, model);
  nlohmann::ordered_json found = nlohmann::ordered_json::array();
  const std::string name = accelerators[0]->device()->device().name();
  double reference = 0;
  const auto note = [&](const std::string& what, int gpus, const std::vector<double>& each,
                        const Phases& sums, const Rank& rank) {
    const double ms = median(each);
    auto phases = nlohmann::ordered_json::object();
    for (std::size_t p = 0; p < sums.size(); ++p)
      phases[kPhases[p]] = sums[p] / static_cast<double>(kSteps * each.size());
    found.push_back({{"name", what},
                     {"device", fmt::format("{} x {}", gpus, name)},
                     {"threads", 1},
                     {"ms", ms},
                     {"error", 0},
                     {"reference_ms", reference},
                     {"ratio", ms / reference},
                     {"least_ms", std::ranges::min(each)},
                     {"parameters", rank.parameters()},
                     {"pieces", rank.pieces()},
                     {"phases_ms", phases}});
  };
  {
    Rank one(nullptr, segmenter, accelerators[0], kWhole, batch, comm);
    std::vector<double> each;
    Phases phases{};
    for (int round = 0; round < 12; ++round) {
      Phases unused{};
      const double ms = one.time(How::kNothing, round < 2 ? unused : phases);
      if (round >= 2) each.push_back(ms);
    }
    reference = median(each);
    note(fmt::format("one GPU, width {}, {} rows", width, count), 1, each, phases, one);
  }
  comm::run_ranks(ranks, [&](Group& group) {
    const auto& accelerator = accelerators[static_cast<std::size_t>(group.rank())];
    Rank usual(&group, segmenter, accelerator, learn::kSumPiece, batch, comm);
    Rank small(&group, segmenter, accelerator, std::int64_t{1} << 20, batch, comm);
    struct Case {
      std::string name;
      How how;
      Rank& rank;
      std::vector<double> each = {};
      Phases phases = {};
    };
    Case cases[] = {{"no exchange", How::kNothing, usual},
                    {"exchange after", How::kAfter, usual},
                    {"exchange beside, pieces of 25 MiB", How::kBeside, usual},
                    {"exchange beside, pieces of 4 MiB", How::kBeside, small}};
    // One after the other in each round, so that a slow moment is not one's alone.
    for (int round = 0; round < rounds + 2; ++round)
      for (Case& one : cases) {
        Phases unused{};
        const double ms = one.rank.time(one.how, round < 2 ? unused : one.phases);
        if (round >= 2) one.each.push_back(ms);
      }
    for (const Case& one : cases) {
      if (group.rank() > 0) break;
      note(one.name, ranks, one.each, one.phases, one.rank);
      std::vector<double> longer;
      for (std::size_t round = 0; round < one.each.size(); ++round)
        longer.push_back(one.each[round] - cases[0].each[round]);
      found.back()["exchange_ms"] = median(longer);
    }
    usual.finish();
    small.finish();
  });
  return found;
}

}  // namespace

int main(int argc, char** argv) {
  const int ranks = argc > 1 ? std::atoi(argv[1]) : 2;
  const std::string what = argc > 2 ? argv[2] : "exchange";
  const auto number = [&](int at, std::int64_t usual) {
    return argc > at ? std::int64_t{std::atoi(argv[at])} : usual;
  };
  comm::PeerOptions options;
  options.blocks = static_cast<int>(number(3, options.blocks));
  options.most_blocks = static_cast<int>(number(4, options.most_blocks));
  options.one_step_bytes = number(5, options.one_step_bytes >> 10) << 10;
  options.tile_bytes = number(6, options.tile_bytes >> 10) << 10;
  std::string reason;
  if (runtime::cuda_device_count(&reason) < ranks) {
    fmt::print(stderr, "there are fewer than {} GPUs {}\n", ranks, reason);
    fmt::print("[]\n");
    return 0;
  }
  Accelerators accelerators;
  for (int rank = 0; rank < ranks; ++rank)
    accelerators.push_back(engine::open_accelerator(fmt::format("cuda:{}", rank)));
  const auto rows = what == "step"
                        ? step_rows(ranks, accelerators, static_cast<int>(number(3, 512)),
                                    number(4, 64), argc > 5 ? argv[5] : "peer", number(6, 30))
                        : exchange_rows(ranks, accelerators, options);
  fmt::print("{}\n", rows.dump(1));
  return 0;
}
