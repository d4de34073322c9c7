// NCCL between threads of one process, with its rules: communicators are non-blocking, nothing is
// called on one that is in progress, groups end on the thread that began them, and a rank whose
// peers do not come is never told so. Declarations are the documentation's, written once more.

#include "support/system/fake_nccl.h"

#include <algorithm>
#include <climits>
#include <condition_variable>
#include <cstddef>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

#define API extern "C" __attribute__((visibility("default")))

struct ncclUniqueId {
  char internal[128];
};
struct ncclConfig_t {  // as of 2.20
  std::size_t size;
  unsigned int magic;
  unsigned int version;
  int blocking;
  int cgaClusterSize;
  int minCTAs;
  int maxCTAs;
  const char* netName;
  int splitShare;
};
enum ncclResult_t {
  ncclSuccess = 0,
  ncclSystemError = 2,
  ncclInvalidArgument = 4,
  ncclInvalidUsage = 5,
  ncclRemoteError = 6,
  ncclInProgress = 7
};
constexpr int ncclFloat32 = 7;

namespace segfuse::test {
namespace {

using Lock = std::unique_lock<std::mutex>;

/// The ranks that know one id.
struct Clique {
  int ranks = 0;
  int joined = 0;
  /// Sent and not received, by (from, to, whether it is part of a gather).
  std::map<std::tuple<int, int, bool>, std::deque<std::vector<std::byte>>> mail;
};

/// One transfer of a group.
struct Transfer {
  int peer = 0;
  bool gathers = false;
  const std::byte* from = nullptr;  ///< null: it receives
  std::byte* to = nullptr;
  std::size_t bytes = 0;
  bool done = false;
};

/// What a group asks for: sends first.
struct Group {
  std::vector<Transfer> transfers;
  void* stream = nullptr;
};

struct Comm {
  std::shared_ptr<Clique> clique;
  int rank = 0;
  std::vector<std::shared_ptr<Group>> waiting;  ///< not on their stream, or not done, yet
  int on_streams = 0;                           ///< groups whose work is not over
  int asked = 0;                                ///< since the last call
  bool joining = true;
  bool finalized = false;
  bool aborted = false;
  bool stuck = false;
  ncclResult_t error = ncclSuccess;
};

struct RankCalls {
  std::vector<std::string> names;
  std::uint64_t fail_at = 0;
  FakeFault how = FakeFault::kAtOnce;
};

struct World {
  std::mutex mutex;
  std::condition_variable changed;
  int version = 22809;
  FakeEnqueue enqueue;
  int asked = 0;
  std::map<int, RankCalls> calls;
  std::function<void()> on_stuck;
  std::string misuse;
  std::map<Comm*, std::shared_ptr<Comm>> comms;
  std::map<std::string, std::shared_ptr<Clique>> cliques;
  int ids = 0;
};

World& world() {
  static World all;
  return all;
}

thread_local int rank_of_thread = -1;
thread_local int depth = 0;
thread_local std::map<std::shared_ptr<Comm>, std::shared_ptr<Group>> open_group;
thread_local std::optional<FakeFault> group_fault;
thread_local ncclResult_t group_error = ncclSuccess;

ncclResult_t misuse(const std::string& what) {
  if (world().misuse.empty()) world().misuse = what;
  return ncclInvalidUsage;
}

/// Counts a call; says what it is to return at once, if it fails so. `later` becomes how it fails
/// otherwise.
ncclResult_t begin_call(const char* name, std::optional<FakeFault>* later = nullptr) {
  const auto found = world().calls.find(rank_of_thread);
  if (found == world().calls.end()) return ncclSuccess;
  RankCalls& calls = found->second;
  calls.names.emplace_back(name);
  if (calls.fail_at != calls.names.size()) return ncclSuccess;
  // Without a communicator there is nothing to be asked later.
  if (calls.how == FakeFault::kAtOnce || later == nullptr) return ncclSystemError;
  *later = calls.how;
  return ncclSuccess;
}

void break_comm(Comm& comm, std::optional<FakeFault> how) {
  if (how == FakeFault::kLater) comm.error = ncclRemoteError;
  if (how == FakeFault::kNever) comm.stuck = true;
}

std::shared_ptr<Comm> find(Comm* comm) {
  const auto found = world().comms.find(comm);
  return found == world().comms.end() ? nullptr : found->second;
}

bool in_progress(const Comm& comm) {
  return comm.stuck || comm.joining || !comm.waiting.empty() ||
         (comm.finalized && comm.on_streams > 0);
}

void send(Comm& comm, Group& group) {
  for (Transfer& transfer : group.transfers) {
    if (transfer.from == nullptr || transfer.done) continue;
    comm.clique->mail[{comm.rank, transfer.peer, transfer.gathers}].emplace_back(
        transfer.from, transfer.from + transfer.bytes);
    transfer.done = true;
  }
  world().changed.notify_all();
}

/// Whether all has come.
bool receive(Comm& comm, Group& group) {
  bool all = true;
  for (Transfer& transfer : group.transfers) {
    if (transfer.done) continue;
    auto& mail = comm.clique->mail[{transfer.peer, comm.rank, transfer.gathers}];
    // Those of one peer come in their order.
    if (mail.empty()) {
      all = false;
      break;
    }
    if (mail.front().size() != transfer.bytes) {
      comm.error = ncclInvalidUsage;
      break;
    }
    if (transfer.bytes > 0) std::memcpy(transfer.to, mail.front().data(), transfer.bytes);
    mail.pop_front();
    transfer.done = true;
  }
  return all;
}

/// As a kernel on the stream: it ends when all has come, or when its rank aborts.
void run_on_stream(const std::shared_ptr<Comm>& comm, const std::shared_ptr<Group>& group) {
  Lock lock(world().mutex);
  if (!comm->aborted) send(*comm, *group);
  while (!comm->aborted && !receive(*comm, *group)) world().changed.wait(lock);
  --comm->on_streams;
}

void advance(const std::shared_ptr<Comm>& comm, Lock& lock) {
  if (comm->joining && comm->clique->joined == comm->clique->ranks) comm->joining = false;
  if (comm->waiting.empty()) return;
  const auto groups = comm->waiting;
  if (!world().enqueue) {
    for (const auto& group : groups) send(*comm, *group);
    if (std::ranges::all_of(groups, [&](const auto& group) { return receive(*comm, *group); }))
      comm->waiting.clear();
    return;
  }
  comm->on_streams += static_cast<int>(groups.size());
  const FakeEnqueue enqueue = world().enqueue;
  lock.unlock();
  for (const auto& group : groups)
    enqueue(group->stream, [comm, group] { run_on_stream(comm, group); });
  lock.lock();
  comm->waiting.clear();
}

/// A call on a communicator that may be made now; what it returns, otherwise.
template <class Body>
ncclResult_t on_comm(const char* name, Comm* handle, const Body& body) {
  const Lock lock(world().mutex);
  std::optional<FakeFault> later;
  if (const ncclResult_t result = begin_call(name, &later); result != ncclSuccess) return result;
  const std::shared_ptr<Comm> comm = find(handle);
  if (comm == nullptr) return misuse(std::string(name) + " on a communicator that is gone");
  if (in_progress(*comm)) return misuse(std::string(name) + " while another call is in progress");
  comm->asked = 0;
  if (depth > 0) {  // what goes wrong later does so when the group has ended
    open_group.try_emplace(comm);
    if (later) group_fault = later;
  } else {
    break_comm(*comm, later);
    if (later) return ncclSuccess;
  }
  return body(comm);
}

Group& group_of(const std::shared_ptr<Comm>& comm, void* stream) {
  auto& group = open_group[comm];
  if (group == nullptr) group = std::make_shared<Group>();
  group->stream = stream;
  return *group;
}

/// A send, a receive or a gather: part of a group.
template <class Body>
ncclResult_t transfer(const char* name, Comm* handle, int type, void* stream, const Body& body) {
  const ncclResult_t result = on_comm(name, handle, [&](const std::shared_ptr<Comm>& comm) {
    if (depth == 0) return misuse(std::string(name) + " outside of a group");
    if (type != ncclFloat32) return misuse(std::string(name) + " of another type");
    body(*comm, group_of(comm, stream));
    return ncclSuccess;
  });
  if (result != ncclSuccess) group_error = result;
  return result;
}

const FakeNccl kControl = {[] {
                             const Lock lock(world().mutex);
                             world().version = 22809;
                             world().enqueue = nullptr;
                             world().asked = 0;
                             world().calls.clear();
                             world().on_stuck = nullptr;
                             world().misuse.clear();
                           },
                           [](int version) {
                             const Lock lock(world().mutex);
                             world().version = version;
                           },
                           [](FakeEnqueue enqueue, int asked) {
                             const Lock lock(world().mutex);
                             world().enqueue = std::move(enqueue);
                             world().asked = asked;
                           },
                           [](int rank) {
                             const Lock lock(world().mutex);
                             rank_of_thread = rank;
                             world().calls[rank].names.clear();
                           },
                           [](int rank, std::uint64_t k, FakeFault how) {
                             const Lock lock(world().mutex);
                             world().calls[rank].fail_at = k;
                             world().calls[rank].how = how;
                           },
                           [](int rank) {
                             const Lock lock(world().mutex);
                             return static_cast<std::uint64_t>(world().calls[rank].names.size());
                           },
                           [](int rank, std::uint64_t k) {
                             const Lock lock(world().mutex);
                             return world().calls[rank].names.at(k - 1);
                           },
                           [](std::function<void()> notify) {
                             const Lock lock(world().mutex);
                             world().on_stuck = std::move(notify);
                           },
                           [] {
                             const Lock lock(world().mutex);
                             return static_cast<int>(world().comms.size());
                           },
                           [] {
                             const Lock lock(world().mutex);
                             return world().misuse;
                           },
                           [] { return depth > 0; }};

ncclResult_t forget(Comm* handle) {
  world().comms.erase(handle);
  world().changed.notify_all();
  return ncclSuccess;
}

}  // namespace
}  // namespace segfuse::test

