#include "comm/tcp/tcp_group.h"

#include <fmt/core.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cerrno>
#include <climits>
#include <deque>
#include <system_error>
#include <thread>

#include "base/mutex.h"
#include "comm/tcp/links.h"

namespace segfuse::comm {
namespace {

/// How long a rank that waits for bytes does not look at what the meeting says.
constexpr int kLookMilliseconds = 50;

enum class Call : std::uint32_t { kGather, kBroadcast, kBarrier, kExchange, kFinish, kCommit };

const char* name_of(Call call) {
  constexpr std::array kNames = {"gather", "broadcast", "barrier", "exchange", "finish", "commit"};
  const auto number = static_cast<std::size_t>(call);
  return number < kNames.size() ? kNames[number] : "a call that is not known";
}

/// What goes before the bytes of each span.
struct Header {
  Call call = Call::kGather;
  std::uint32_t number = 0;  ///< of the call; it starts again after the largest
  std::uint64_t bytes = 0;
};
static_assert(sizeof(Header) == 16 && std::endian::native == std::endian::little,
              "what goes over the wire is the memory itself");

struct Sending {
  Header header;
  std::span<const std::byte> bytes;
  std::size_t done = 0;  ///< of both
};

struct Receiving {
  std::span<std::byte> bytes{};
  std::string* text = nullptr;  ///< of any length, in place of `bytes`
  Header header{};
  std::size_t done = 0;  ///< of both
};

struct Peer {
  Descriptor socket;
  std::deque<Sending> out;
  std::deque<Receiving> in;
};

class TcpGroup final : public Group {
 public:
  explicit TcpGroup(std::shared_ptr<meet::Meeting> meeting)
      : Group(static_cast<int>(meeting->rank()), static_cast<int>(meeting->count()), "TCP"),
        meeting_(std::move(meeting)) {
    if (meeting_->options().min_ranks > 0) set_goes_on();
    set_outside(meeting_->is_late());
    if (is_outside())
      units_ = kNone;
    else
      link();
  }

  ~TcpGroup() override {
    if (!finished_) meeting_->fail("it left without finishing");
  }

 private:
  std::vector<std::string> do_gather(std::string_view mine) override {
    return gather_as(Call::kGather, mine);
  }

  /// From the root to one, from these two to two more, and so on.
  void do_broadcast(std::span<std::byte> bytes, int root) override {
    begin(Call::kBroadcast);
    if (is_outside()) return;
    const auto ranks = static_cast<unsigned>(size());
    const auto own = static_cast<unsigned>((rank() - root + size()) % size());
    const auto peer = [&](unsigned place) {
      return static_cast<int>((place + static_cast<unsigned>(root)) % ranks);
    };
    if (own != 0) {
      receive(peer(own - std::bit_floor(own)), {.bytes = bytes});
      transfer();
    }
    for (unsigned step = std::bit_ceil(own + 1); own + step < ranks; step *= 2)
      send(peer(own + step), bytes);
    transfer();
  }

  void do_barrier() override { gather_as(Call::kBarrier, ""); }

  void do_exchange(std::span<const Outgoing> out, std::span<const Incoming> in) override {
    begin(Call::kExchange);
    if (is_outside()) throw InternalError("a rank that has not been taken in exchanges bytes");
    for (const Outgoing& span : out) send(span.to, span.bytes);
    for (const Incoming& span : in) receive(span.from, {.bytes = span.bytes});
    transfer();
  }

  void do_finish() override {
    // Ranks that go on without others have left the meeting first, and none can be lost any more.
    if (is_outside()) throw InternalError("a rank ends its work and has not been taken in");
    if (!goes_on() || !meeting_->is_over()) gather_as(Call::kFinish, "");
    finished_ = true;
  }

  void do_commit() override {
    if (!goes_on() || meeting_->is_over() || is_outside()) return;
    commits_ = true;
    gather_as(Call::kCommit, "");
    end_unit(units_ + 1);
  }

  void end_unit(std::int64_t units) {
    units_ = units;
    commits_ = false;
    is_new_ = false;
    set_newcomers({});
  }

  void do_leave_note(const std::string& name, const std::string& text) override {
    meeting_->leave_note(name, text);
  }
  std::string do_note(const std::string& name) override { return meeting_->note(name); }
  bool do_somebody_waits() override { return meeting_->somebody_waits(); }

  void do_take_in() override {
    if (is_outside()) {
      meeting_->enter();
      is_new_ = true;
      set_outside(false);
      link();
      return;
    }
    // Where the unit is done again they may be here.
    if (!newcomers().empty()) return;
    const char* const waits = rank() == 0 && somebody_waits() ? "waits" : "";
    if (gather_as(Call::kGather, waits)[0].empty()) return;
    // All are in this unit, so that none has it behind itself that the newcomers do not know.
    if (rank() == 0) meeting_->admit();
    meeting_->await_change();
  }

