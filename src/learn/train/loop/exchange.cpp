// How the ranks of a training sum their gradients.

#include <fmt/format.h>

#include <map>
#include <optional>

#include "base/console/log.h"
#include "comm/group.h"
#include "comm/machine.h"
#include "comm/meet/wire/socket.h"
#include "comm/nccl/library.h"
#include "comm/nccl/nccl_exchange.h"
#include "comm/peer/peer_exchange.h"
#include "comm/peer/peer_memory.h"
#include "comm/tree_exchange.h"
#include "engine/device/accelerator.h"
#include "engine/device/gpus.h"
#include "learn/train/loop/ranks.h"
#include "learn/train/loop/stragglers.h"

namespace segfuse::learn {
namespace {

/// What a rank says of its device, so that all decide the same: a letter and a text. g: the name of
/// its GPU; c: the machine, where there is no GPU.
std::string own_words(engine::Accelerator* accelerator) {
  const std::string host = comm::meet::own_host();
  if (accelerator == nullptr) return "c" + host;
  const std::string identity = engine::gpu_identity(accelerator->name());
  return "g" + (identity.empty() ? fmt::format("{} of {}", accelerator->name(), host) : identity);
}

using Obstacle = TrainingRanks::Obstacle;

/// Why there is no NCCL; empty where there is.
std::string missing_nccl(const comm::NcclApi*& nccl) {
  try {
    if (nccl == nullptr) nccl = &comm::nccl();
    return "";
  } catch (const CommError& error) {
    return error.what();
  }
}

/// Why the ranks cannot make sums on GPUs, if they cannot.
std::optional<Obstacle> obstacle_of(const std::vector<std::string>& words) {
  std::map<std::string, std::size_t> owners;
  for (std::size_t rank = 0; rank < words.size(); ++rank)
    if (words[rank][0] == 'c')
      return Obstacle{
          fmt::format("rank {} (host {}) trains on the CPU; --device cuda gives each "
                      "rank the GPU of its number",
                      rank, words[rank].substr(1))};
  for (std::size_t rank = 0; rank < words.size(); ++rank) {
    const auto [owner, added] = owners.emplace(words[rank], rank);
    if (!added)
      return Obstacle{fmt::format("ranks {} and {} share a GPU, but each needs one of its own",
                                  owner->second, rank)};
  }
  return {};
}

}  // namespace

/// Sums on a stream of their own.
struct TrainingRanks::OnGpus {
  explicit OnGpus(engine::Accelerator& own)
      : accelerator(own), stream(timeline().create(own.device()->device(), "exchange")) {}
  ~OnGpus() {
    exchange.reset();
    try {
      timeline().retire(stream);
    } catch (const std::exception&) {
      // A failure of work that nobody waited for.
    }
  }
  OnGpus(const OnGpus&) = delete;
  OnGpus& operator=(const OnGpus&) = delete;
  runtime::Timeline& timeline() const { return accelerator.device()->timeline(); }

