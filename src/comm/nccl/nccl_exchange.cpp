#include "comm/nccl/nccl_exchange.h"

#include <fmt/core.h>

#include <algorithm>
#include <map>
#include <utility>

#include "comm/nccl/add_nodes.h"
#include "comm/nccl/communicator.h"
#include "comm/nccl/library.h"
#include "comm/sum_stream.h"
#include "comm/tree_exchange.h"

namespace segfuse::comm {
namespace {

using runtime::StreamHandle;

constexpr const char* kHandOver = "the sum of shards: parts to their owners";
constexpr const char* kAdd = "the sum of shards: additions";
constexpr const char* kGiveBack = "the sum of shards: sums to all ranks";

/// Throws where a rank has another version than the first: they cannot be relied on to agree.
void compare_versions(Group& control, const NcclApi& api) {
  const std::vector<std::string> versions = control.gather(api.version);
  for (std::size_t rank = 0; rank < versions.size(); ++rank)
    if (versions[rank] != versions[0])
      throw CommError(fmt::format(
          "rank 0 has NCCL {}, and rank {} has NCCL {}; install the same one for all ranks",
          versions[0], rank, versions[rank]));
}

/// The id that rank 0 makes for all.
NcclId id_of_all(Group& control, const NcclApi& api) {
  NcclId id{};
  if (control.rank() == 0)
    if (const NcclResult result = api.get_id(&id); result != NcclResult::kSuccess)
      throw CommError(fmt::format("ncclGetUniqueId failed on rank 0 of {} (NCCL {}): {}",
                                  control.size(), api.version, api.error_text(result)));
  control.broadcast(std::as_writable_bytes(std::span(id.bytes)), 0);
  return id;
}

/// Where the nodes of all ranks lie, in order: own ones as `own` says, others as `other` does, by
/// rank and number.
template <class Own, class Other>
std::vector<const float*> nodes_in_order(const NcclPlan& plan, int rank, const Own& own,
                                         const Other& other) {
  std::vector<const float*> all;
  for (int from = 0; from < std::ssize(plan.nodes); ++from)
    for (int k = 0; k < plan.nodes[static_cast<std::size_t>(from)]; ++k)
      all.push_back(from == rank ? own(static_cast<std::size_t>(k)) : other(from, k));
  return all;
}

}  // namespace

struct NcclExchange::State {
  State(Group& group, std::int64_t all_shards, runtime::OpenDevice& open_device,
        runtime::StreamId work_stream, const NcclOptions& wanted)
      : control(group),
        shards(all_shards),
        work(open_device, work_stream),
        options(wanted),
        ranges(deal_shards(all_shards, group.size())),
        api(wanted.api != nullptr ? *wanted.api : nccl()),
        kernel(std::make_shared<AddNodes>(open_device.kernels())) {
    compare_versions(control, api);
    const NcclId id = id_of_all(control, api);
    // As a piece of work, because the device is current there.
    open_device.executor().launch(work_stream,
                                  {"start of NCCL",
                                   [this, id](StreamHandle) {
                                     comm = std::make_unique<Communicator>(api, id, control,
                                                                           options.limit);
                                   }},
                                  {});
    open_device.timeline().synchronize(work_stream);
  }

  int rank() const { return control.rank(); }
  int ranks() const { return control.size(); }
  ShardRange own_shards() const { return ranges[static_cast<std::size_t>(rank())]; }

  NcclPlan plan(std::int64_t words, std::int64_t present) const;
  std::shared_ptr<const NcclPlan> plan_for(std::int64_t words, std::int64_t present);
  void hand_over(StreamHandle on, const NcclPlan& plan, const NcclAddresses& at) const;
  void add(StreamHandle on, const NcclPlan& plan, const NcclAddresses& at) const;
  void give_back(StreamHandle on, const NcclPlan& plan, const NcclAddresses& at) const;

