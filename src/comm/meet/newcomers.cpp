// Processes that come in place of ranks that were lost.

#include <fmt/core.h>

#include <algorithm>

#include "base/console/log.h"
#include "comm/meet/agreement.h"
#include "comm/meet/hub.h"
#include "segfuse/error.h"

namespace segfuse::comm::meet {

void Hub::hear_newcomer(Peer& peer, const Message& message, Time now) {
  peer.heard = now;
  if (failure_ || over_) return;  // it hears of that
  if (const auto* here = std::get_if<Here>(&message)) return meet_newcomer(peer, *here, now);
  if (!peer.said_here) throw DataError("a message of the meeting came before its time");
  if (std::holds_alternative<Beat>(message)) return;
  if (std::holds_alternative<Knock>(message)) {
    peer.knocked = true;
    somebody_waits_ = true;
    return;
  }
  if (const auto* trouble = std::get_if<Trouble>(&message))
    return refuse_newcomer(peer, {false, peer.rank, trouble->sentence, trouble->said}, now);
  throw DataError("a message of the meeting that newcomers do not send");
}

/// It has to be as the others are.
void Hub::meet_newcomer(Peer& peer, const Here& here, Time now) {
  if (peer.said_here) throw DataError("a rank came twice on one connection");
  peer.said_here = true;
  peer.here = here;
  Roster with_it = roster_;
  with_it.came(peer.rank, here, now);
  if (auto difference = difference_in(with_it))
    return refuse_newcomer(peer, std::move(*difference), now);
  peer.connection.send(encode(Agreed{roster_.here(0).host, roster_.here(0).pid, true}));
  for (const auto& [name, text] : notes_) peer.connection.send(encode(Note{name, text}));
}

/// It does not come, and hears why; the others go on as they did.
void Hub::refuse_newcomer(Peer& peer, Failure why, Time now) {
  log(LogLevel::kWarning, "{} does not join: {}",
      name_of_rank(peer.rank, peer.here.host, peer.here.pid), why.sentence);
  peer.connection.send(encode(Ended{std::move(why)}));
  peer.stage = Stage::kLook;
  peer.last_words = true;
  peer.since = now;
}

void Hub::lose_newcomer(Peer& peer, std::string_view why) {
  peer.stage = Stage::kGone;
  if (!peer.said_here) return turn_away(peer, Away::kOther);
  if (failure_ || over_) return;
  log(LogLevel::kWarning, "{} was lost before it could join: {}",
      name_of_rank(peer.rank, peer.here.host, peer.here.pid), why);
}

/// Until it is taken in nobody waits for a newcomer. From then on the others do, so it has to come
/// in time.
void Hub::watch_newcomers(Time now) {
  const Timings& timings = options_.timings;
  const bool linked = round_ >= 2;
  const Duration limit = linked ? timings.settle : timings.arrive();
  bool waits = false;
  for (const auto& peer : peers_) {
    if (peer->stage == Stage::kNewcomer && peer->said_here && now - peer->heard > timings.silence())
      lose_newcomer(*peer, fmt::format("{} heartbeats are missing", timings.missing));
    waits = waits || (peer->stage == Stage::kNewcomer && peer->knocked);
  }
  somebody_waits_ = waits;
  if (failure_ || over_) return;
  const Peer* late = nullptr;
  for (const auto& peer : peers_) {
    if (peer->stage != Stage::kRank || !peer->arriving) continue;
    peer->arriving = arrives(*peer);
    const bool said = texts_[static_cast<std::size_t>(peer->rank)].has_value();
    if (!peer->arriving || (said && !linked) || now - peer->since < limit) continue;
    // Those before it may wait for it (comm/tcp/links.cpp). A wrong guess costs another round.
    if (late == nullptr || peer->rank > late->rank) late = peer.get();
  }
  if (late == nullptr) return;
  lose(roster_.lost(late->rank, now,
                    fmt::format("it was to join and did not {} within {}",
                                linked ? "begin a step" : "come to the others", text_of(limit))),
       now);  // the next one has a new limit
}

/// It was taken in and has begun no step yet: the others can do without it.
bool Hub::arrives(const Peer& peer) const {
  return peer.stage == Stage::kRank && peer.arriving && roster_.state(peer.rank).step == 0;
}

/// No loss has explained the hint. Where one of the two ranks was just taken in, the others can do
/// without it: first the one that was not reached, since one that reaches nobody says so of rank 0,
/// which all visit first (comm/tcp/links.cpp).
void Hub::judge_hint(Time now) {
  for (const std::int64_t rank : {hint_about_, hint_->rank}) {
    const auto is_meant = [&](const auto& peer) { return peer->rank == rank && arrives(*peer); };
    if (std::ranges::none_of(peers_, is_meant)) continue;
    return lose(rank == hint_->rank ? *hint_ : roster_.lost(rank, now, hint_->sentence), now);
  }
  fail(*hint_);
}

/// Those that have knocked are ranks from now on. Where none is left nobody is new, and
/// rank 0 learns that.
void Hub::admit(std::int64_t generation, Time now) {
  if (generation != generation_ || failure_ || over_) return;
  for (const auto& peer : peers_) {
    if (peer->stage != Stage::kNewcomer || !peer->knocked) continue;
    peer->stage = Stage::kRank;
    peer->arriving = true;
    roster_.take_in(peer->rank, peer->here, now);
    log(LogLevel::kInfo, "{} joins; {} of {} ranks go on (generation {})", roster_.name(peer->rank),
        roster_.ranks().size(), options_.count, generation_ + 1);
  }
  begin_generation({}, now);
}

void Hub::keep_note(const Note& note) {
  notes_[note.name] = note.text;
  tell_newcomers(note);
}

/// Also to one that was greeted and has not said who it is: it may hear of the end alone.
void Hub::tell_newcomers(const Message& message) {
  const Frame frame = frame_of(encode(message));
  for (const auto& peer : peers_)
    if (peer->stage == Stage::kNewcomer) peer->connection.send(frame);
}

}  // namespace segfuse::comm::meet
