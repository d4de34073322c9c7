#include "comm/peer/peer_exchange.h"

#include <fmt/core.h>

#include <algorithm>
#include <atomic>
#include <map>
#include <utility>

#include "base/mutex.h"
#include "comm/lookout.h"
#include "comm/nccl/add_nodes.h"
#include "comm/peer/peer_memory.h"
#include "comm/peer/peer_plan.h"
#include "comm/peer/trial_sum.h"
#include "comm/sum_stream.h"

namespace segfuse::comm {
namespace {

using runtime::StreamHandle;

constexpr const char* kSum = "the sum of shards";
constexpr unsigned kThreads = 512;
/// A word in the host's memory that devices read.
class OverWord {
 public:
  explicit OverWord(runtime::Device& device)
      : device_(device), memory_(device.allocate_pinned(kBytes)) {
    std::atomic_ref(*word()).store(0);
  }
  ~OverWord() { device_.release_pinned(memory_, kBytes); }
  OverWord(const OverWord&) = delete;
  OverWord& operator=(const OverWord&) = delete;
  unsigned* word() const { return reinterpret_cast<unsigned*>(memory_); }
  void set() const noexcept { std::atomic_ref(*word()).store(1); }

 private:
  static constexpr std::size_t kBytes = 64;
  runtime::Device& device_;
  std::byte* memory_;
};

}  // namespace

struct PeerExchange::State {
  State(Group& group, std::int64_t all_shards, runtime::OpenDevice& device,
        runtime::StreamId stream, const PeerOptions& wanted)
      : control(group),
        shards(all_shards),
        work(device, stream),
        options(wanted),
        ranges(deal_shards(all_shards, group.size())) {}

  /// Makes what a rank needs by itself; what is missing, if something is.
  std::string start() {
    runtime::OpenDevice& device = work.device();
    try {
      kernels = device.kernels();
      add_own = std::make_shared<AddNodes>(kernels);
      kernel = kernels->kernel(
          {"comm_sum_over_peers", nccl_kernel_source("sum_over_peers.cuh"), {}}, "sum_over_peers");
      over_word = std::make_unique<OverWord>(device.device());
      return "";
    } catch (const Error& error) {
      return error.what();
    } catch (const runtime::NoMemory&) {
      return "there is no pinned memory";
    }
  }

  int rank() const { return control.rank(); }
  const PeerPlan& plan_for(std::int64_t words, std::int64_t present);

  void throw_if_over() {
    const MutexLock lock(mutex);
    if (over) throw CommError(ended_by);
  }
  void end(std::string_view reason) noexcept {
    const MutexLock lock(mutex);
    if (over) return;
    over = true;
    ended_by = reason;
    if (over_word) over_word->set();
  }
  /// Whether no rank is lost; if one is, this rank's sums end.
  bool goes_on() noexcept {
    try {
      control.poll();
      return true;
    } catch (const std::exception& error) {
      end(error.what());
      return false;
    }
  }
  void look() {
    goes_on();
    throw_if_over();
  }

  /// After the last kernel of this rank: returns when all ranks have let go of its memory.
  void leave() {
    lookout.reset();
    control.barrier();
    memory->leave_others();
    control.barrier();
    finished = true;
  }

  Group& control;
  const std::int64_t shards;
  SumStream work;
  const PeerOptions options;
  const std::vector<ShardRange> ranges;
  std::shared_ptr<runtime::KernelLoader> kernels;
  std::shared_ptr<const AddNodes> add_own;
  runtime::GpuKernel kernel;
  std::unique_ptr<OverWord> over_word;
  std::optional<PeerMemory> memory;
  std::vector<std::byte*> memory_of_ranks;
  bool finished = false;
  std::unique_ptr<Lookout> lookout;
  /// Plans by words, for the number of shards that was present last.
  std::map<std::int64_t, PeerPlan> plans;
  std::int64_t last_present = 0;

