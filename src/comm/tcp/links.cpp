#include "comm/tcp/links.h"

#include <fmt/core.h>
#include <poll.h>

#include <algorithm>
#include <string>

#include "comm/meet/roster.h"
#include "comm/meet/wire/visit.h"

namespace segfuse::comm {
namespace {

using namespace meet;

constexpr std::int64_t kOtherDescriptors = 512;  // of this process

class Linking {
 public:
  explicit Linking(Meeting& meeting)
      : meeting_(meeting),
        options_(meeting.options()),
        clock_(*options_.clock),
        ranks_(meeting.ranks()),
        own_(std::ranges::find(ranks_, meeting.rank()) - ranks_.begin()),
        sockets_(ranks_.size()) {
    allow_descriptors(meeting.count() * 2 + kOtherDescriptors);
  }

  /// Each rank visits those before it, then waits for those behind it: so nobody waits for one who
  /// waits for it.
  Links make(const std::string& word) {
    const Descriptor listening = listen_at(options_.host, 0);
    const std::vector<std::string> places =
        meeting_.all_gather(place_of_own(port_of(listening.get())));
    // All are here now; before that each may have worked for as long as it liked.
    limit_ = clock_.now() + options_.timings.join;
    for (std::int64_t place = 0; place < own_; ++place)
      visit_rank(place, places[static_cast<std::size_t>(place)]);
    for (std::int64_t missing = std::ssize(ranks_) - 1 - own_; missing > 0;)
      missing -= take_one(listening.get()) ? 1 : 0;
    std::vector<std::string> words = meeting_.all_gather(word);  // nobody speaks before all listen
    return {std::move(sockets_), std::move(words)};
  }

 private:
  /// "PORT HOST", where others reach this rank. Where rank 0 is on this machine, that is its name.
  std::string place_of_own(int port) const {
    const std::string own =
        meeting_.rank() == 0 ? "" : own_address_for(options_.host, options_.port);
    return fmt::format("{} {}", port, own.empty() ? options_.host : own);
  }

  void visit_rank(std::int64_t place, const std::string& where) {
    const std::size_t space = where.find(' ');
    const Visitor visitor{Role::kRank, static_cast<std::uint32_t>(meeting_.rank()),
                          static_cast<std::uint32_t>(meeting_.count()),
                          static_cast<std::uint32_t>(meeting_.generation())};
    std::string why = "its address is not known";
    std::vector<Address> addresses;
    try {
      addresses = resolve(where.substr(space + 1), std::stoi(where.substr(0, space)));
    } catch (const CommError& error) {
      why = error.what();
    }
    for (const Address& address : addresses) {
      Visit met = visit(address, options_.key, visitor, limit_, clock_, [this] { ask(); });
      why = met.why;
      if (!met.connection) continue;
      at(place) = std::move(*met.connection).take();
      return;
    }
    // It may have been lost just now, which the meeting hears a little later.
    const std::int64_t rank = ranks_[static_cast<std::size_t>(place)];
    meeting_.throw_cause(fmt::format("it cannot reach rank {} at {}, port {}: {}", rank,
                                     where.substr(space + 1), where.substr(0, space), why),
                         rank);
  }

  /// Whether a rank was let in.
  bool take_one(int listening) {
    if (!wait_for(listening, POLLIN, limit_, clock_, [this] { ask(); }))
      throw CommError(fmt::format("rank {} waits for {} to connect, and has done so for {}",
                                  meeting_.rank(), missing(), text_of(options_.timings.join)));
    Descriptor socket = accept_one(listening);
    if (socket.get() < 0) return false;
    const auto judge = [this](const Visitor& visitor) {
      const std::int64_t place = place_of(visitor.rank);
      if (visitor.role != Role::kRank || visitor.count != meeting_.count() ||
          visitor.generation != meeting_.generation() || place <= own_)
        return Verdict::kWrongCount;
      return at(place).get() >= 0 ? Verdict::kTaken : Verdict::kWelcome;
    };
    Guest guest =
        admit(std::move(socket), options_.key, judge,
              std::min(limit_, clock_.now() + options_.timings.slow), clock_, [this] { ask(); });
    if (!guest.connection) return false;
    at(place_of(guest.visitor.rank)) = std::move(*guest.connection).take();
    return true;
  }

  Descriptor& at(std::int64_t place) { return sockets_[static_cast<std::size_t>(place)]; }

  /// -1: it is none of these ranks.
  std::int64_t place_of(std::int64_t rank) const {
    const auto found = std::ranges::find(ranks_, rank);
    return found == ranks_.end() ? -1 : found - ranks_.begin();
  }

  std::string missing() {
    std::vector<std::int64_t> ranks;
    for (std::int64_t place = own_ + 1; place < std::ssize(ranks_); ++place)
      if (at(place).get() < 0) ranks.push_back(ranks_[static_cast<std::size_t>(place)]);
    return list_of(ranks);
  }

  void ask() const {
    meeting_.check();
    if (options_.stop && options_.stop())
      throw Interrupted("interrupted while the other ranks were awaited");
  }

  Meeting& meeting_;
  const MeetingOptions& options_;
  const Clock& clock_;
  Time limit_{};
  const std::vector<std::int64_t> ranks_;
  const std::int64_t own_;  ///< place among them
  std::vector<Descriptor> sockets_;
};

}  // namespace

Links link_ranks(meet::Meeting& meeting, const std::string& word) {
  return Linking(meeting).make(word);
}

}  // namespace segfuse::comm
