#include "comm/tcp/links.h"

#include <fmt/core.h>
#include <poll.h>

#include <string>

#include "comm/meet/roster.h"
#include "comm/meet/wire/visit.h"

namespace segfuse::comm {
namespace {

using namespace meet;

constexpr std::int64_t kOtherDescriptors = 512;  // of this process

class Links {
 public:
  explicit Links(Meeting& meeting)
      : meeting_(meeting),
        options_(meeting.options()),
        clock_(*options_.clock),
        limit_(clock_.now() + options_.timings.join),
        sockets_(static_cast<std::size_t>(meeting.count())) {
    allow_descriptors(meeting.count() * 2 + kOtherDescriptors);
  }

  /// Each rank visits those before it, then waits for those behind it: so nobody waits for one who
  /// waits for it.
  std::vector<Descriptor> make() {
    const Descriptor listening = listen_at(options_.host, 0);
    const std::vector<std::string> places =
        meeting_.all_gather(place_of_own(port_of(listening.get())));
    for (std::int64_t rank = 0; rank < meeting_.rank(); ++rank)
      visit_rank(rank, places[static_cast<std::size_t>(rank)]);
    for (std::int64_t missing = meeting_.count() - 1 - meeting_.rank(); missing > 0;)
      missing -= take_one(listening.get()) ? 1 : 0;
    meeting_.all_gather("");  // nobody speaks before all listen
    return std::move(sockets_);
  }

 private:
  /// "PORT HOST", where others reach this rank. Where rank 0 is on this machine, that is its name.
  std::string place_of_own(int port) const {
    const std::string own =
        meeting_.rank() == 0 ? "" : own_address_for(options_.host, options_.port);
    return fmt::format("{} {}", port, own.empty() ? options_.host : own);
  }

  void visit_rank(std::int64_t rank, const std::string& place) {
    const std::size_t space = place.find(' ');
    const Visitor visitor{Role::kRank, static_cast<std::uint32_t>(meeting_.rank()),
                          static_cast<std::uint32_t>(meeting_.count())};
    std::string why = "its address is not known";
    for (const Address& address :
         resolve(place.substr(space + 1), std::stoi(place.substr(0, space)))) {
      Visit met = visit(address, options_.key, visitor, limit_, clock_, [this] { ask(); });
      why = met.why;
      if (!met.connection) continue;
      sockets_[static_cast<std::size_t>(rank)] = std::move(*met.connection).take();
      return;
    }
    throw CommError(fmt::format("rank {} cannot reach rank {} at {}, port {}: {}", meeting_.rank(),
                                rank, place.substr(space + 1), place.substr(0, space), why));
  }

  /// Whether a rank was let in.
  bool take_one(int listening) {
    if (!wait_for(listening, POLLIN, limit_, clock_, [this] { ask(); }))
      throw CommError(fmt::format("rank {} waits for {} to connect, and has done so for {}",
                                  meeting_.rank(), missing(), text_of(options_.timings.join)));
    Descriptor socket = accept_one(listening);
    if (socket.get() < 0) return false;
    const auto judge = [this](const Visitor& visitor) {
      const std::int64_t rank = visitor.rank;
      if (visitor.role != Role::kRank || visitor.count != meeting_.count() ||
          rank <= meeting_.rank() || rank >= meeting_.count())
        return Verdict::kWrongCount;
      return at(rank).get() >= 0 ? Verdict::kTaken : Verdict::kWelcome;
    };
    Guest guest =
        admit(std::move(socket), options_.key, judge,
              std::min(limit_, clock_.now() + options_.timings.slow), clock_, [this] { ask(); });
    if (!guest.connection) return false;
    at(guest.visitor.rank) = std::move(*guest.connection).take();
    return true;
  }

  Descriptor& at(std::int64_t rank) { return sockets_[static_cast<std::size_t>(rank)]; }

  std::string missing() {
    std::vector<std::int64_t> ranks;
    for (std::int64_t rank = meeting_.rank() + 1; rank < meeting_.count(); ++rank)
      if (at(rank).get() < 0) ranks.push_back(rank);
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
  const Time limit_;
  std::vector<Descriptor> sockets_;
};

}  // namespace

std::vector<Descriptor> link_ranks(meet::Meeting& meeting) { return Links(meeting).make(); }

}  // namespace segfuse::comm
