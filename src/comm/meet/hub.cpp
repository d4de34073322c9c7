#include "comm/meet/hub.h"

#include <fmt/core.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "base/console/log.h"
#include "comm/meet/agreement.h"
#include "comm/meet/wire/socket.h"
#include "segfuse/error.h"

namespace segfuse::comm::meet {
namespace {

constexpr std::size_t kStrangers = 64;  // at a time, beside the ranks that are still to come
constexpr std::int64_t kOtherDescriptors = 512;  // of this process, beside one for each rank
constexpr int kAcceptedAtOnce = 64;              // before those who are there are heard again
constexpr std::size_t kTextsAtOnce = kLongestMessage - kLongestText - 1024;
constexpr std::chrono::seconds kGoodbye{2};  // for the last words to go out

}  // namespace

Hub::Hub(HubOptions options)
    : options_(std::move(options)),
      roster_(options_.count, options_.timings),
      begin_(options_.clock->now()),
      last_turn_(begin_),
      next_beat_(begin_ + options_.timings.heartbeat),
      texts_(static_cast<std::size_t>(options_.count)),
      wake_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  allow_descriptors(options_.count + kOtherDescriptors);
  thread_ = std::thread([this] { run(); });
}

Hub::~Hub() {
  {
    const MutexLock lock(mutex_);
    stop_ = true;
  }
  ::eventfd_write(wake_.get(), 1);
  thread_.join();
}

void Hub::run() {
  try {
    while (turn()) continue;
  } catch (const std::exception& error) {
    fail({false, 0, fmt::format("rank 0 cannot continue the meeting: {}", error.what())});
  }
  report_strangers();
  say_goodbye();
}

/// Waits until something happens, and does it; false when the meeting is to end.
bool Hub::turn() {
  std::vector<pollfd> watched = {{wake_.get(), POLLIN, 0},
                                 {accepting_ ? options_.listening.get() : -1, POLLIN, 0}};
  for (const auto& peer : peers_) {
    const bool write = !peer->connection.all_sent();
    watched.push_back(
        {peer->connection.descriptor(), static_cast<short>(POLLIN | (write ? POLLOUT : 0)), 0});
  }
  const auto patience = options_.clock->patience(next_time());
  ::poll(watched.data(), watched.size(), static_cast<int>(patience.count()));
  {
    const MutexLock lock(mutex_);
    if (stop_) return false;
  }
  const Time now = options_.clock->now();
  // Who stood still himself has heard nobody.
  if (now - last_turn_ > 2 * options_.timings.heartbeat) {
    roster_.forgive(now);
    for (const auto& peer : peers_) peer->heard = now;
  }
  last_turn_ = now;
  // Those who are there first: all that they said is known before anybody's silence is judged.
  for (std::size_t i = 2; i < watched.size(); ++i)
    if ((watched[i].revents & ~POLLOUT) != 0) read(*peers_[i - 2], now);
  if (watched[1].revents != 0) accept_all(now);
  watch(now);
  beat(now);
  flush_all(now);
  return true;
}

Time Hub::next_time() const {
  Time next = next_beat_;
  if (!agreed_) next = std::min(next, begin_ + options_.timings.join);
  for (const auto& peer : peers_)
    if (peer->stage == Stage::kStranger) next = std::min(next, peer->since + options_.timings.slow);
  return next;
}

void Hub::accept_all(Time now) {
  for (int i = 0; i < kAcceptedAtOnce; ++i) {
    make_room();
    Descriptor socket = accept_one(options_.listening.get());
    if (socket.get() < 0) {
      accepting_ = errno == EAGAIN || errno == EWOULDBLOCK || errno == ECONNABORTED;
      return;
    }
    peers_.push_back(std::make_unique<Peer>(std::move(socket)));
    Peer& peer = *peers_.back();
    peer.since = now;
    peer.nonce = new_nonce();
    peer.connection.send(challenge(peer.nonce));
    if (!peer.connection.flush()) turn_away(peer, Away::kOther);
  }
}

/// The stranger that has been silent for longest makes room for the next one.
void Hub::make_room() {
  const auto is_stranger = [](const auto& peer) { return peer->stage == Stage::kStranger; };
  const auto strangers = std::count_if(peers_.begin(), peers_.end(), is_stranger);
  const std::size_t missing = agreed_ ? 0 : static_cast<std::size_t>(options_.count);
  if (static_cast<std::size_t>(strangers) < kStrangers + missing) return;
  const auto oldest = std::find_if(peers_.begin(), peers_.end(), is_stranger);
  turn_away(**oldest, Away::kCrowd);
  peers_.erase(oldest);
}