  Group& control;
  const std::int64_t shards;
  SumStream work;
  const NcclOptions options;
  const std::vector<ShardRange> ranges;
  const NcclApi& api;
  const std::shared_ptr<const AddNodes> kernel;
  std::unique_ptr<Communicator> comm;
  /// Of sum(): what lasts from step to step. Plans by words, for the number of shards that was
  /// present last.
  std::map<std::int64_t, std::shared_ptr<const NcclPlan>> plans;
  std::int64_t last_present = 0;
  runtime::Buffer scratch;
};

NcclPlan NcclExchange::State::plan(std::int64_t words, std::int64_t present) const {
  NcclPlan plan;
  NodesOfRanks all = nodes_of_ranks(ranges, shards, present);
  plan.nodes = std::move(all.counts);
  plan.additions = std::move(all.additions);
  plan.most_nodes = std::ranges::max(plan.nodes);
  plan.own_nodes = static_cast<std::size_t>(plan.nodes[static_cast<std::size_t>(rank())]);
  plan.others = std::ssize(plan.additions) - static_cast<std::int64_t>(plan.own_nodes);
  plan.words = words;
  const std::int64_t bytes = words * static_cast<std::int64_t>(sizeof(float));
  if (plan.most_nodes * ranks() * bytes > options.one_step_bytes)
    plan.part = words / kBlockWords / ranks() * kBlockWords;
  plan.parted = plan.part * ranks();
  return plan;
}

std::shared_ptr<const NcclPlan> NcclExchange::State::plan_for(std::int64_t words,
                                                              std::int64_t present) {
  if (present != last_present) plans.clear();
  last_present = present;
  std::shared_ptr<const NcclPlan>& known = plans[words];
  if (!known) known = std::make_shared<const NcclPlan>(plan(words, present));
  return known;
}

void NcclExchange::State::hand_over(StreamHandle on, const NcclPlan& plan,
                                    const NcclAddresses& at) const {
  if (ranks() == 1 && plan.rest() == 0) return;
  comm->enqueue(kHandOver, on.get(), [&](const Communicator::Calls& calls) {
    float* free = at.scratch;
    for (int peer = 0; plan.part > 0 && peer < ranks(); ++peer) {
      if (peer == rank()) continue;
      for (const float* node : at.nodes) calls.send(node + peer * plan.part, plan.part, peer);
      for (int k = 0; k < plan.nodes[static_cast<std::size_t>(peer)]; ++k, free += plan.part)
        calls.receive(free, plan.part, peer);
    }
    for (int k = 0; plan.rest() > 0 && k < plan.most_nodes; ++k, free += ranks() * plan.rest()) {
      // Who has fewer nodes gives what lies there, which nobody reads.
      const auto number = static_cast<std::size_t>(k);
      const float* const mine =
          number < at.nodes.size() ? at.nodes[number] + plan.parted : free + rank() * plan.rest();
      calls.all_gather(mine, free, plan.rest());
    }
  });
}

void NcclExchange::State::add(StreamHandle on, const NcclPlan& plan,
                              const NcclAddresses& at) const {
  const std::int64_t mine = rank() * plan.part;
  const float* received = at.scratch;
  const auto parts = nodes_in_order(
      plan, rank(), [&](std::size_t k) { return at.nodes[k] + mine; },
      [&](int, int) { return std::exchange(received, received + plan.part); });
  kernel->launch(on, parts, plan.additions, plan.part, at.sum + mine);
  const float* const gathered = at.scratch + plan.others * plan.part;
  const auto rests = nodes_in_order(
      plan, rank(), [&](std::size_t k) { return at.nodes[k] + plan.parted; },
      [&](int from, int k) { return gathered + (k * ranks() + from) * plan.rest(); });
  kernel->launch(on, rests, plan.additions, plan.rest(), at.sum + plan.parted);
}

void NcclExchange::State::give_back(StreamHandle on, const NcclPlan& plan,
                                    const NcclAddresses& at) const {
  comm->enqueue(kGiveBack, on.get(), [&](const Communicator::Calls& calls) {
    calls.all_gather(at.sum + rank() * plan.part, at.sum, plan.part);
  });
}

NcclExchange::NcclExchange(Group& control, std::int64_t shards, runtime::OpenDevice& device,
                           runtime::StreamId stream, const NcclOptions& options)
    : state_(std::make_shared<State>(control, shards, device, stream, options)) {}

NcclExchange::~NcclExchange() {
  abort("it left without finishing");
  state_->scratch.reset();
}

void NcclExchange::sum(std::span<const runtime::Buffer> nodes, std::int64_t present,
                       const runtime::Buffer& sum, const SumBegin& begin) {
  State& s = *state_;
  const auto words = static_cast<std::int64_t>(sum.bytes() / sizeof(float));
  const std::shared_ptr<const NcclPlan> plan = s.plan_for(words, present);
  SumStream::check(s.rank(), nodes, plan->own_nodes, sum, begin);
  if (words == 0) return;
  if (s.scratch.bytes() < plan->scratch_bytes())
    s.scratch =
        s.work.device().heap().allocate(plan->scratch_bytes(), s.work.id(), "sum of shards");

  NcclAddresses at;
  std::vector<runtime::Use> uses;
  for (const runtime::Buffer& node : nodes) {
    at.nodes.push_back(reinterpret_cast<const float*>(node.address()));
    uses.push_back(reads(node));
  }
  at.scratch = reinterpret_cast<float*>(s.scratch.address());
  at.sum = reinterpret_cast<float*>(sum.address());
  const auto launch = [&](const char* name, auto piece, std::span<const runtime::Use> used) {
    s.work.enqueue({name, [state = state_, plan, at,
                           piece](StreamHandle on) { (*state.*piece)(on, *plan, at); }},
                   used, begin, s.scratch);
  };
  s.work.add_own(s.kernel, begin, words, s.scratch);
  if (s.scratch) uses.push_back(writes(s.scratch));
  launch(kHandOver, &State::hand_over, uses);
  if (s.scratch) uses.back() = reads(s.scratch);
  uses.push_back(writes(sum));
  launch(kAdd, &State::add, uses);
  if (plan->parted > 0) launch(kGiveBack, &State::give_back, std::span(&uses.back(), 1));
}

void NcclExchange::wait() {
  state_->work.wait([&] { state_->comm->look(); });
}

void NcclExchange::finish() {
  wait();
  state_->comm->finish();
}

void NcclExchange::abort(std::string_view reason) noexcept { state_->comm->abort(reason); }

ShardRange NcclExchange::own_shards() const { return state_->own_shards(); }
std::string NcclExchange::name() const {
  return fmt::format("NCCL {} ({})", state_->api.version, state_->api.where);
}

NcclPlan NcclExchange::plan(std::int64_t words, std::int64_t present) const {
  return state_->plan(words, present);
}
void NcclExchange::hand_over(StreamHandle stream, const NcclPlan& plan,
                             const NcclAddresses& at) const {
  state_->hand_over(stream, plan, at);
}
void NcclExchange::add(StreamHandle stream, const NcclPlan& plan, const NcclAddresses& at) const {
  state_->add(stream, plan, at);
}
void NcclExchange::give_back(StreamHandle stream, const NcclPlan& plan,
                             const NcclAddresses& at) const {
  state_->give_back(stream, plan, at);
}

}  // namespace segfuse::comm
