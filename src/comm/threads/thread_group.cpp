#include "comm/threads/thread_group.h"

#include <fmt/core.h>

#include <algorithm>
#include <cstring>
#include <exception>
#include <thread>

#include "base/mutex.h"

namespace segfuse::comm {
namespace {

/// What a rank hands in: others read it until all have what they want.
struct Call {
  const char* name = "";
  int root = 0;
  std::string_view text{};
  std::span<std::byte> bytes{};
  std::span<const Outgoing> out{};

  bool fits(const Call& other) const {
    return name == std::string_view(other.name) && root == other.root &&
           bytes.size() == other.bytes.size();
  }
  std::string what() const {
    if (bytes.empty()) return name;
    return fmt::format("{} of {} bytes from rank {}", name, bytes.size(), root);
  }
};

using Calls = std::vector<const Call*>;

/// Where the ranks meet for each call.
class Meeting {
 public:
  explicit Meeting(int ranks) : calls_(static_cast<std::size_t>(ranks)) {}

  /// When all ranks have come, each reads the calls of the others; nobody leaves before all have.
  void meet(int rank, const Call& call, const std::function<void(const Calls&)>& read) {
    const Calls all = gathered(rank, call);
    std::exception_ptr trouble;
    try {
      read(all);
    } catch (...) {
      trouble = std::current_exception();
    }
    leave();
    if (trouble) std::rethrow_exception(trouble);
  }

  void poll() const {
    const MutexLock lock(mutex_);
    if (!first_.cause.empty()) throw CommError(first_.cause);
  }

  void abort(int rank, std::string_view reason) {
    const MutexLock lock(mutex_);
    fail(rank, fmt::format("rank {} ended the work of all ranks: {}", rank, reason));
  }

  struct Failure {
    int rank = 0;
    std::string cause;  ///< empty: there was none
  };
  /// The rank whose abort or whose call was the first to go wrong.
  Failure first_failure() const {
    const MutexLock lock(mutex_);
    return first_;
  }

 private:
  Calls gathered(int rank, const Call& call) {
    MutexLock lock(mutex_);
    if (first_.cause.empty()) compare(rank, call);
    if (!first_.cause.empty()) throw CommError(first_.cause);
    calls_[static_cast<std::size_t>(rank)] = &call;
    const std::int64_t turn = turn_;
    if (++come_ == calls_.size()) {
      ++turn_;
      condition_.notify_all();
    }
    while (turn_ == turn && first_.cause.empty()) condition_.wait(lock);
    // Once all have come, they read: an abort does not take memory away that others look at.
    if (turn_ == turn) throw CommError(first_.cause);
    return calls_;
  }

  void leave() {
    MutexLock lock(mutex_);
    const std::int64_t turn = turn_;
    if (--come_ == 0) {
      std::fill(calls_.begin(), calls_.end(), nullptr);
      ++turn_;
      condition_.notify_all();
    }
    while (turn_ == turn) condition_.wait(lock);
  }

  void compare(int rank, const Call& call) SEGFUSE_REQUIRES(mutex_) {
    for (std::size_t other = 0; other < calls_.size(); ++other)
      if (calls_[other] != nullptr && !calls_[other]->fits(call)) {
        fail(rank, fmt::format("the ranks make different calls: rank {} {}, rank {} {}", other,
                               calls_[other]->what(), rank, call.what()));
        return;
      }
  }

  void fail(int rank, std::string cause) SEGFUSE_REQUIRES(mutex_) {
    if (!first_.cause.empty()) return;
    first_ = {rank, std::move(cause)};
    condition_.notify_all();
  }

  mutable Mutex mutex_;
  ConditionVariable condition_;
  Calls calls_ SEGFUSE_GUARDED_BY(mutex_);  // by rank; of those that have come
  std::size_t come_ SEGFUSE_GUARDED_BY(mutex_) = 0;
  std::int64_t turn_ SEGFUSE_GUARDED_BY(mutex_) = 0;  // two for each call: all came, all left
  Failure first_ SEGFUSE_GUARDED_BY(mutex_);
};

void copy(std::span<const std::byte> from, std::span<std::byte> to) {
  if (!from.empty()) std::memcpy(to.data(), from.data(), from.size());
}

class ThreadGroup final : public Group {
 public:
  ThreadGroup(int rank, int size, Meeting& meeting)
      : Group(rank, size, "threads"), meeting_(meeting) {}
  ~ThreadGroup() override {
    if (!finished_) abort_unfinished();
  }

