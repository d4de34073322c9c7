#include "comm/mpi/mpi_group.h"

#include <fmt/core.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <climits>
#include <cstdio>
#include <thread>

#include "base/mutex.h"
#include "comm/mpi/choice.h"
#include "comm/patience.h"

namespace segfuse::comm {
namespace {

/// "Open MPI v4.1.4" or "MPICH 5.0.2" of the first line of what MPI says about itself.
std::string short_version(const SegfuseMpiTable& mpi) {
  char text[512] = "";
  mpi.library_version(text, sizeof(text));
  const std::string_view all(text);
  std::string name;
  for (const char c : all.substr(0, all.find_first_of(",\n"))) {
    const bool blank = c == ' ' || c == '\t' || c == ':';
    if (!blank)
      name += c;
    else if (!name.empty() && name.back() != ' ')
      name += ' ';
  }
  constexpr std::string_view kWord = "Version ";
  if (const std::size_t at = name.find(kWord); at != std::string::npos)
    name.erase(at, kWord.size());
  return name;
}

std::string error_text(const SegfuseMpiTable& mpi, int code) {
  char text[512] = "";
  mpi.error_text(code, text, sizeof(text));
  return text;
}

/// Says it on stderr. A launcher that ends a job may drop what it has not read by then, so this
/// waits until it has; for some seconds at most, since the reader may be anybody.
void say(const std::string& sentence) {
  std::fprintf(stderr, "segfuse: %s\n", sentence.c_str());
  std::fflush(stderr);
  struct stat kind{};
  if (::fstat(STDERR_FILENO, &kind) != 0 || !S_ISFIFO(kind.st_mode)) return;
  Patience patience;
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(5);
  for (int unread = 1; std::chrono::steady_clock::now() < end; patience.rest())
    if (::ioctl(STDERR_FILENO, FIONREAD, &unread) != 0 || unread == 0) return;
}

/// A message or a collective that is under way.
struct Pending {
  SegfuseMpiRequest request = 0;
  const char* what = "";  ///< MPI's function
  int peer = -1;          ///< -1: all ranks
  int expected = -1;      ///< bytes to be received; -1: it is no receive
};

class MpiGroup final : public Group {
 public:
  MpiGroup(const SegfuseMpiTable& mpi, int rank, int size, const MpiOptions& options)
      : Group(rank, size, short_version(mpi)), mpi_(mpi), options_(options) {}

  ~MpiGroup() override {
    if (finished_) return;
    try {
      do_abort(failed_.empty() ? "it left without finishing" : failed_, ExitCode::kDevice);
    } catch (...) {  // no memory for the sentence
      mpi_.abort(static_cast<int>(ExitCode::kDevice));
    }
  }

 private:
  std::vector<std::string> do_gather(std::string_view mine) override {
    enter();
    const auto ranks = static_cast<std::size_t>(size());
    const auto own = static_cast<std::int64_t>(mine.size());
    std::vector<std::int64_t> lengths(ranks);
    wait_for("MPI_Iallgather", [&](SegfuseMpiRequest* request) {
      return mpi_.gather(&own, sizeof(own), lengths.data(), request);
    });
    std::int64_t total = 0;
    std::vector<int> sizes;
    std::vector<int> offsets;
    for (const std::int64_t length : lengths) {
      if (length > INT_MAX - total)
        fail("the texts of all ranks are longer than 2 GiB together; expected small ones");
      sizes.push_back(static_cast<int>(length));
      offsets.push_back(static_cast<int>(total));
      total += length;
    }
    std::string all(static_cast<std::size_t>(total), '\0');
    wait_for("MPI_Iallgatherv", [&](SegfuseMpiRequest* request) {
      return mpi_.gather_sizes(mine.data(), static_cast<int>(own), all.data(), sizes.data(),
                               offsets.data(), request);
    });
    std::vector<std::string> texts;
    for (std::size_t r = 0; r < ranks; ++r)
      texts.push_back(
          all.substr(static_cast<std::size_t>(offsets[r]), static_cast<std::size_t>(sizes[r])));
    return texts;
  }

  void do_broadcast(std::span<std::byte> bytes, int root) override {
    enter();
    for_pieces(bytes, [&](std::span<std::byte> piece) {
      wait_for("MPI_Ibcast", [&](SegfuseMpiRequest* request) {
        return mpi_.broadcast(piece.data(), static_cast<int>(piece.size()), root, request);
      });
    });
  }

  void do_barrier() override {
    enter();
    wait_for("MPI_Ibarrier", [&](SegfuseMpiRequest* request) { return mpi_.barrier(request); });
  }

  void do_exchange(std::span<const Outgoing> out, std::span<const Incoming> in) override {
    enter();
    std::vector<Pending> pending;
    for (const Incoming& span : in)
      for_pieces(span.bytes, [&](std::span<std::byte> piece) {
        Pending one{0, "MPI_Irecv", span.from, static_cast<int>(piece.size())};
        begin(mpi_.receive(piece.data(), one.expected, one.peer, &one.request), one);
        pending.push_back(one);
      });
    for (const Outgoing& span : out)
      for_pieces(span.bytes, [&](std::span<const std::byte> piece) {
        Pending one{0, "MPI_Isend", span.to};
        begin(mpi_.send(piece.data(), static_cast<int>(piece.size()), one.peer, &one.request), one);
        pending.push_back(one);
      });
    wait(pending);
  }

  void do_finish() override {
    do_barrier();  // MPI_Finalize waits for the others as well, but at full speed
    finished_ = true;
    if (const int code = mpi_.stop(); code != 0)
      throw CommError(sentence("MPI_Finalize", -1, code));
  }