using namespace segfuse::test;

API const FakeNccl* fake_nccl() { return &kControl; }

API ncclResult_t ncclGetVersion(int* version) {
  const Lock lock(world().mutex);
  *version = world().version;
  return ncclSuccess;
}

#ifndef FAKE_NCCL_BARE
API const char* ncclGetLastError(Comm*) { return "as the test wants it"; }
#endif

API const char* ncclGetErrorString(ncclResult_t result) {
  switch (result) {
    case ncclSystemError: return "unhandled system error";
    case ncclInvalidUsage: return "invalid usage";
    case ncclRemoteError: return "remote process exited or there was a network error";
    default: return "another error";
  }
}

API ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  const Lock lock(world().mutex);
  if (const ncclResult_t result = begin_call("ncclGetUniqueId"); result != ncclSuccess)
    return result;
  std::memset(id->internal, 0x5a, sizeof(id->internal));
  const std::string number = std::to_string(++world().ids);
  std::memcpy(id->internal + 100, number.c_str(), number.size() + 1);
  return ncclSuccess;
}

API ncclResult_t ncclCommInitRankConfig(Comm** handle, int ranks, ncclUniqueId id, int rank,
                                        ncclConfig_t* config) {
  const Lock lock(world().mutex);
  std::optional<FakeFault> later;
  if (const ncclResult_t result = begin_call("ncclCommInitRankConfig", &later);
      result != ncclSuccess)
    return result;
  if (config->size != sizeof(ncclConfig_t) || config->magic != 0xcafebeef ||
      config->version < 22000 || config->blocking != 0 || config->splitShare != INT_MIN ||
      config->netName != nullptr)
    return misuse("a configuration that is none");
  if (rank < 0 || rank >= ranks) return misuse("a rank that is none");
  auto& clique = world().cliques[std::string(id.internal, sizeof(id.internal))];
  if (clique == nullptr) clique = std::make_shared<Clique>();
  clique->ranks = ranks;
  const auto comm = std::make_shared<Comm>();
  comm->clique = clique;
  comm->rank = rank;
  ++clique->joined;
  break_comm(*comm, later);
  world().comms[comm.get()] = comm;
  *handle = comm.get();
  return ncclInProgress;
}