void Hub::turn_away(Peer& peer, Away why) {
  ++away_[static_cast<std::size_t>(why)];
  peer.stage = Stage::kGone;
}

void Hub::read(Peer& peer, Time now) {
  if (peer.stage == Stage::kGone) return;
  const bool open = peer.connection.receive();
  if (peer.last_words) peer.connection.forget();
  try {
    while (peer.stage != Stage::kGone && !peer.last_words) {
      const bool stranger = peer.stage == Stage::kStranger;
      const auto bytes = peer.connection.next(stranger ? kLongestGreeting : kLongestMessage);
      if (!bytes) break;
      if (stranger)
        greet(peer, *bytes, now);
      else if (peer.stage == Stage::kRank)
        hear(peer, decode(*bytes), now);
      else if (peer.stage == Stage::kNewcomer)
        hear_newcomer(peer, decode(*bytes), now);
    }
  } catch (const DataError& error) {
    if (peer.stage == Stage::kRank || peer.stage == Stage::kNewcomer)
      return gone(peer, now, error.what());
    return turn_away(peer, Away::kMalformed);
  }
  if (!open) gone(peer, now, "its connection closed");
}

void Hub::greet(Peer& peer, const std::string& bytes, Time now) {
  const auto said = read_answer(bytes);
  if (!said) return turn_away(peer, Away::kMalformed);
  const Verdict judged = judge_visitor(*said, peer);
  peer.connection.send(verdict(options_.key, judged, peer.nonce, said->nonce));
  if (judged != Verdict::kWelcome) {
    ++away_[static_cast<std::size_t>(judged == Verdict::kWrongKey ? Away::kWrongKey
                                                                  : Away::kOther)];
    peer.last_words = true;
    return;
  }
  if (said->visitor.role == Role::kRank && failure_) {
    peer.connection.send(encode(Ended{*failure_}));
    peer.last_words = true;
    return;
  }
  if (said->visitor.role == Role::kRank) {
    peer.stage = agreed_ ? Stage::kNewcomer : Stage::kRank;
    peer.rank = said->visitor.rank;
    peer.since = now;
    return;
  }
  peer.stage = Stage::kLook;
  Rows rows = roster_.rows(now);
  if (failure_) rows.failure = failure_->sentence;
  rows.generation = generation_;
  for (const Rows& piece : in_pieces(rows)) peer.connection.send(encode(piece));
  peer.last_words = true;
}

Verdict Hub::judge_visitor(const Answer& answer, const Peer& peer) const {
  if (!proves_key(answer, options_.key, peer.nonce)) return Verdict::kWrongKey;
  const Visitor& visitor = answer.visitor;
  if (visitor.role == Role::kLook) return Verdict::kWelcome;
  if (visitor.count != options_.count || visitor.rank >= options_.count)
    return Verdict::kWrongCount;
  if (failure_) return Verdict::kWelcome;  // to hear of it
  if (over_) return Verdict::kOver;
  if (agreed_ && options_.min_ranks == 0) return Verdict::kClosed;
  const bool taken = std::any_of(peers_.begin(), peers_.end(), [&](const auto& other) {
    return (other->stage == Stage::kRank || other->stage == Stage::kNewcomer) &&
           other->rank == visitor.rank;
  });
  return taken ? Verdict::kTaken : Verdict::kWelcome;
}

void Hub::hear(Peer& peer, const Message& message, Time now) {
  if (peer.said_here) roster_.heard(peer.rank, now);
  if (const auto* here = std::get_if<Here>(&message)) return meet(peer, *here, now);
  if (!peer.said_here) throw DataError("a message of the meeting came before its time");
  if (const auto* beat = std::get_if<Beat>(&message))
    return roster_.moved(peer.rank, beat->state, now);
  if (const auto* text = std::get_if<Text>(&message)) return gather(peer, *text);
  if (const auto* bye = std::get_if<Bye>(&message)) {
    if (bye->generation != generation_) return;
    roster_.left(peer.rank, now);
    if (!roster_.all_left() || failure_) return;
    over_ = true;
    tell_newcomers(Bye{generation_});
    return tell_all(Bye{generation_});
  }
  if (const auto* of = std::get_if<Admit>(&message); of != nullptr && peer.rank == 0)
    return admit(of->generation, now);
  if (const auto* note = std::get_if<Note>(&message); note != nullptr && peer.rank == 0)
    return keep_note(*note);
  if (const auto* trouble = std::get_if<Trouble>(&message))
    return hear_trouble(peer, *trouble, now);
  throw DataError("a message of the meeting that ranks do not send");
}