  bool do_regroup() override {
    meeting_->renew();
    return link();
  }

  /// Connects the ranks that are left; whether the unit to whose end this one has come is done.
  bool link() {
    for (;; meeting_->renew()) {
      // What is on its way belongs to the generation before.
      peers_.clear();
      number_ = 0;
      try {
        Links links = link_ranks(*meeting_, fmt::format("{} {}", units_, is_new_ ? kNew : kKnown));
        const std::vector<std::int64_t> ranks = meeting_->ranks();
        set_place(static_cast<int>(std::ranges::find(ranks, meeting_->rank()) - ranks.begin()),
                  static_cast<int>(ranks.size()), meeting_->generation());
        for (Descriptor& socket : links.sockets) peers_.push_back({std::move(socket), {}, {}});
        return take_units(links.words);
      } catch (const RanksChanged&) {
        // Once more, without that one too.
      }
    }
  }

  /// A rank leaves commit() when all have come to it: one that has done a unit more than this one
  /// says that this one's is done as well.
  bool take_units(const std::vector<std::string>& words) {
    std::int64_t most = units_;
    for (const std::string& word : words) most = std::max<std::int64_t>(most, std::stoll(word));
    const bool first = units_ == kNone;
    const bool done = !first && most > units_;
    if (!first && most - units_ > (commits_ ? 1 : 0))
      throw InternalError(fmt::format("rank {} has done {} units, and another one {}",
                                      meeting_->rank(), units_, most));
    if (done) {
      end_unit(most);
      return true;
    }
    units_ = most;
    commits_ = false;
    std::vector<int> newcomers;
    for (std::size_t place = 0; place < words.size(); ++place) {
      const std::int64_t units = std::stoll(words[place]);
      // One that came to the end of a unit that others have left is new no more.
      if (words[place].ends_with(kNew) && (units == kNone || units == most))
        newcomers.push_back(static_cast<int>(place));
    }
    set_newcomers(std::move(newcomers));
    return false;
  }

  void do_poll() override {
    if (ended_) throw CommError(reason());
    meeting_->check();
  }

  void do_abort(std::string_view reason, ExitCode code) override {
    {
      const MutexLock lock(mutex_);
      if (reason_.empty()) reason_ = reason;
    }
    ended_ = true;
    if (!meeting_->failure()) meeting_->fail(reason, code);
  }

  std::string reason() {
    const MutexLock lock(mutex_);
    return fmt::format("rank {} of {} ended the work of all ranks: {}", rank(), size(), reason_);
  }

  std::vector<std::string> gather_as(Call call, std::string_view mine) {
    begin(call);
    std::vector<std::string> texts(static_cast<std::size_t>(size()));
    texts[static_cast<std::size_t>(rank())] = mine;
    if (is_outside()) return texts;
    for (int peer = 0; peer < size(); ++peer) {
      if (peer == rank()) continue;
      send(peer, std::as_bytes(std::span(mine)));
      receive(peer, {.text = &texts[static_cast<std::size_t>(peer)]});
    }
    transfer();
    return texts;
  }

  void begin(Call call) {
    if (std::this_thread::get_id() != thread_)
      throw InternalError(
          "a rank of TCP is called from another thread than the one that opened it");
    if (finished_) throw CommError("the group of TCP ranks has finished");
    do_poll();
    call_ = call;
    ++number_;
  }

  Peer& at(int rank) { return peers_[static_cast<std::size_t>(rank)]; }

  void send(int to, std::span<const std::byte> bytes) {
    at(to).out.push_back({{call_, number_, bytes.size()}, bytes});
  }
  void receive(int from, Receiving one) { at(from).in.push_back(one); }

  /// Returns when all is sent and received.
  void transfer() {
    for (int rank = 0; rank < size(); ++rank) send_some(rank);
    std::vector<pollfd> watched;
    std::vector<int> ranks;
    for (;;) {
      watched.clear();
      ranks.clear();
      for (int rank = 0; rank < size(); ++rank) {
        const Peer& peer = at(rank);
        const int events = (peer.in.empty() ? 0 : POLLIN) | (peer.out.empty() ? 0 : POLLOUT);
        if (events == 0) continue;
        watched.push_back({peer.socket.get(), static_cast<short>(events), 0});
        ranks.push_back(rank);
      }
      if (watched.empty()) return;
      ::poll(watched.data(), watched.size(), kLookMilliseconds);
      do_poll();
      for (std::size_t i = 0; i < ranks.size(); ++i) {
        if ((watched[i].revents & ~POLLOUT) != 0) receive_some(ranks[i]);
        if ((watched[i].revents & ~POLLIN) != 0) send_some(ranks[i]);
      }
    }
  }