  Mutex mutex;
  bool over SEGFUSE_GUARDED_BY(mutex) = false;
  std::string ended_by SEGFUSE_GUARDED_BY(mutex);  ///< the first reason
};

const PeerPlan& PeerExchange::State::plan_for(std::int64_t words, std::int64_t present) {
  if (present != last_present) plans.clear();
  last_present = present;
  const auto known = plans.find(words);
  return known != plans.end()
             ? known->second
             : plans.emplace(words, make_peer_plan(ranges, shards, present, words, options))
                   .first->second;
}

std::unique_ptr<PeerExchange> PeerExchange::open(Group& control, std::int64_t shards,
                                                 runtime::OpenDevice& device,
                                                 runtime::StreamId stream, std::string& reason,
                                                 const PeerOptions& options) {
  if (control.size() > gpu::kMaxPeers) {
    reason = fmt::format("there are {} ranks, and {} can be", control.size(), gpu::kMaxPeers);
    return nullptr;
  }
  auto state = std::make_shared<State>(control, shards, device, stream, options);
  const auto ranks = static_cast<std::size_t>(control.size());
  state->memory = PeerMemory::open(control, device.device(), options.memory_bytes(ranks), reason);
  if (!state->memory) return nullptr;
  for (const auto& memory : state->memory->of_ranks())
    state->memory_of_ranks.push_back(memory.get());
  reason = first_reason(control, state->start());
  if (!reason.empty()) {
    state->leave();
    return nullptr;
  }
  state->lookout = std::make_unique<Lookout>([at = state.get()] { return at->goes_on(); });
  std::unique_ptr<PeerExchange> made(new PeerExchange(std::move(state)));
  reason = first_reason(control, trial_sums(control, shards, device, stream, *made));
  if (reason.empty()) return made;
  made->abort(reason);
  device.timeline().synchronize(stream);
  made->state_->leave();
  return nullptr;
}

PeerExchange::PeerExchange(std::shared_ptr<State> state) : state_(std::move(state)) {}

PeerExchange::~PeerExchange() {
  abort("it left without finishing");
  state_->lookout.reset();
  try {
    state_->work.device().timeline().synchronize(state_->work.id());
  } catch (const std::exception&) {
    // Whatever failed is over.
  }
  if (!state_->finished) state_->memory->keep_own();
}

void PeerExchange::sum(std::span<const runtime::Buffer> nodes, std::int64_t present,
                       const runtime::Buffer& sum, const SumBegin& begin) {
  State& s = *state_;
  s.throw_if_over();
  const auto words = static_cast<std::int64_t>(sum.bytes() / sizeof(float));
  const PeerPlan& plan = s.plan_for(words, present);
  SumStream::check(s.rank(), nodes,
                   static_cast<std::size_t>(plan.nodes[static_cast<std::size_t>(s.rank())]), sum,
                   begin);
  if (words == 0) return;
  std::vector<const float*> at;
  std::vector<runtime::Use> uses;
  for (const runtime::Buffer& node : nodes) {
    at.push_back(reinterpret_cast<const float*>(node.address()));
    uses.push_back(reads(node));
  }
  const gpu::PeerArguments a =
      peer_arguments(plan, s.options, s.rank(), s.memory_of_ranks, at,
                     reinterpret_cast<float*>(sum.address()), s.over_word->word());
  uses.push_back(writes(sum));
  s.work.add_own(s.add_own, begin, words);
  s.work.enqueue(
      {kSum,
       [state = state_, a, blocks = static_cast<unsigned>(plan.blocks)](StreamHandle on) {
         state->kernels->launch(on, state->kernel, {{blocks}, {kThreads}}, &a, sizeof a);
       }},
      uses, begin);
}

void PeerExchange::wait() {
  state_->work.wait([&] { state_->look(); });
}

void PeerExchange::finish() {
  wait();
  state_->leave();
  abort("the exchange has finished");
}

void PeerExchange::abort(std::string_view reason) noexcept { state_->end(reason); }

ShardRange PeerExchange::own_shards() const {
  return state_->ranges[static_cast<std::size_t>(state_->rank())];
}

std::string PeerExchange::name() const { return "a kernel over peer memory"; }

PeerPlan PeerExchange::plan(std::int64_t words, std::int64_t present) const {
  return make_peer_plan(state_->ranges, state_->shards, present, words, state_->options);
}

}  // namespace segfuse::comm
