#include "learn/train/loop/ranks.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <exception>

#include "base/console/log.h"
#include "base/os/ranks.h"
#include "comm/mpi/choice.h"
#include "comm/mpi/mpi_group.h"
#include "comm/mpi/start.h"
#include "comm/tree_exchange.h"
#include "learn/train/files/recipe.h"
#include "learn/train/loop/watch.h"
#include "segfuse/error.h"
#include "segfuse/version.h"

namespace segfuse::learn {

namespace {

/// An error of another process. It is said with the rank, if it does not say where it was.
[[noreturn]] void throw_failure(const std::string& failure, const std::string& prefix) {
  const std::size_t space = failure.find(' ');
  const std::string text = prefix + failure.substr(space + 1);
  switch (static_cast<ExitCode>(std::stoi(failure.substr(0, space)))) {
    case ExitCode::kUsage: throw UsageError(text);
    case ExitCode::kData: throw DataError(text);
    case ExitCode::kInternal: throw InternalError(text);
    default: throw CommError(text);
  }
}

}  // namespace

std::string failure_text(const Error& error) {
  return fmt::format("{} {}", static_cast<int>(error.exit_code()), error.what());
}

TrainingRanks::TrainingRanks(comm::Group* group, std::int64_t shards, RankWatch* watch)
    : group_(group != nullptr && group->size() > 1 ? group : nullptr),
      watch_(watch),
      shards_{0, shards} {
  if (group_ == nullptr) return;
  exchange_ = std::make_unique<comm::TreeExchange>(*group_, shards);
  shards_ = exchange_->own_shards();
}

TrainingRanks::~TrainingRanks() = default;

void TrainingRanks::report(comm::meet::Phase phase, std::int64_t step, std::int64_t shard) const {
  if (watch_ != nullptr) watch_->report(phase, step, shard);
}

comm::ShardRange TrainingRanks::shards() const { return shards_; }

void TrainingRanks::compare(const Recipe& recipe) {
  if (alone()) return;
  Recipe own = recipe;
  own.emplace_back("version of segfuse", version());
  const std::vector<std::string> all = group_->gather(json_text(recipe_json(own)));
  const auto parse = [&](std::size_t rank) {
    const std::string place = fmt::format("the recipe of rank {}", rank);
    const Json json = parse_json(all[rank], place);
    return recipe_from_json(JsonPlace(json, place));
  };
  for (std::size_t rank = 1; rank < all.size(); ++rank) {
    const std::string different = differences(parse(0), parse(rank));
    if (different.empty()) continue;
    let_leader_speak();
    throw UsageError(fmt::format(
        "rank {} trains something else than rank 0 (then: rank 0, now: rank {}: {}); start all "
        "ranks with the same configuration, data and version of segfuse",
        rank, rank, different));
  }
}

TrainingRanks::Report TrainingRanks::join(const Report& own) {
  if (alone()) return own;
  // A letter for what follows, then the failure or the losses.
  std::string text(1, !own.failure.empty() ? 'f' : own.stop ? 's' : 'g');
  if (!own.failure.empty())
    text += own.failure;
  else
    text.append(reinterpret_cast<const char*>(own.losses.data()),
                own.losses.size() * sizeof(float));
  Report all;
  for (const std::string& of_rank : group_->gather(text)) {
    if (of_rank[0] == 'f') {
      let_leader_speak();
      throw_failure(of_rank.substr(1), "");
    }
    all.stop = all.stop || of_rank[0] == 's';
    const std::size_t count = (of_rank.size() - 1) / sizeof(float);
    const std::size_t before = all.losses.size();
    all.losses.resize(before + count);
    std::memcpy(all.losses.data() + before, of_rank.data() + 1, count * sizeof(float));
  }
  return all;
}

void TrainingRanks::sum(std::span<const std::span<const float>> nodes, std::int64_t present,
                        std::span<float> sum) {
  exchange_->sum(nodes, present, sum);
}

std::string TrainingRanks::from_leader(std::string text) {
  if (alone()) return text;
  std::uint64_t size = text.size();
  group_->broadcast(std::as_writable_bytes(std::span(&size, 1)), 0);
  text.resize(size);
  group_->broadcast(std::as_writable_bytes(std::span(text)), 0);
  return text;
}

std::string TrainingRanks::first_of(std::string_view own) {
  if (alone()) return std::string(own);
  for (std::string& text : group_->gather(own))
    if (!text.empty()) return std::move(text);
  return "";
}

void TrainingRanks::let_leader_speak() {
  if (!leads()) group_->barrier();
}

void agree(comm::Group* group, const std::function<void()>& work) {
  if (group == nullptr) return work();
  std::exception_ptr own;
  std::string said;
  try {
    work();
  } catch (const Error& error) {
    own = std::current_exception();
    said = failure_text(error);
  }
  const std::vector<std::string> all = group->gather(said);
  const auto failed =
      std::ranges::find_if(all, [](const std::string& text) { return !text.empty(); });
  if (failed == all.end()) return;
  if (group->rank() > 0) group->barrier();
  if (own) std::rethrow_exception(own);
  throw_failure(*failed, fmt::format("rank {}: ", failed - all.begin()));
}

int rank_of(const comm::Group* group) { return group == nullptr ? 0 : group->rank(); }

void run_on_ranks(const std::function<void(RankContext&)>& work) {
  if (!ranks_of_environment()) {
    RankContext alone;
    return work(alone);
  }
  if (comm::mpi_launcher().name.empty()) {
    const std::optional<Ranks> ranks = ranks_of_environment();
    throw UsageError(fmt::format(
        "{} started {} processes together ({}={}), and a training is shared by an MPI's ranks; "
        "start it by mpirun, by srun --mpi=pmix, or with --ranks {}; or unset {} to train alone",
        ranks->launcher, ranks->count, ranks->variable, ranks->count, ranks->count,
        ranks->variable));
  }
  const std::unique_ptr<comm::Group> group = comm::open_mpi_group();
  RankContext context{group.get()};  // its watch goes before the group
  if (group->rank() == 0)
    log(LogLevel::kInfo, "{} ranks, on {}", group->size(), group->engine());
  else  // what all of them would say is said once
    set_log_level(std::max(log_level(), LogLevel::kError));
  comm::run_rank(*group, [&] {
    try {
      work(context);
      if (context.watch) context.watch->leave();
    } catch (...) {
      if (context.watch) context.watch->end_all();
      throw;
    }
  });
}

int start_ranks(int ranks, const std::vector<std::string>& command) {
  if (ranks < 2 || ranks > comm::kMostShards)
    throw UsageError(
        fmt::format("{} ranks; between 2 and {} are possible", ranks, comm::kMostShards));
  if (const auto here = ranks_of_environment())
    throw UsageError(fmt::format(
        "ranks were to be started by one of {} processes that a launcher started together; leave "
        "--ranks out where mpirun or srun starts segfuse",
        here->count));
  return comm::start_mpi_ranks(ranks, command);
}

}  // namespace segfuse::learn
