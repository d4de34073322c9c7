#include "comm/meet/member.h"

#include <fmt/core.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <numeric>
#include <utility>

#include "comm/meet/board.h"
#include "comm/meet/wire/visit.h"
#include "segfuse/error.h"

namespace segfuse::comm::meet {
namespace {

constexpr std::chrono::milliseconds kAsk{100};

/// Its other end is closed.
bool has_ended(const Descriptor& pipe) {
  if (pipe.get() < 0) return false;
  pollfd watched{pipe.get(), POLLIN, 0};
  return ::poll(&watched, 1, 0) > 0 && (watched.revents & (POLLHUP | POLLERR)) != 0;
}

Failure launchers_end() { return {false, -1, "the process that started the ranks has ended"}; }

}  // namespace

Member::Member(const MeetingOptions& options, std::function<std::vector<Address>()> ways)
    : options_(options),
      ways_(std::move(ways)),
      wake_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
      where_(fmt::format("{}:{}", options.host, options.port)) {
  left_.resize(static_cast<std::size_t>(options.count));
  std::iota(left_.begin(), left_.end(), 0);
  ranks_ = left_;
}

Member::~Member() {
  if (!thread_.joinable()) return;
  if (!done()) tell_trouble({false, "it ended before its work was done"});
  {
    const MutexLock lock(mutex_);
    stop_ = true;
  }
  ::eventfd_write(wake_.get(), 1);
  thread_.join();
}

void Member::join() {
  connect();
  const Time now = options_.clock->now();
  hub_heard_ = now;
  last_turn_ = now;
  next_beat_ = now;
  {
    const MutexLock lock(mutex_);
    since_ = now;
    write_board();
  }
  send(Here{own_host().substr(0, kLongestHost), ::getpid(), options_.values});
  while (!joined_) {
    ask();
    try {
      turn();
    } catch (const DataError& error) {
      throw CommError(fmt::format("rank 0 at {}: {}", where_, error.what()));
    }
    if (const auto failure = this->failure()) {
      if (failure->usage) throw UsageError(failure->sentence);
      throw CommError(failure->sentence);
    }
    if (is_over()) throw_too_late();
  }
  thread_ = std::thread([this] { run(); });
}

void Member::connect() {
  const Clock& clock = *options_.clock;
  const Time limit = clock.now() + options_.timings.join;
  const Visitor visitor{Role::kRank, static_cast<std::uint32_t>(options_.rank),
                        static_cast<std::uint32_t>(options_.count)};
  std::string why = "nobody listens there";
  bool in_vain = false;
  do {
    try {
      for (const Address& address : ways_()) {
        const Time until = std::min(limit, clock.now() + options_.timings.slow);
        Visit met = visit(address, options_.key, visitor, until, clock, [this] { ask(); });
        connection_ = std::move(met.connection);
        if (connection_) return;
        in_vain = in_vain || met.in_vain;
        why = std::move(met.why);
      }
    } catch (const CommError& error) {  // a name that is not known yet
      why = error.what();
    }
    if (in_vain) throw_too_late();
    wait_for(-1, 0, std::min(limit, clock.now() + options_.timings.retry), clock,
             [this] { ask(); });
  } while (clock.now() < limit);
  throw CommError(fmt::format("rank {} could not join the meeting at {} within {}: {}",
                              options_.rank, where_, text_of(options_.timings.join), why));
}

void Member::throw_too_late() const {
  const std::string sentence = fmt::format(
      "the work of the ranks at {} was done before rank {} could join them", where_, options_.rank);
  if (options_.launcher.get() >= 0) throw EndedByRank(ExitCode::kOk, sentence);
  throw CommError(sentence);
}

void Member::ask() const {
  if (options_.stop && options_.stop())
    throw Interrupted("interrupted while the other ranks were awaited");
  if (has_ended(options_.launcher)) throw CommError(launchers_end().sentence);
}

void Member::run() {
  for (;;) {
    {
      const MutexLock lock(mutex_);
      if (stop_) return;
    }
    try {
      turn();
    } catch (const std::exception& error) {
      set_failure(
          {false, options_.rank,
           fmt::format("rank {} cannot continue the meeting: {}", options_.rank, error.what())});
      connection_.reset();
    }
  }
}

/// Waits until something happens, and does it.
void Member::turn() {
  const Clock& clock = *options_.clock;
  pollfd watched[3] = {{wake_.get(), POLLIN, 0}, {options_.launcher.get(), POLLIN, 0}, {-1, 0, 0}};
  if (done()) watched[1].fd = -1;  // it would be ready forever
  if (connection_)
    watched[2] = {connection_->descriptor(),
                  static_cast<short>(POLLIN | (connection_->all_sent() ? 0 : POLLOUT)), 0};
  auto patience = clock.patience(next_beat_);
  if (!joined_) patience = std::min(patience, kAsk);
  ::poll(watched, 3, static_cast<int>(patience.count()));
  if (watched[0].revents != 0) {
    eventfd_t ignored = 0;
    ::eventfd_read(wake_.get(), &ignored);
  }
  const Time now = clock.now();
  // Who stood still himself has heard nobody.
  if (now - last_turn_ > 2 * options_.timings.heartbeat) hub_heard_ = now;
  last_turn_ = now;
  if (has_ended(options_.launcher)) set_failure(launchers_end());
  if (connection_) {
    {
      const MutexLock lock(mutex_);
      for (Frame& frame : outbox_) connection_->send(std::move(frame));
      outbox_.clear();
    }
    const bool open = connection_->receive();
    while (auto bytes = connection_->next(kLongestMessage)) {
      hub_heard_ = now;
      hear(decode(*bytes));
    }
    if (!open || !connection_->flush()) lose_hub(now, "its connection closed");
  }
  beat(now);
  judge(now);
}

void Member::hear(const Message& message) {
  if (const auto* beat = std::get_if<Beat>(&message)) {
    hub_state_ = beat->state;
  } else if (const auto* agreed = std::get_if<Agreed>(&message)) {
    hub_ = *agreed;
    joined_ = true;
  } else if (const auto* ended = std::get_if<Ended>(&message)) {
    set_failure(ended->failure);
  } else if (const auto* texts = std::get_if<Texts>(&message)) {
    take_texts(*texts);
  } else if (const auto* changed = std::get_if<Changed>(&message)) {
    take_change(*changed);
  } else if (const auto* note = std::get_if<Note>(&message)) {
    const MutexLock lock(mutex_);
    notes_[note->name] = note->text;
    changed_.notify_all();
  } else if (std::holds_alternative<Bye>(message)) {
    const MutexLock lock(mutex_);
    over_ = true;
    changed_.notify_all();
  } else {
    throw DataError("a message of the meeting that rank 0 does not send");
  }
}

void Member::take_texts(Texts texts) {
  const MutexLock lock(mutex_);
  if (texts.generation != generation_ || texts.round != round_ ||
      texts.first != static_cast<std::int64_t>(texts_.size()) ||
      texts_.size() + texts.texts.size() > ranks_.size())
    throw DataError("a text that belongs to another gather");
  for (std::string& text : texts.texts) texts_.push_back(std::move(text));
  changed_.notify_all();
}

void Member::take_change(const Changed& changed) {
  MutexLock lock(mutex_);
  if (changed.loss.rank == options_.rank) {
    left_behind_ = true;
    lock.unlock();
    return set_failure(changed.loss);
  }
  // A newcomer hears of none before the one that takes it in.
  const bool enters = hub_.late && !entered_;
  if ((changed.generation != newest_ + 1 && !enters) ||
      std::ranges::find(changed.ranks, options_.rank) == changed.ranks.end())
    throw DataError("a change of the ranks that does not follow the one before");
  entered_ = true;
  newest_ = changed.generation;
  left_ = changed.ranks;
  change_ = changed.loss;
  if (change_->rank < 0) change_->sentence = "ranks joined";
  changed_.notify_all();
}

void Member::renew() {
  const MutexLock lock(mutex_);
  generation_ = newest_;
  ranks_ = left_;
  change_.reset();
  round_ = 0;
  texts_.clear();
  write_board();
}

void Member::beat(Time now) {
  if (now < next_beat_) return;
  next_beat_ = now + options_.timings.heartbeat;
  State state;
  {
    const MutexLock lock(mutex_);
    state = state_;
    state.seconds = seconds_of(now - since_);
  }
  send(Beat{state});
}

void Member::judge(Time now) {
  if (connection_ && now - hub_heard_ > options_.timings.silence())
    lose_hub(now, fmt::format("{} heartbeats are missing", options_.timings.missing));
  const auto failure = this->failure();
  if (!failure || !options_.last_resort || now - failed_at_ < *options_.last_resort) return;
  fmt::print(stderr,
             "segfuse: {}; this rank ends now, because what it is doing cannot be interrupted\n",
             failure->sentence);
  std::_Exit(static_cast<int>(ExitCode::kDevice));
}

void Member::lose_hub(Time now, std::string_view why) {
  connection_.reset();
  if (is_over()) return;
  const std::string name = hub_.host.empty() ? fmt::format("rank 0 (at {})", where_)
                                             : name_of_rank(0, hub_.host, hub_.pid);
  set_failure({false, 0, loss_of(name, hub_state_, now - hub_heard_, why)});
}

void Member::set_failure(Failure failure) {
  {
    const MutexLock lock(mutex_);
    if (failure_ || over_) return;
    failure_ = failure;
    write_board();
  }
  failed_at_ = options_.clock->now();
  changed_.notify_all();
  if (joined_ && options_.failed) options_.failed(failure);
}

void Member::send(const Message& message) {
  if (connection_) connection_->send(frame_of(encode(message)));
}

void Member::post(const Message& message) {
  outbox_.push_back(frame_of(encode(message)));
  ::eventfd_write(wake_.get(), 1);
}

void Member::report(State state) {
  state.doing.resize(std::min(state.doing.size(), kLongestDoing));
  const Time now = options_.clock->now();
  const MutexLock lock(mutex_);
  state.generation = generation_;
  if (!state.same_place(state_)) since_ = now;
  state_ = std::move(state);
  write_board();
}

void Member::note_own_fault() {
  const MutexLock lock(mutex_);
  own_fault_ = true;
  write_board();
}

void Member::write_board() {
  if (!options_.board) return;
  Board::Entry entry{state_, options_.clock->now()};
  if (failure_ && !left_behind_)
    entry.cause = failure_->rank >= 0 ? failure_->rank : Board::kNobody;
  entry.state.generation = generation_;
  entry.state.seconds = seconds_of(entry.written - since_);
  entry.own_fault = own_fault_;
  options_.board->write(options_.rank, entry);
}

std::optional<Failure> Member::failure() const {
  const MutexLock lock(mutex_);
  return failure_;
}

std::optional<Failure> Member::change() const {
  const MutexLock lock(mutex_);
  return change_;
}

std::int64_t Member::generation() const {
  const MutexLock lock(mutex_);
  return generation_;
}

std::vector<std::int64_t> Member::ranks() const {
  const MutexLock lock(mutex_);
  return ranks_;
}

bool Member::is_over() const {
  const MutexLock lock(mutex_);
  return over_;
}

bool Member::done() const {
  const MutexLock lock(mutex_);
  return over_ || failure_;
}

std::vector<std::string> Member::gather(const std::string& text) {
  MutexLock lock(mutex_);
  if (change_) return {};
  post(Text{round_, text, generation_});
  while (!failure_ && !change_ && texts_.size() < ranks_.size()) changed_.wait(lock);
  ++round_;
  return std::exchange(texts_, {});
}

void Member::leave() {
  MutexLock lock(mutex_);
  post(Bye{generation_});
  while (!failure_ && !change_ && !over_) changed_.wait(lock);
}

void Member::leave_note(const std::string& name, const std::string& text) {
  const MutexLock lock(mutex_);
  post(Note{name, text});
}

void Member::admit() {
  const MutexLock lock(mutex_);
  post(Admit{generation_});
}

void Member::await_change() {
  MutexLock lock(mutex_);
  while (!failure_ && !change_) changed_.wait(lock);
}

std::string Member::note(const std::string& name) {
  MutexLock lock(mutex_);
  while (!failure_ && !over_ && !notes_.contains(name)) changed_.wait(lock);
  return notes_[name];
}

void Member::enter() {
  MutexLock lock(mutex_);
  post(Knock{});
  while (!failure_ && !over_ && !entered_) changed_.wait(lock);
}

Failure Member::tell_trouble(Trouble trouble) {
  const Time now = options_.clock->now();
  MutexLock lock(mutex_);
  // Where it happened; the last heartbeat may be a second old.
  State state = state_;
  state.seconds = seconds_of(now - since_);
  post(Beat{state});
  trouble.sentence.resize(std::min(trouble.sentence.size(), kLongestText / 2));
  trouble.generation = generation_;
  post(trouble);
  while (!failure_ && !over_ && !(trouble.hint && change_)) changed_.wait(lock);
  if (failure_) return *failure_;
  return {false, options_.rank, std::move(trouble.sentence), trouble.said};
}

}  // namespace segfuse::comm::meet