 private:
  std::vector<std::string> do_gather(std::string_view mine) override {
    std::vector<std::string> texts;
    meet({.name = "gather", .text = mine}, [&](const Calls& calls) {
      for (const Call* call : calls) texts.emplace_back(call->text);
    });
    return texts;
  }

  void do_broadcast(std::span<std::byte> bytes, int root) override {
    meet({.name = "broadcast", .root = root, .bytes = bytes}, [&](const Calls& calls) {
      if (rank() != root) copy(calls[static_cast<std::size_t>(root)]->bytes, bytes);
    });
  }

  void do_barrier() override {
    meet({.name = "barrier"}, [](const Calls&) {});
  }

  void do_exchange(std::span<const Outgoing> out, std::span<const Incoming> in) override {
    meet({.name = "exchange", .out = out}, [&](const Calls& calls) {
      for (int from = 0; from < size(); ++from)
        if (from != rank()) receive(from, calls[static_cast<std::size_t>(from)]->out, in);
    });
  }

  void do_finish() override {
    meet({.name = "finish"}, [](const Calls&) {});
    finished_ = true;
  }

  void do_poll() override { meeting_.poll(); }

  void do_abort(std::string_view reason, ExitCode /*code*/) override {
    meeting_.abort(rank(), reason);
  }

  void meet(const Call& call, const std::function<void(const Calls&)>& read) {
    meeting_.meet(rank(), call, read);
  }

  void receive(int from, std::span<const Outgoing> out, std::span<const Incoming> in) const {
    std::size_t next = 0;
    for (const Incoming& place : in) {
      if (place.from != from) continue;
      while (next < out.size() && out[next].to != rank()) ++next;
      if (next == out.size())
        throw CommError(
            fmt::format("rank {} sends fewer spans than rank {} expects", from, rank()));
      if (out[next].bytes.size() != place.bytes.size())
        throw CommError(fmt::format("rank {} sends {} bytes, and rank {} expects {}", from,
                                    out[next].bytes.size(), rank(), place.bytes.size()));
      copy(out[next++].bytes, place.bytes);
    }
    while (next < out.size() && out[next].to != rank()) ++next;
    if (next < out.size())
      throw CommError(fmt::format("rank {} sends more spans than rank {} expects", from, rank()));
  }

  void abort_unfinished() noexcept {
    try {
      meeting_.abort(rank(), "it left without finishing");
    } catch (...) {  // no memory for the reason
      std::terminate();
    }
  }

  Meeting& meeting_;
  bool finished_ = false;
};

/// What a rank threw, if it did.
std::exception_ptr run(int rank, int size, Meeting& meeting,
                       const std::function<void(Group&)>& work) {
  try {
    ThreadGroup group(rank, size, meeting);
    run_rank(group, [&] { work(group); });
    return {};
  } catch (...) {
    return std::current_exception();
  }
}

}  // namespace

void run_ranks(int ranks, const std::function<void(Group&)>& work) {
  if (ranks < 1) throw UsageError(fmt::format("a group of {} ranks; expected 1 or more", ranks));
  Meeting meeting(ranks);
  std::vector<std::exception_ptr> thrown(static_cast<std::size_t>(ranks));
  std::vector<std::thread> threads;
  std::exception_ptr not_started;
  try {
    for (int rank = 0; rank < ranks; ++rank)
      threads.emplace_back(
          [&, rank] { thrown[static_cast<std::size_t>(rank)] = run(rank, ranks, meeting, work); });
  } catch (const std::exception& error) {
    not_started = std::current_exception();
    meeting.abort(static_cast<int>(threads.size()),
                  fmt::format("its thread cannot be started: {}", error.what()));
  }
  for (std::thread& thread : threads) thread.join();
  if (not_started) std::rethrow_exception(not_started);
  const Meeting::Failure first = meeting.first_failure();
  if (first.cause.empty()) return;
  if (const auto& own = thrown[static_cast<std::size_t>(first.rank)]) std::rethrow_exception(own);
  throw CommError(first.cause);
}

}  // namespace segfuse::comm
