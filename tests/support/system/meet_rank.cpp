// A rank of tests: meets the others as its environment says, then works in steps. Arguments say
// what goes wrong where: kill=2@5 ends rank 2 in step 5 by SIGKILL.
//
//   steps=N              how many (endless)
//   kill=R@S stop=R@S    SIGKILL, SIGSTOP
//   exit=R@S:CODE        ends without a word
//   fail=R@S             says that it cannot go on, and ends with 3
//   fault=R@S            says that its device is broken, and ends with 4
//   comm=R@S             says that a cable is, and ends with 4
//   hang=R@S             reads data forever; when all others wait for it, an hour passes by the
//                        clock of rank 0, whatever the load of the machine
//   value=R:TEXT         rank R has another value than the others
//   launch=N             is no rank: starts N, with the other arguments
//   min=M                while so many ranks are left they go on; a step is a sum over all, and at
//                        the end rank 0 says what came out. kill=2@3,5@4 names several then, and
//                        means the first process of each
//   whole=S              from step S on rank 0 waits until somebody joins, unless all are there
//   ask=R@S              SIGTERM to rank R alone: all end after this step, with 130
//   last=0               rank 0 ends when the processes of all others have gone
//   first=S              in step S rank 0 waits until somebody joins, unless somebody did before
//   door=kill stop fail  what a process does before it joins
//   inside=kill stop fail  what it does when it has joined, before its first step

#include <fmt/core.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/os/interrupt.h"
#include "base/os/ranks.h"
#include "comm/launch/launch.h"
#include "comm/meet/job.h"
#include "comm/meet/meeting.h"
#include "comm/tcp/tcp_group.h"
#include "comm/tree_exchange.h"
#include "segfuse/error.h"

namespace {

using namespace segfuse;
using comm::meet::Phase;

std::map<std::string, std::string> arguments;

/// What is behind "R@S" for this rank and step; null: it is not meant.
const char* meant(const std::string& name, std::int64_t rank, std::int64_t step) {
  const auto found = arguments.find(name);
  if (found == arguments.end()) return nullptr;
  const std::string start = fmt::format("{}@{}", rank, step);
  const std::string& text = found->second;
  for (std::size_t at = 0; at != text.npos; at = text.find(',', at)) {
    at += at > 0 ? 1 : 0;
    if (!std::string_view(text).substr(at).starts_with(start)) continue;
    const char* const rest = text.c_str() + at + start.size();
    if (*rest == '\0' || *rest == ':' || *rest == ',') return rest;
  }
  return nullptr;
}

/// The system's, but for the time that it is told to jump over.
class JumpingClock final : public comm::meet::Clock {
 public:
  comm::meet::Time now() const override { return clock_.now() + comm::meet::Duration(passed_); }
  std::chrono::milliseconds patience(comm::meet::Time until) const override {
    return clock_.patience(until - comm::meet::Duration(passed_));
  }
  void jump(comm::meet::Duration by) { passed_ += by.count(); }