  engine::Accelerator& accelerator;
  runtime::StreamId stream;
  std::unique_ptr<comm::DeviceExchange> exchange;
};

TrainingRanks::TrainingRanks(comm::Group* group, std::int64_t shards, RankWatch* watch)
    // Where ranks go on, others may join this one also if it is the last.
    : group_(group != nullptr && (group->size() > 1 || group->goes_on()) ? group : nullptr),
      watch_(watch),
      all_shards_(shards),
      shards_{0, shards} {
  deal();
}

TrainingRanks::~TrainingRanks() = default;

void TrainingRanks::deal() {
  stragglers_ = std::make_unique<Stragglers>();
  if (alone()) return;
  exchange_ = std::make_unique<comm::TreeExchange>(*group_, all_shards_);
  shards_ = exchange_->own_shards();
  generation_ = group_->generation();
}

bool TrainingRanks::deal_again() {
  if (alone() || group_->generation() == generation_) return false;
  deal();
  return true;
}

void TrainingRanks::choose_exchange(const std::string& comm, engine::Accelerator* accelerator,
                                    const comm::NcclApi* nccl) {
  if (alone()) return;
  accelerator_ = accelerator;
  choose_gpus(comm, nccl);
  // Where ranks may be lost, one may be left of a machine.
  if (gpus_ || group_->goes_on()) return;
  exchange_ =
      std::make_unique<comm::TreeExchange>(*group_, all_shards_, comm::machines_of(*group_));
  if (exchange_->machines() > 1 && leads())
    log(LogLevel::kInfo, "gradients are summed within each of {} machines first",
        exchange_->machines());
}

/// Sums on GPUs, where they are wanted and can be made.
void TrainingRanks::choose_gpus(const std::string& comm, const comm::NcclApi* nccl) {
  // They do not go on without a rank.
  const bool on_gpus = comm.empty() || comm == "peer" || comm == "nccl";
  const bool wanted = on_gpus && !group_->goes_on();
  const std::vector<std::string> words = gather(wanted ? own_words(accelerator_) : "");
  if (!wanted) return;
  std::optional<Obstacle> obstacle = obstacle_of(words);
  bool any_gpu = false;
  for (const std::string& word : words) any_gpu = any_gpu || word[0] != 'c';
  if (!obstacle) {
    gpus_ = std::make_unique<OnGpus>(*accelerator_);
    obstacle = open_on_gpus(comm, nccl);
  }
  if (!obstacle && leads())
    log(LogLevel::kInfo, "gradients are summed on the GPUs, by {}", gpus_->exchange->name());
  if (!obstacle) return;
  gpus_.reset();
  if (!comm.empty()) {
    let_leader_speak();
    const std::string text = fmt::format("--comm {}: {}", comm, obstacle->text);
    if (obstacle->usage) throw UsageError(text);
    throw CommError(text);
  }
  if (any_gpu && leads())
    log(LogLevel::kInfo, "gradients travel through host memory, by {}: {}", group_->engine(),
        obstacle->text);
}

std::optional<TrainingRanks::Obstacle> TrainingRanks::open_on_gpus(const std::string& comm,
                                                                   const comm::NcclApi* nccl) {
  runtime::OpenDevice& device = *accelerator_->device();
  if (comm != "nccl") {
    std::string reason;
    gpus_->exchange = comm::PeerExchange::open(*group_, all_shards_, device, gpus_->stream, reason);
    if (gpus_->exchange) return {};
    if (comm == "peer") return Obstacle{reason, false};
    if (leads())
      log(LogLevel::kInfo, "the GPUs do not sum gradients in each other's memory: {}", reason);
  }
  if (const std::string missing = comm::first_reason(*group_, missing_nccl(nccl)); !missing.empty())
    return Obstacle{missing, false};
  gpus_->exchange = std::make_unique<comm::NcclExchange>(
      *group_, all_shards_, device, gpus_->stream, comm::NcclOptions{.api = nccl});
  return {};
}

void TrainingRanks::sum(std::span<const Tensor> nodes, std::int64_t present, const Tensor& sum) {
  if (!gpus_) return sum_on_host(nodes, present, sum);
  std::vector<runtime::Buffer> buffers;
  for (const Tensor& node : nodes) buffers.push_back(accelerator_->buffer(node));
  gpus_->exchange->sum(buffers, present, accelerator_->buffer(sum));
  gpus_->exchange->wait();
}

bool TrainingRanks::all_ready(bool own, const std::string& pieces) {
  const std::vector<std::string> all = group_->gather(own ? pieces : "");
  bool ready = true;
  for (const std::string& of_rank : all) ready = ready && !of_rank.empty();
  for (std::size_t rank = 1; rank < all.size() && ready; ++rank)
    if (all[rank] != all[0]) {
      let_leader_speak();
      throw CommError(fmt::format(
          "rank {} sums the gradients in other pieces than rank 0 (rank {}: {}; rank 0: {}); start "
          "all ranks with the same build of segfuse on GPUs of one type",
          rank, rank, all[rank], all[0]));
    }
  return ready;
}

void TrainingRanks::start_sum(std::span<const Tensor> slots, std::size_t nodes,
                              std::int64_t present, const Tensor& sum,
                              std::span<const Piece> pieces,
                              const std::vector<runtime::Frontier>* over) {
  runtime::Executor& executor = accelerator_->executor();
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    const auto offset = static_cast<std::size_t>(pieces[i].begin) * sizeof(float);
    const auto words = static_cast<std::size_t>(pieces[i].end - pieces[i].begin);
    const auto part = [&](const runtime::Buffer& whole) {
      return whole.part(offset, words * sizeof(float));
    };
    std::vector<runtime::Buffer> parts;
    runtime::Frontier after = over != nullptr ? over->at(i) : runtime::Frontier();
    for (const Tensor& slot : slots) {
      const runtime::Buffer& whole = accelerator_->buffer(slot);
      parts.push_back(part(whole));
      if (over == nullptr || parts.size() < slots.size()) after.join(executor.uses_of(whole));
    }
    const runtime::Buffer& to = accelerator_->buffer(sum);
    if (nodes == 0) after.join(executor.uses_of(to));
    const std::span<const runtime::Buffer> all(parts);
    gpus_->exchange->sum(all.first(nodes), present, part(to),
                         {.last_node = nodes == 0 ? all : all.subspan(nodes - 1), .after = &after});
  }
}

void TrainingRanks::wait_for_sum() { gpus_->exchange->wait(); }

void TrainingRanks::sum_on_host(std::span<const Tensor> nodes, std::int64_t present,
                                const Tensor& sum) {
  std::vector<Tensor> on_host;
  std::vector<std::span<const float>> spans;
  for (const Tensor& node : nodes) on_host.push_back(node.to_host());
  for (const Tensor& node : on_host) spans.push_back(node.span<float>());
  Tensor host = accelerator_ != nullptr ? Tensor(DType::kF32, sum.shape()) : sum;
  exchange_->sum(spans, present, host.span<float>());
  if (accelerator_ != nullptr) accelerator_->upload_into(host, sum);
}

void TrainingRanks::finish() {
  if (gpus_) gpus_->exchange->finish();
}

}  // namespace segfuse::learn
