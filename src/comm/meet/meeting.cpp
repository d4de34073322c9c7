#include "comm/meet/meeting.h"

#include <fmt/core.h>
#include <unistd.h>

#include "base/check.h"
#include "base/mutex.h"
#include "comm/meet/job.h"
#include "comm/meet/member.h"
#include "comm/ranks_changed.h"

namespace segfuse::comm::meet {
namespace {

[[noreturn]] void raise(const Failure& failure, std::int64_t own) {
  if (failure.said != 0 && failure.rank != own)
    throw EndedByRank(static_cast<ExitCode>(failure.said), failure.sentence);
  if (failure.usage) throw UsageError(failure.sentence);
  throw CommError(failure.sentence);
}

}  // namespace

class Meeting::Parts {
 public:
  explicit Parts(MeetingOptions options)
      : options_(completed(std::move(options))), hub_(begin_hub()), member_(options_, ways()) {
    options_.failed = [this, tell = std::move(options_.failed)](const Failure& failure) {
      forget_place();
      if (tell) tell(failure);
    };
    member_.join();
  }
  ~Parts() { forget_place(); }
  Parts(const Parts&) = delete;
  Parts& operator=(const Parts&) = delete;

  const MeetingOptions& options() const { return options_; }
  Member& member() { return member_; }
  bool somebody_waits() const noexcept { return hub_ && hub_->somebody_waits(); }
  /// Of a newcomer, for which nobody has waited.
  void check_work() {
    if (member_.is_over()) member_.throw_too_late();
  }
  int port() const { return port_; }
  void publish(const std::filesystem::path& folder) {
    if (!hub_) return;
    write_place(folder, {place_host(), port_, options_.key, options_.count, ::getpid()});
    const MutexLock lock(mutex_);
    folder_ = folder;
  }
  void forget_place() noexcept {
    const MutexLock lock(mutex_);
    if (!folder_.empty()) remove_place(folder_);
    folder_.clear();
  }

 private:
  static MeetingOptions completed(MeetingOptions options) {
    static const auto& system = *new SteadyClock();
    if (options.clock == nullptr) options.clock = &system;
    SEGFUSE_CHECK(options.rank >= 0 && options.rank < options.count, "rank {} of {}", options.rank,
                  options.count);
    return options;
  }
  std::unique_ptr<Hub> begin_hub() {
    port_ = options_.port;
    if (options_.rank != 0) return nullptr;
    if (options_.listening.get() < 0) options_.listening = listen_at(options_.host, options_.port);
    port_ = port_of(options_.listening.get());
    ways_ = ways_to(options_.listening.get());
    return std::make_unique<Hub>(HubOptions{options_.count, options_.key, options_.timings,
                                            options_.clock, std::move(options_.listening),
                                            fmt::format("{}:{}", options_.host, port_),
                                            options_.min_ranks});
  }
  /// Rank 0 reaches itself whatever others call its machine.
  std::function<std::vector<Address>()> ways() {
    if (hub_) return [ways = ways_] { return ways; };
    return [host = options_.host, port = port_] { return resolve(host, port); };
  }
  /// Others on this machine reach what listens on the loopback alone by that name only.
  std::string place_host() const {
    return options_.host == "localhost" || options_.host == "127.0.0.1" ? "127.0.0.1" : own_host();
  }

  MeetingOptions options_;
  int port_ = 0;
  std::vector<Address> ways_;
  // The member's thread tells of failures until it is joined, so what it touches outlives it.
  Mutex mutex_;
  std::filesystem::path folder_ SEGFUSE_GUARDED_BY(mutex_);  ///< where a place was written
  std::unique_ptr<Hub> hub_;  ///< goes after the member, which says its last words to it
  Member member_;
};

Meeting::Meeting(MeetingOptions options) : parts_(std::make_unique<Parts>(std::move(options))) {}
Meeting::~Meeting() = default;

std::int64_t Meeting::rank() const noexcept { return parts_->options().rank; }
std::int64_t Meeting::count() const noexcept { return parts_->options().count; }
int Meeting::port() const noexcept { return parts_->port(); }
const MeetingOptions& Meeting::options() const noexcept { return parts_->options(); }
void Meeting::publish(const std::filesystem::path& folder) { parts_->publish(folder); }

void Meeting::report(State state) { parts_->member().report(std::move(state)); }
std::optional<Failure> Meeting::failure() const { return parts_->member().failure(); }
void Meeting::check() const {
  if (const auto failure = this->failure()) raise(*failure, rank());
  if (const auto change = parts_->member().change()) throw RanksChanged(change->sentence);
}
std::vector<std::int64_t> Meeting::ranks() const { return parts_->member().ranks(); }
std::int64_t Meeting::generation() const { return parts_->member().generation(); }
void Meeting::renew() { parts_->member().renew(); }
bool Meeting::is_over() const { return parts_->member().is_over(); }

bool Meeting::is_late() const noexcept { return parts_->member().is_late(); }
void Meeting::leave_note(const std::string& name, const std::string& text) {
  SEGFUSE_CHECK(text.size() <= kLongestText, "a note of {} bytes", text.size());
  parts_->member().leave_note(name, text);
}
std::string Meeting::note(const std::string& name) {
  std::string text = parts_->member().note(name);
  check();
  parts_->check_work();
  return text;
}
bool Meeting::somebody_waits() const noexcept { return parts_->somebody_waits(); }
void Meeting::admit() { parts_->member().admit(); }
void Meeting::await_change() {
  parts_->member().await_change();
  check();
}
void Meeting::enter() {
  parts_->member().enter();
  if (const auto failure = this->failure()) raise(*failure, rank());
  parts_->check_work();
  renew();
}

std::vector<std::string> Meeting::all_gather(const std::string& text) {
  if (text.size() > kLongestText)
    throw UsageError(fmt::format("a text of {} bytes is gathered among ranks; expected {} at most",
                                 text.size(), kLongestText));
  std::vector<std::string> texts = parts_->member().gather(text);
  check();
  return texts;
}

void Meeting::leave() {
  parts_->member().leave();
  if (!parts_->member().is_over()) check();
}

void Meeting::fail(std::string_view sentence, ExitCode said) noexcept {
  try {
    parts_->member().tell_trouble(
        {.sentence = std::string(sentence), .said = static_cast<int>(said)});
  } catch (const std::exception&) {
    // Without memory for a message the closing connection has to say it.
  }
}

void Meeting::note_own_fault() noexcept { parts_->member().note_own_fault(); }

void Meeting::throw_cause(std::string_view hint, std::int64_t about) {
  const Failure cause =
      parts_->member().tell_trouble({.hint = true, .sentence = std::string(hint), .about = about});
  check();
  raise(cause, rank());
}

}  // namespace segfuse::comm::meet