API ncclResult_t ncclCommGetAsyncError(Comm* handle, ncclResult_t* result) {
  std::function<void()> tell;
  {
    Lock lock(world().mutex);
    const std::shared_ptr<Comm> comm = find(handle);
    if (comm == nullptr) return misuse("ncclCommGetAsyncError on a communicator that is gone");
    if (!comm->stuck && comm->asked++ >= world().asked) advance(comm, lock);
    *result = comm->error != ncclSuccess ? comm->error
              : in_progress(*comm)       ? ncclInProgress
                                         : ncclSuccess;
    if (comm->stuck) tell = std::exchange(world().on_stuck, nullptr);
  }
  if (tell) tell();
  return ncclSuccess;
}

API ncclResult_t ncclCommFinalize(Comm* handle) {
  return on_comm("ncclCommFinalize", handle, [](const std::shared_ptr<Comm>& comm) {
    comm->finalized = true;
    return in_progress(*comm) ? ncclInProgress : ncclSuccess;
  });
}

API ncclResult_t ncclCommDestroy(Comm* handle) {
  const ncclResult_t result =
      on_comm("ncclCommDestroy", handle, [](const std::shared_ptr<Comm>& comm) {
        return comm->finalized ? ncclSuccess : misuse("ncclCommDestroy before ncclCommFinalize");
      });
  const Lock lock(world().mutex);
  return result == ncclSuccess ? forget(handle) : result;
}

