#include "learn/train/loop/watch.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <vector>

#include "comm/group.h"
#include "comm/meet/job.h"
#include "comm/meet/meeting.h"
#include "comm/meet/wire/socket.h"
#include "segfuse/version.h"

namespace segfuse::learn {

namespace meet = comm::meet;

void set_limits(meet::MeetingOptions& options, double timeout) {
  options.timings.stuck =
      timeout > 0 ? meet::duration_of(timeout) : meet::Duration(std::chrono::hours(1 << 20));
  options.values["version of segfuse"] = version();
}

std::shared_ptr<meet::Meeting> meet_over(comm::Group& group, double timeout) {
  meet::MeetingOptions options;
  options.rank = group.rank();
  options.count = group.size();
  const std::vector<std::string> hosts = group.gather(meet::own_host());
  const bool one_machine = std::ranges::all_of(hosts, [&](const auto& h) { return h == hosts[0]; });
  options.host = one_machine ? "127.0.0.1" : hosts[0];
  // The MPI is trusted with the key: a process that reads its messages reads the gradients as well.
  std::string way;
  if (group.rank() == 0) {
    options.listening = meet::listen_at(options.host, 0);
    way = fmt::format("{} {}", meet::port_of(options.listening.get()), meet::new_secret());
  }
  way = group.gather(way)[0];
  const std::size_t space = way.find(' ');
  options.port = std::stoi(way.substr(0, space));
  options.key = meet::key_of(way.substr(space + 1));
  set_limits(options, timeout);
  options.failed = [&group](const meet::Failure& failure) {
    if (failure.said == 0) group.abort(failure.sentence);
  };
  return std::make_shared<meet::Meeting>(std::move(options));
}

RankWatch::RankWatch(std::shared_ptr<meet::Meeting> meeting) : meeting_(std::move(meeting)) {}

RankWatch::~RankWatch() = default;

void RankWatch::report(meet::Phase phase, std::int64_t step, std::int64_t shard) {
  meet::State state;
  state.phase = phase;
  state.step = step;
  state.shard = shard;
  meeting_->report(std::move(state));
}

void RankWatch::publish(const std::filesystem::path& folder) { meeting_->publish(folder); }
void RankWatch::leave() { meeting_->leave(); }

void RankWatch::end_all(std::string_view why, ExitCode code, bool own_fault) noexcept {
  if (own_fault) meeting_->note_own_fault();
  meeting_->fail(why, code);
}

std::optional<ExitCode> RankWatch::code_of_other() const {
  const auto failure = meeting_->failure();
  if (!failure || failure->rank == meeting_->rank()) return {};
  if (failure->said != 0) return static_cast<ExitCode>(failure->said);
  for (const std::int64_t rank : meeting_->ranks()) {
    if (rank == failure->rank) continue;
    if (rank == meeting_->rank()) return {};
    break;
  }
  return ExitCode::kDevice;
}

}  // namespace segfuse::learn