  void send_some(int rank) {
    Peer& peer = at(rank);
    while (!peer.out.empty()) {
      Sending& one = peer.out.front();
      const std::size_t of_header = std::min(one.done, sizeof(Header));
      const std::span<const std::byte> rest = one.bytes.subspan(one.done - of_header);
      // Nothing is written through them: sendmsg() knows no other pointers.
      std::array<iovec, 2> parts = {
          {{reinterpret_cast<std::byte*>(&one.header) + of_header, sizeof(Header) - of_header},
           {const_cast<std::byte*>(rest.data()), rest.size()}}};
      msghdr message{};
      message.msg_iov = parts.data();
      message.msg_iovlen = parts.size();
      const ssize_t count = ::sendmsg(peer.socket.get(), &message, MSG_NOSIGNAL | MSG_DONTWAIT);
      if (count < 0 && errno == EINTR) continue;
      if (count < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return;
      if (count < 0) lose(rank, errno);
      one.done += static_cast<std::size_t>(count);
      if (one.done == sizeof(Header) + one.bytes.size()) peer.out.pop_front();
    }
  }

  /// Takes what is meant for this call, and no byte of the next one.
  void receive_some(int rank) {
    Peer& peer = at(rank);
    while (!peer.in.empty()) {
      Receiving& one = peer.in.front();
      const std::span<std::byte> place = place_of(one);
      const ssize_t count = ::recv(peer.socket.get(), place.data(), place.size(), MSG_DONTWAIT);
      if (count < 0 && errno == EINTR) continue;
      if (count < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return;
      if (count <= 0) lose(rank, count == 0 ? 0 : errno);
      one.done += static_cast<std::size_t>(count);
      if (one.done == sizeof(Header)) compare(rank, one);
      if (one.done >= sizeof(Header) && one.done - sizeof(Header) == one.header.bytes)
        peer.in.pop_front();
    }
  }

  static std::span<std::byte> place_of(Receiving& one) {
    if (one.done < sizeof(Header))
      return std::as_writable_bytes(std::span(&one.header, 1)).subspan(one.done);
    const std::span<std::byte> all =
        one.text != nullptr ? std::as_writable_bytes(std::span(*one.text)) : one.bytes;
    return all.subspan(one.done - sizeof(Header));
  }

  void compare(int from, Receiving& one) {
    const Header& header = one.header;
    if (header.call != call_ || header.number != number_)
      throw CommError(
          fmt::format("the ranks make different calls: rank {} {} ({}), rank {} {} ({})", rank(),
                      name_of(call_), number_, from, name_of(header.call), header.number));
    if (one.text != nullptr) {
      if (header.bytes > INT_MAX)
        throw CommError(fmt::format("rank {} sends a text of {} bytes; expected small ones", from,
                                    header.bytes));
      one.text->resize(header.bytes);
    } else if (header.bytes != one.bytes.size()) {
      throw CommError(fmt::format("rank {} sends {} bytes, and rank {} expects {}", from,
                                  header.bytes, rank(), one.bytes.size()));
    }
  }

  /// The meeting knows which rank left, or will.
  [[noreturn]] void lose(int peer, int error) {
    const std::int64_t rank = meeting_->ranks()[static_cast<std::size_t>(peer)];
    meeting_->throw_cause(
        fmt::format("its connection to rank {} {}", rank,
                    error == 0 ? "closed" : "failed: " + std::generic_category().message(error)),
        rank);
  }

  const std::shared_ptr<meet::Meeting> meeting_;
  const std::thread::id thread_ = std::this_thread::get_id();
  std::vector<Peer> peers_;
  Call call_ = Call::kGather;
  std::uint32_t number_ = 0;
  bool finished_ = false;
  static constexpr std::int64_t kNone = -1;
  static constexpr const char* kNew = "new";
  static constexpr const char* kKnown = "known";
  std::int64_t units_ = 0;  ///< that all have done; kNone: a newcomer does not know it yet
  bool is_new_ = false;     ///< this rank has done no unit with the others
  bool commits_ = false;    ///< this rank has come to the end of one more
  std::atomic<bool> ended_ = false;
  Mutex mutex_;
  std::string reason_ SEGFUSE_GUARDED_BY(mutex_);
};

}  // namespace

std::unique_ptr<Group> open_tcp_group(std::shared_ptr<meet::Meeting> meeting) {
  return std::make_unique<TcpGroup>(std::move(meeting));
}

}  // namespace segfuse::comm