API ncclResult_t ncclCommAbort(Comm* handle) {
  const Lock lock(world().mutex);
  const std::shared_ptr<Comm> comm = find(handle);
  if (comm == nullptr) return misuse("ncclCommAbort on a communicator that is gone");
  if (depth > 0) misuse("ncclCommAbort inside a group");
  comm->aborted = true;
  return forget(handle);
}

API ncclResult_t ncclGroupStart() {
  const Lock lock(world().mutex);
  if (const ncclResult_t result = begin_call("ncclGroupStart"); result != ncclSuccess)
    return result;
  ++depth;
  return ncclSuccess;
}

API ncclResult_t ncclGroupEnd() {
  const Lock lock(world().mutex);
  if (depth == 0) return misuse("ncclGroupEnd outside of a group");
  --depth;
  const auto groups = std::exchange(open_group, {});
  const ncclResult_t error = std::exchange(group_error, ncclSuccess);
  std::optional<FakeFault> later = std::exchange(group_fault, std::nullopt);
  if (const ncclResult_t result = begin_call("ncclGroupEnd", &later); result != ncclSuccess)
    return result;
  if (error != ncclSuccess) return error;
  for (const auto& [comm, group] : groups) {
    break_comm(*comm, later);
    if (group == nullptr || group->transfers.empty() || comm->stuck) continue;
    std::ranges::stable_partition(group->transfers,
                                  [](const Transfer& one) { return one.from != nullptr; });
    comm->waiting.push_back(group);
  }
  return groups.empty() ? ncclSuccess : ncclInProgress;
}

API ncclResult_t ncclSend(const void* from, std::size_t count, int type, int peer, Comm* comm,
                          void* stream) {
  return transfer("ncclSend", comm, type, stream, [&](Comm&, Group& group) {
    group.transfers.push_back({.peer = peer,
                               .from = static_cast<const std::byte*>(from),
                               .bytes = count * sizeof(float)});
  });
}

API ncclResult_t ncclRecv(void* to, std::size_t count, int type, int peer, Comm* comm,
                          void* stream) {
  return transfer("ncclRecv", comm, type, stream, [&](Comm&, Group& group) {
    group.transfers.push_back(
        {.peer = peer, .to = static_cast<std::byte*>(to), .bytes = count * sizeof(float)});
  });
}

API ncclResult_t ncclAllGather(const void* mine, void* all, std::size_t count, int type,
                               Comm* handle, void* stream) {
  return transfer("ncclAllGather", handle, type, stream, [&](Comm& comm, Group& group) {
    const std::size_t bytes = count * sizeof(float);
    for (int peer = 0; peer < comm.clique->ranks; ++peer) {
      group.transfers.push_back({.peer = peer,
                                 .gathers = true,
                                 .from = static_cast<const std::byte*>(mine),
                                 .bytes = bytes});
      group.transfers.push_back(
          {.peer = peer,
           .gathers = true,
           .to = static_cast<std::byte*>(all) + bytes * static_cast<std::size_t>(peer),
           .bytes = bytes});
    }
  });
}
