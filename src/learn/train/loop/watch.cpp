#include "learn/train/loop/watch.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <string>
#include <vector>

#include "comm/group.h"
#include "comm/meet/job.h"
#include "comm/meet/meeting.h"
#include "comm/meet/wire/socket.h"

namespace segfuse::learn {

namespace meet = comm::meet;

namespace {

constexpr std::string_view kSaid = "it ends all ranks, and has said why";

}  // namespace

struct RankWatch::Meeting {
  explicit Meeting(meet::MeetingOptions options)
      : folder(options.folder), meeting(std::move(options)) {}
  std::filesystem::path folder;  ///< where this rank says how to ask it; empty: nowhere
  meet::Meeting meeting;
};

RankWatch::RankWatch(comm::Group& group, const std::filesystem::path& folder, double timeout) {
  meet::MeetingOptions options;
  options.rank = group.rank();
  options.count = group.size();
  const std::vector<std::string> hosts = group.gather(meet::own_host());
  const bool one_machine = std::ranges::all_of(hosts, [&](const auto& h) { return h == hosts[0]; });
  options.host = one_machine ? "127.0.0.1" : hosts[0];
  // The MPI is trusted with the key: whoever reads its messages reads the gradients as well.
  std::string way;
  if (group.rank() == 0) {
    options.listening = meet::listen_at(options.host, 0);
    way = fmt::format("{} {}", meet::port_of(options.listening.get()), meet::new_secret());
  }
  way = group.gather(way)[0];
  const std::size_t space = way.find(' ');
  options.port = std::stoi(way.substr(0, space));
  options.key = meet::key_of(way.substr(space + 1));
  if (group.rank() == 0) options.folder = folder;
  options.timings.stuck =
      timeout > 0 ? meet::duration_of(timeout) : meet::Duration(std::chrono::hours(1 << 20));
  options.failed = [&group, folder = options.folder](const meet::Failure& failure) {
    if (!folder.empty()) meet::remove_place(folder);
    if (!failure.sentence.ends_with(kSaid)) group.abort(failure.sentence);
  };
  meeting_ = std::make_unique<Meeting>(std::move(options));
}

RankWatch::~RankWatch() = default;

void RankWatch::report(meet::Phase phase, std::int64_t step, std::int64_t shard) {
  meet::State state;
  state.phase = phase;
  state.step = step;
  state.shard = shard;
  meeting_->meeting.report(std::move(state));
}

void RankWatch::leave() { meeting_->meeting.leave(); }
void RankWatch::end_all() noexcept {
  if (!meeting_->folder.empty()) meet::remove_place(meeting_->folder);
  meeting_->meeting.fail(kSaid);
}

}  // namespace segfuse::learn