/// Each hears what becomes of it: the end of all, or a change of the ranks.
void Hub::hear_trouble(Peer& peer, const Trouble& trouble, Time now) {
  if (failure_ || over_) return;  // it hears of that
  Failure failure{false, peer.rank,
                  fmt::format("{} failed in {}: {}", roster_.name(peer.rank),
                              place_of(roster_.state(peer.rank)), trouble.sentence),
                  trouble.said};
  if (!trouble.hint)
    return arrives(peer) ? lose(std::move(failure), now) : fail(std::move(failure));
  // Who was left behind by a former generation closes connections, and that is known.
  if (hint_ || trouble.generation != generation_) return;
  hint_ = std::move(failure);
  hint_about_ = trouble.about;
  hint_since_ = now;
}

void Hub::meet(Peer& peer, const Here& here, Time now) {
  if (peer.said_here) throw DataError("a rank came twice on one connection");
  peer.said_here = true;
  roster_.came(peer.rank, here, now);
  if (!roster_.all_here()) return;
  report_strangers();
  if (auto difference = difference_in(roster_)) return fail(std::move(*difference));
  agreed_ = true;
  tell_all(Agreed{roster_.here(0).host, roster_.here(0).pid, false});
}

void Hub::gather(Peer& peer, const Text& text) {
  auto& place = texts_[static_cast<std::size_t>(peer.rank)];
  if (text.generation < generation_) return;  // its rank will say it again
  if (text.generation > generation_ || text.round != round_ || place)
    throw DataError("a text that belongs to another gather");
  place = text.text;
  const std::vector<std::int64_t> ranks = roster_.ranks();
  const auto text_of_rank = [&](std::int64_t rank) -> std::optional<std::string>& {
    return texts_[static_cast<std::size_t>(rank)];
  };
  if (!std::ranges::all_of(ranks,
                           [&](std::int64_t rank) { return text_of_rank(rank).has_value(); }))
    return;
  Texts piece{round_, 0, {}, generation_};
  std::size_t bytes = 0;
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    std::optional<std::string>& one = text_of_rank(ranks[i]);
    if (bytes > kTextsAtOnce) {
      tell_all(piece);
      piece = {round_, static_cast<std::int64_t>(i), {}, generation_};
      bytes = 0;
    }
    bytes += one->size() + 4;
    piece.texts.push_back(std::move(*one));
    one.reset();
  }
  tell_all(piece);
  ++round_;
  for (const auto& other : peers_)
    if (other->arriving) other->since = options_.clock->now();
}

void Hub::gone(Peer& peer, Time now, std::string_view why) {
  if (peer.stage == Stage::kNewcomer) return lose_newcomer(peer, why);
  const Stage stage = std::exchange(peer.stage, Stage::kGone);
  if (stage == Stage::kStranger && !peer.last_words)
    ++away_[static_cast<std::size_t>(Away::kOther)];
  if (stage != Stage::kRank || !peer.said_here || failure_ || over_) return;
  // A rank whose work is done may still not leave: the others count on its word.
  lose(roster_.lost(peer.rank, now, why), now);
}

void Hub::watch(Time now) {
  watch_strangers(now);
  watch_newcomers(now);
  if (failure_ || over_) return;
  if (!agreed_ && now - begin_ >= options_.timings.join)
    return fail(
        {false, -1,
         fmt::format("{} of {} did not come to the meeting at {} within {}", roster_.missing(),
                     options_.count, options_.where, text_of(options_.timings.join))});
  if (auto failure = roster_.judge(now)) return lose(std::move(*failure), now);
  if (hint_ && now - hint_since_ >= options_.timings.hint()) judge_hint(now);
}

void Hub::watch_strangers(Time now) {
  for (const auto& peer : peers_) {
    const bool unknown =
        peer->stage == Stage::kStranger || peer->last_words ||
        ((peer->stage == Stage::kRank || peer->stage == Stage::kNewcomer) && !peer->said_here);
    if (unknown && peer->stage != Stage::kGone && now - peer->since >= options_.timings.slow)
      turn_away(*peer, Away::kSlow);
  }
}

void Hub::beat(Time now) {
  if (now < next_beat_) return;
  next_beat_ = now + options_.timings.heartbeat;
  accepting_ = true;
  tell_all(Beat{roster_.state(0)});
  tell_newcomers(Beat{roster_.state(0)});
}