  void do_poll() override {
    if (std::this_thread::get_id() == thread_) {
      if (!failed_.empty()) throw CommError(failed_);
      look_for_orders();
    } else if (ordered_.load()) {
      throw CommError(first_order().reason);
    }
  }

  void do_abort(std::string_view reason, ExitCode code) override {
    {
      const MutexLock lock(mutex_);
      if (order_.reason.empty())
        order_ = {
            fmt::format("rank {} of {} ended the work of all ranks: {}", rank(), size(), reason),
            code};
    }
    ordered_.store(true);
    if (std::this_thread::get_id() == thread_) obey();
  }

  /// Ends all ranks, as abort() wants it.
  void obey() {
    if (finished_) return;
    const Order order = first_order();
    say(order.reason);
    mpi_.abort(static_cast<int>(order.code));
  }

  void enter() {
    if (std::this_thread::get_id() != thread_)
      throw InternalError("MPI is called from another thread than the one that opened it");
    if (!failed_.empty()) throw CommError(failed_);
    if (finished_) throw CommError("the group of MPI ranks has finished");
    look_for_orders();
  }

  void look_for_orders() {
    if (!ordered_.load()) return;
    obey();
    throw CommError(first_order().reason);  // where MPI_Abort returned
  }

  [[noreturn]] void fail(std::string message) {
    failed_ = std::move(message);
    throw CommError(failed_);
  }

  std::string sentence(const char* what, int peer, int code) const {
    return fmt::format("{} {} failed on rank {} ({}): {}", what,
                       peer < 0 ? "of all ranks" : fmt::format("with rank {}", peer), rank(),
                       engine(), error_text(mpi_, code));
  }

  void begin(int code, const Pending& one) {
    if (code != 0) fail(sentence(one.what, one.peer, code));
  }

  template <class Byte, class Body>
  void for_pieces(std::span<Byte> bytes, const Body& body) const {
    const auto most = static_cast<std::size_t>(options_.largest_message);
    do {  // an empty span is a message as well: a rank that expects more hears of it
      const std::size_t size = std::min(most, bytes.size());
      body(bytes.first(size));
      bytes = bytes.subspan(size);
    } while (!bytes.empty());
  }

  template <class Begin>
  void wait_for(const char* what, const Begin& call) {
    std::vector<Pending> pending = {{0, what}};
    begin(call(&pending.front().request), pending.front());
    wait(pending);
  }

  /// Looks after all until none is left; each look lets MPI go on with its work.
  void wait(std::vector<Pending>& pending) {
    Patience patience;
    while (!pending.empty()) {
      look_for_orders();
      const std::size_t left = std::erase_if(pending, [&](Pending& one) { return is_done(one); });
      if (left != 0)
        patience.start_again();
      else
        patience.rest();
    }
  }

  bool is_done(Pending& one) {
    int done = 0;
    int received = 0;
    const int code = mpi_.test(&one.request, &done, one.expected < 0 ? nullptr : &received);
    if (code != 0) fail(sentence(one.what, one.peer, code));
    if (done != 0 && one.expected >= 0 && received != one.expected)
      fail(fmt::format("rank {} sends {} bytes, and rank {} expects {}", one.peer, received, rank(),
                       one.expected));
    return done != 0;
  }

  struct Order {
    std::string reason;
    ExitCode code = ExitCode::kDevice;
  };
  Order first_order() {
    const MutexLock lock(mutex_);
    return order_;
  }

  const SegfuseMpiTable& mpi_;
  const MpiOptions options_;
  const std::thread::id thread_ = std::this_thread::get_id();
  std::string failed_;  // the first error; requests may be left, so nothing but abort follows
  bool finished_ = false;
  std::atomic<bool> ordered_ = false;
  Mutex mutex_;
  Order order_ SEGFUSE_GUARDED_BY(mutex_);
};

/// Throws if MPI does not see the ranks that its launcher started.
void compare_with_launcher(const ChosenMpi& chosen, int size) {
  const MpiLauncher& launcher = chosen.launcher;
  if (launcher.ranks == 0 || launcher.ranks == size) return;
  throw CommError(fmt::format(
      "{} started {} ranks ({}), and {} ({}) sees {}: it is another MPI; start segfuse with the "
      "mpiexec of that MPI, or name the launcher's library in SEGFUSE_MPI",
      launcher.name, launcher.ranks, launcher.variable, short_version(*chosen.table), chosen.where,
      size));
}

}  // namespace

std::unique_ptr<Group> open_mpi_group(const MpiOptions& options) {
  const ChosenMpi chosen = choose_mpi();
  const SegfuseMpiTable& mpi = *chosen.table;
  const auto check = [&](int code, const char* what) {
    if (code != 0)
      throw CommError(fmt::format("{} of {} ({}) failed: {}", what, short_version(mpi),
                                  chosen.where, error_text(mpi, code)));
  };
  int state = 0;
  check(mpi.start(&state), "the start");
  if (state == kSegfuseMpiOver)
    throw CommError("MPI was ended in this process, and it starts once only");
  if (state == kSegfuseMpiThreads)
    throw CommError(
        fmt::format("{} ({}) does not allow threads beside its own (MPI_THREAD_FUNNELED)",
                    short_version(mpi), chosen.where));
  int rank = 0;
  int size = 0;
  check(mpi.place(&rank, &size), "MPI_Comm_rank");
  try {
    compare_with_launcher(chosen, size);
  } catch (...) {
    static_cast<void>(mpi.stop());
    throw;
  }
  return std::make_unique<MpiGroup>(mpi, rank, size, options);
}

}  // namespace segfuse::comm
