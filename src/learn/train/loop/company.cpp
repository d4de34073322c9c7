#include "learn/train/loop/company.h"

#include <fmt/format.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <exception>
#include <memory>
#include <new>
#include <optional>

#include "base/console/log.h"
#include "base/os/ranks.h"
#include "comm/group.h"
#include "comm/meet/job.h"
#include "comm/meet/meeting.h"
#include "comm/meet/wire/socket.h"
#include "comm/mpi/choice.h"
#include "comm/mpi/mpi_group.h"
#include "comm/tcp/tcp_group.h"
#include "engine/device/gpus.h"
#include "learn/train/loop/watch.h"
#include "segfuse/error.h"

namespace segfuse::learn {

std::string failure_text(const Error& error) {
  return fmt::format("{} {}", static_cast<int>(error.exit_code()), error.what());
}

void throw_failure(const std::string& failure, const std::string& before) {
  const std::size_t space = failure.find(' ');
  const std::string text = before + failure.substr(space + 1);
  switch (static_cast<ExitCode>(std::stoi(failure.substr(0, space)))) {
    case ExitCode::kUsage: throw UsageError(text);
    case ExitCode::kData: throw DataError(text);
    case ExitCode::kInternal: throw InternalError(text);
    case ExitCode::kDevice: throw DeviceError(text);
    default: throw CommError(text);
  }
}

void together(comm::Group* group, const std::function<void()>& work) {
  if (group == nullptr) return work();
  comm::together(*group, work);
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
  together(group, [&] {
    const std::vector<std::string> all = group->gather(said);
    const auto failed =
        std::ranges::find_if(all, [](const std::string& text) { return !text.empty(); });
    if (failed == all.end()) return;
    if (group->rank() > 0) group->barrier();
    if (own) std::rethrow_exception(own);
    throw_failure(*failed, fmt::format("rank {}: ", failed - all.begin()));
  });
}

int rank_of(const comm::Group* group) { return group == nullptr ? 0 : group->rank(); }

namespace {

/// Of a rank whose work cannot be ended otherwise when another one has failed.
constexpr std::chrono::seconds kLastResort{60};

/// Whether the ranks are those of an MPI. One that started a launcher of ranks on each machine
/// knows nothing of them.
bool uses_mpi(const std::string& comm, const Ranks& ranks) {
  const comm::MpiLauncher mpi = comm::mpi_launcher();
  const bool started = !mpi.name.empty() && (mpi.ranks == 0 || mpi.ranks == ranks.count);
  if (comm == "mpi" && !started)
    throw UsageError(
        fmt::format("--comm mpi: {} started these {} ranks ({}={}), and no launcher of an MPI did; "
                    "start them with mpirun or srun --mpi=pmix, or leave --comm out",
                    ranks.launcher, ranks.count, ranks.variable, ranks.count));
  return started && comm != "tcp";
}

/// Refuses a least number of ranks where it can mean nothing.
void check_min_ranks(const RankSettings& settings, const std::optional<Ranks>& ranks) {
  if (settings.min_ranks == 0) return;
  const std::string start = fmt::format("--min-ranks {}: ", settings.min_ranks);
  if (!ranks)
    throw UsageError(start +
                     "this is one process; start several, as with --ranks, or leave it out");
  if (settings.min_ranks < 0 || settings.min_ranks > ranks->count)
    throw UsageError(
        fmt::format("{}there are {} ranks; expected 1 to {}", start, ranks->count, ranks->count));
  if (uses_mpi(settings.comm, *ranks))
    throw UsageError(
        start +
        "MPI ends all ranks when one is lost; start them with --ranks or by hand, or leave it out");
  if (settings.comm == "nccl" || settings.comm == "peer")
    throw UsageError(fmt::format("{}ranks can continue only over TCP; leave --comm {} out", start,
                                 settings.comm));
}

/// What ended this rank, for the others.
void tell_end(RankWatch& watch) {
  try {
    throw;
  } catch (const CommError& error) {
    watch.end_all(error.what(), error.exit_code(), false);
  } catch (const Error& error) {
    watch.end_all(error.what(), error.exit_code(), true);
  } catch (const std::bad_alloc&) {
    watch.end_all("out of memory", ExitCode::kDevice, true);
  } catch (const std::exception& error) {
    watch.end_all(error.what(), ExitCode::kInternal, true);
  }
}

/// As the launcher says it, else by the names of machines, which one that came later does not know.
std::optional<std::int64_t> local_rank_of(comm::Group& group, const Ranks& ranks) {
  if (group.is_outside()) return ranks.local_rank;
  std::int64_t before = 0;
  comm::together(group, [&] {
    const std::vector<std::string> hosts = group.gather(comm::meet::own_host());
    const auto own = hosts.begin() + group.rank();
    before = std::count(hosts.begin(), own, *own);
  });
  return ranks.local_rank.value_or(before);
}

void run_as(comm::Group& group, const Ranks& ranks, RankWatch& watch,
            const std::function<void(const RankContext&)>& work) {
  if (group.rank() == 0)
    log(LogLevel::kInfo, "{} ranks, on {}", group.size(), group.engine());
  else  // what all of them would say is said once
    set_log_level(std::max(log_level(), LogLevel::kError));
  try {
    work({&group, &watch, local_rank_of(group, ranks)});
    comm::together(group, [&] { watch.leave(); });
  } catch (...) {
    tell_end(watch);
    throw;
  }
}

void run_over_tcp(const Ranks& ranks, const RankSettings& settings,
                  const std::function<void(const RankContext&)>& work) {
  comm::meet::MeetingOptions options = comm::meet::options_of(ranks);
  set_limits(options, settings.timeout);
  options.last_resort = kLastResort;
  options.min_ranks = settings.min_ranks;
  options.values["--min-ranks"] = std::to_string(settings.min_ranks);
  options.values["--compare"] = settings.compare ? "given" : "not given";
  const auto meeting = std::make_shared<comm::meet::Meeting>(std::move(options));
  RankWatch watch(meeting);
  try {
    std::unique_ptr<comm::Group> group;
    try {
      if (meeting->is_late() && settings.compare)
        throw UsageError(
            "this process cannot join the ranks, because they train one model after the other "
            "(--compare); the others go on");
      group = comm::open_tcp_group(meeting);
    } catch (...) {
      tell_end(watch);
      throw;
    }
    comm::run_rank(*group, [&] { run_as(*group, ranks, watch, work); });
  } catch (const EndedByRank&) {
    throw;
  } catch (const Error& error) {
    if (const auto code = watch.code_of_other()) throw EndedByRank(*code, error.what());
    throw;
  }
}

/// Where a launcher of ours started this process alone, it hears what it does; when the launcher is
/// killed, this process ends as by a scheduler's wish, with a checkpoint.
void run_alone(const std::function<void(const RankContext&)>& work) {
  std::optional<comm::meet::MeetingOptions> options = comm::meet::options_of_only_child();
  if (!options) return work({});
  set_limits(*options, 0);
  options->failed = [](const comm::meet::Failure& failure) {
    if (failure.rank < 0) ::kill(::getpid(), SIGTERM);
  };
  RankWatch watch(std::make_shared<comm::meet::Meeting>(std::move(*options)));
  try {
    work({nullptr, &watch});
    watch.leave();
  } catch (...) {
    tell_end(watch);
    throw;
  }
}

}  // namespace

Context context_of(const RankContext& rank, const Context& context) {
  if (rank.group == nullptr || context.options().get(options::kDevice) != "cuda") return context;
  const int count = engine::gpu_count();
  // A scheduler may show each process its own one. Without any the device says what is missing.
  if (count <= 1) return context;
  if (!rank.local_rank)
    throw UsageError(fmt::format(
        "this process joins ranks that are at work, and its machine, {}, has {}; set LOCAL_RANK to "
        "the number of the one that it shall use, or name it with --device cuda:N",
        comm::meet::own_host(), engine::gpus_text(count)));
  if (*rank.local_rank >= count)
    throw UsageError(fmt::format(
        "this rank is number {} (from 0 on) of its machine, {}, which has {}; start one rank for "
        "each GPU there, or name one GPU for all ranks with --device cuda:N",
        *rank.local_rank, comm::meet::own_host(), engine::gpus_text(count)));
  return context.with(options::kDevice, fmt::format("cuda:{}", *rank.local_rank));
}

void run_on_ranks(const RankSettings& settings,
                  const std::function<void(const RankContext&)>& work) {
  const std::optional<Ranks> ranks = ranks_of_environment();
  check_min_ranks(settings, ranks);
  if (!ranks) return run_alone(work);
  if (!uses_mpi(settings.comm, *ranks)) return run_over_tcp(*ranks, settings, work);
  const std::unique_ptr<comm::Group> group = comm::open_mpi_group();
  comm::run_rank(*group, [&] {
    RankWatch watch(meet_over(*group, settings.timeout));
    run_as(*group, *ranks, watch, work);
  });
}

}  // namespace segfuse::learn