void Hub::fail(Failure failure) {
  if (failure_) return;
  failure.sentence.resize(std::min(failure.sentence.size(), kLongestText));
  failure_ = std::move(failure);
  tell_all(Ended{*failure_});
  tell_newcomers(Ended{*failure_});
}

bool Hub::can_go_on(const Failure& loss) const {
  // Rank 0 is the one that writes, and where the others meet.
  return agreed_ && !failure_ && options_.min_ranks > 0 && loss.rank > 0 &&
         std::ssize(roster_.ranks()) > options_.min_ranks;
}

/// Those that are left go on without that rank where they may; else it ends all.
void Hub::lose(Failure failure, Time now) {
  if (!can_go_on(failure)) {
    if (agreed_ && options_.min_ranks > 0 && failure.rank > 0)
      failure.sentence +=
          fmt::format("; {} of {} ranks would be left, and --min-ranks is {}",
                      roster_.ranks().size() - 1, options_.count, options_.min_ranks);
    return fail(std::move(failure));
  }
  failure.sentence.resize(std::min(failure.sentence.size(), kLongestText / 2));
  roster_.lose(failure.rank, now);
  log(LogLevel::kWarning, "{}; {} of {} ranks go on (generation {})", failure.sentence,
      roster_.ranks().size(), options_.count, generation_ + 1);
  begin_generation(std::move(failure), now);
}

/// What is on its way belongs to the generation before.
void Hub::begin_generation(Failure loss, Time now) {
  ++generation_;
  round_ = 0;
  for (auto& text : texts_) text.reset();
  hint_.reset();
  const Changed changed{generation_, std::move(loss), roster_.ranks()};
  for (const auto& peer : peers_) {
    if (peer->arriving) peer->since = now;
    if (peer->stage != Stage::kRank || peer->rank != changed.loss.rank) continue;
    // It may be there still, and has to end.
    peer->connection.send(encode(changed));
    peer->stage = Stage::kLook;
    peer->last_words = true;
    peer->since = now;
  }
  tell_all(changed);
}

void Hub::tell_all(const Message& message) {
  const Frame frame = frame_of(encode(message));
  for (const auto& peer : peers_)
    if (peer->stage == Stage::kRank) peer->connection.send(frame);
}

void Hub::flush_all(Time now) {
  for (const auto& peer : peers_) {
    if (peer->stage == Stage::kGone) continue;
    if (!peer->connection.flush())
      gone(*peer, now, "its connection closed");
    else if (peer->last_words && peer->connection.all_sent())
      peer->connection.end();
  }
  // A failure that came up here goes out in the next turn, which is at once.
  std::erase_if(peers_, [](const auto& peer) { return peer->stage == Stage::kGone; });
}

/// Sends what waits, then lets the others close first: what they have not read yet is lost
/// otherwise.
void Hub::say_goodbye() {
  const auto limit = std::chrono::steady_clock::now() + kGoodbye;
  std::vector<Peer*> open;
  for (const auto& peer : peers_)
    if (peer->stage == Stage::kRank || peer->stage == Stage::kNewcomer || peer->last_words)
      open.push_back(peer.get());
  while (!open.empty() && std::chrono::steady_clock::now() < limit) {
    std::vector<pollfd> watched;
    for (Peer* peer : open) {
      if (peer->connection.flush() && peer->connection.all_sent()) {
        peer->connection.end();
        // A rank that is stopped or hangs will not close.
        if (failure_ && failure_->rank == peer->rank) peer->stage = Stage::kGone;
      }
      const bool write = !peer->connection.all_sent();
      watched.push_back(
          {peer->connection.descriptor(), static_cast<short>(POLLIN | (write ? POLLOUT : 0)), 0});
    }
    ::poll(watched.data(), watched.size(), 50);
    std::erase_if(open, [](Peer* peer) {
      const bool more = peer->connection.receive();
      peer->connection.forget();
      return !more || peer->stage == Stage::kGone;
    });
  }
}

void Hub::report_strangers() {
  const auto [keys, malformed, slow, crowd, other] = std::exchange(away_, {});
  const std::int64_t all = keys + malformed + slow + crowd + other;
  if (all == 0) return;
  log(LogLevel::kWarning,
      "the meeting at {} refused {} connection{}: {} with a wrong key, {} malformed, {} slow, {} "
      "because there was no room, {} for other reasons",
      options_.where, all, all == 1 ? "" : "s", keys, malformed, slow, crowd, other);
}

}  // namespace segfuse::comm::meet