 private:
  comm::meet::SteadyClock clock_;
  std::atomic<comm::meet::Duration::rep> passed_ = 0;
};
JumpingClock the_clock;

/// Where all but one wait for that one in this step: an hour passes.
void pass_an_hour(const comm::meet::Meeting& meeting, std::int64_t step) {
  const auto& options = meeting.options();
  for (;;) {
    const comm::meet::Rows rows =
        comm::meet::look({options.host, meeting.port(), options.key, meeting.count(), 1},
                         comm::meet::SteadyClock(), {});
    const auto waits = [&](const comm::meet::Row& row) {
      return row.state.step == step && (row.state.phase == Phase::kExchange || row.awaited);
    };
    if (std::ranges::all_of(rows.rows, waits) &&
        std::ranges::count(rows.rows, true, &comm::meet::Row::awaited) == 1)
      return the_clock.jump(std::chrono::hours(1));
    ::usleep(10'000);
  }
}

int work(comm::meet::Meeting& meeting, const InterruptScope& interrupt) {
  const std::int64_t rank = meeting.rank();
  const long steps = arguments.contains("steps") ? std::atol(arguments["steps"].c_str()) : -1;
  for (std::int64_t step = 1; steps < 0 || step <= steps; ++step) {
    meeting.report({.step = step, .phase = Phase::kReadingData, .doing = "recording 'x.flac'"});
    if (meant("hang", rank, step) != nullptr)
      for (;;) meeting.check(), ::usleep(1000);
    meeting.report({.step = step, .phase = Phase::kBackward});
    if (meant("kill", rank, step) != nullptr) ::raise(SIGKILL);
    if (meant("stop", rank, step) != nullptr) ::raise(SIGSTOP);
    if (const char* code = meant("exit", rank, step)) std::_Exit(std::atoi(code + 1));
    if (meant("fail", rank, step) != nullptr) {
      meeting.fail("there is no paper");
      return 3;
    }
    if (meant("fault", rank, step) != nullptr) meeting.note_own_fault();
    for (const char* name : {"fault", "comm"})
      if (meant(name, rank, step) != nullptr) {
        meeting.fail("it is broken", ExitCode::kDevice);
        return 4;
      }
    meeting.report({.step = step, .bucket = 0, .phase = Phase::kExchange});
    if (rank == 0 && arguments["hang"].ends_with(fmt::format("@{}", step)))
      pass_an_hour(meeting, step);
    bool stop = false;
    for (const std::string& text : meeting.all_gather(interrupt.requested() ? "stop" : "go"))
      stop = stop || text == "stop";
    fmt::print("step {}\n", step);
    std::fflush(stdout);
    if (stop) return 130;
  }
  return 0;
}

/// What goes wrong in this step; not with one that came in place of another, or it would not end.
void perhaps_go_wrong(const comm::meet::Meeting& meeting, std::int64_t step) {
  if (meeting.is_late()) return;
  const std::int64_t rank = meeting.rank();
  if (meant("kill", rank, step) != nullptr) ::raise(SIGKILL);
  if (meant("stop", rank, step) != nullptr) ::raise(SIGSTOP);
  if (meant("fail", rank, step) != nullptr) throw DataError("there is no paper");
  if (meant("ask", rank, step) != nullptr) ::raise(SIGTERM);
  if (meant("hang", rank, step) != nullptr)
    for (;;) meeting.check(), ::usleep(1000);
}

/// The sum of a step over eight shards, which depends on all steps before.
double sum_of_step(comm::Group& group, std::int64_t step, double before) {
  constexpr std::int64_t kShards = 8;
  constexpr std::size_t kWords = 9000;  // three blocks, the last one short
  comm::TreeExchange exchange(group, kShards);
  const comm::ShardRange own = exchange.own_shards();
  comm::TreeSum tree(kShards, kShards);
  std::vector<std::vector<float>> slots;
  for (std::int64_t shard = own.begin; shard < own.end; ++shard) {
    slots.resize(std::max(slots.size(), tree.next_slot() + 1));
    std::vector<float>& values = slots[tree.next_slot()];
    values.resize(kWords);
    for (std::size_t i = 0; i < kWords; ++i)
      values[i] = static_cast<float>(before + 1.0 / static_cast<double>(shard * 7 + step + 1) +
                                     1e-3 * static_cast<double>(i % 97));
    for (const comm::TreeSum::Addition a : tree.push({0, shard}))
      for (std::size_t i = 0; i < kWords; ++i) slots[a.to][i] += slots[a.from][i];
  }
  std::vector<std::span<const float>> nodes;
  for (const comm::TreeSum::Held& held : tree.held()) nodes.emplace_back(slots[held.slot]);
  std::vector<float> sum(kWords);
  exchange.sum(nodes, kShards, sum);
  double all = 0;
  for (const float value : sum) all += static_cast<double>(value);
  return all / 1e5;
}

void perhaps_end(const std::string& how) {
  if (how == "kill") ::raise(SIGKILL);
  if (how == "stop") {
    fmt::print("stops\n");
    std::fflush(stdout);
    ::raise(SIGSTOP);
  }
  if (how == "fail") throw DataError("there is no paper");
}

/// Where a rank is; who joins gets it.
struct Work {
  std::int64_t step = 1;
  double value = 0;
};

void take_in(comm::Group& group, Work& work) {
  const bool late = group.is_outside();
  if (late) perhaps_end(arguments["door"]);
  comm::together(group, [&] {
    group.take_in();
    if (group.newcomers().empty()) return;
    if (late) perhaps_end(arguments["inside"]);
    group.broadcast(std::as_writable_bytes(std::span(&work, 1)), 0);
  });
}

bool somebody_came = false;  // on rank 0

/// Rank 0 goes on when one comes, or when nobody can come any more.
void await_somebody(comm::Group& group, comm::meet::Meeting& meeting, std::int64_t step,
                    const InterruptScope& interrupt) {
  const auto is_from = [&](const char* name) {
    return arguments.contains(name) && step >= std::atol(arguments[name].c_str());
  };
  const auto waits = [&] {
    if (group.somebody_waits()) somebody_came = true;
    if (group.rank() > 0 || group.somebody_waits() || interrupt.requested()) return false;
    return (is_from("whole") && group.size() < meeting.count()) ||
           (is_from("first") && !somebody_came);
  };
  if (waits())
    meeting.report({.step = step, .phase = Phase::kExchange, .doing = "until somebody joins"});
  while (waits()) {
    group.poll();
    ::usleep(1000);
  }
}

/// Steps of ranks that go on without those that are lost, and with those that come.
int work_together(const std::shared_ptr<comm::meet::Meeting>& meeting,
                  const InterruptScope& interrupt) {
  bool stop = false;
  std::vector<std::string> pids;
  const std::unique_ptr<comm::Group> group = comm::open_tcp_group(meeting);
  comm::run_rank(*group, [&] {
    const long steps = std::atol(arguments["steps"].c_str());
    Work work;
    auto& [step, value] = work;
    if (group->is_outside()) take_in(*group, work);
    for (; step <= steps; ++step) {
      double next = 0;
      bool somebody = false;
      comm::together(*group, [&] {
        meeting->report({.step = step, .phase = Phase::kBackward});
        perhaps_go_wrong(*meeting, step);
        meeting->report({.step = step, .phase = Phase::kExchange});
        await_somebody(*group, *meeting, step, interrupt);
        somebody = !group->gather(group->somebody_waits() ? "waits" : "")[0].empty();
        const auto words = group->gather(interrupt.requested() ? "stop" : "");
        stop = std::ranges::count(words, "stop") > 0;
        std::string first = group->gather(std::to_string(step))[0];
        if (first != std::to_string(step)) throw InternalError("a rank is in step " + first);
        next = sum_of_step(*group, step, value);
        std::uint64_t bits = group->rank() == 0 ? std::bit_cast<std::uint64_t>(next) : 0;
        group->broadcast(std::as_writable_bytes(std::span(&bits, 1)), 0);
        if (bits != std::bit_cast<std::uint64_t>(next)) throw InternalError("the sums differ");
      });
      value = next;
      if (stop) break;
      if (!somebody || step == steps) continue;
      Work after{step + 1, value};
      take_in(*group, after);
    }
    if (arguments.contains("last"))
      comm::together(*group, [&] { pids = group->gather(std::to_string(::getpid())); });
    comm::together(*group, [&] { meeting->leave(); });
    if (meeting->rank() == 0) fmt::print("{:a} by {}\n", value, group->size());
  });
  const bool waits = meeting->rank() == 0;
  for (std::size_t rank = 1; waits && rank < pids.size(); ++rank)
    while (::kill(std::atoi(pids[rank].c_str()), 0) == 0) ::usleep(1000);
  return stop ? 130 : 0;
}

int be_rank() {
  const InterruptScope interrupt;
  const auto ranks = ranks_of_environment();
  if (!ranks) throw UsageError("there are no ranks");
  comm::meet::MeetingOptions options = comm::meet::options_of(*ranks);
  options.values = {{"version", "1"}, {"data", "abc"}};
  options.last_resort = std::chrono::seconds(10);
  options.clock = &the_clock;
  options.timings.stuck = std::chrono::minutes(30);
  const std::string& value = arguments["value"];
  if (value.starts_with(fmt::format("{}:", ranks->rank))) options.values["data"] = value.substr(2);
  if (arguments.contains("min")) {
    options.min_ranks = std::atol(arguments["min"].c_str());
    return work_together(std::make_shared<comm::meet::Meeting>(std::move(options)), interrupt);
  }
  comm::meet::Meeting meeting(std::move(options));
  const int code = work(meeting, interrupt);
  if (code != 3 && code != 4) meeting.leave();
  return code;
}

int be_launcher(int argc, char** argv) {
  comm::launch::LaunchRequest request;
  request.count = std::atol(arguments["launch"].c_str());
  request.min_ranks = std::atol(arguments["min"].c_str());
  for (int i = 0; i < argc; ++i)
    if (!std::string(argv[i]).starts_with("launch=")) request.arguments.emplace_back(argv[i]);
  const comm::launch::LaunchResult result = comm::launch::launch(request);
  if (!result.sentence.empty()) fmt::print(stderr, "{}\n", result.sentence);
  return result.exit_code;
}

}  // namespace

int main(int argc, char** argv) {
  for (int i = 1; i < argc; ++i) {
    const std::string text = argv[i];
    const std::size_t equal = text.find('=');
    arguments[text.substr(0, equal)] = equal == text.npos ? "" : text.substr(equal + 1);
  }
  try {
    return arguments.contains("launch") ? be_launcher(argc, argv) : be_rank();
  } catch (const Error& error) {
    fmt::print(stderr, "{}\n", error.what());
    return static_cast<int>(error.exit_code());
  }
}
