#include "comm/nccl/communicator.h"

#include <fmt/core.h>

#include "comm/patience.h"

namespace segfuse::comm {
namespace {

/// What one call of NCCL said, where that is neither success nor "in progress".
struct Refused {
  std::string call;
  NcclResult result;
};

bool is_failure(NcclResult result) {
  return result != NcclResult::kSuccess && result != NcclResult::kInProgress;
}

void check(const char* call, NcclResult result) {
  if (is_failure(result)) throw Refused{call, result};
}

void check(const char* call, int peer, NcclResult result) {
  if (is_failure(result)) throw Refused{fmt::format("{} rank {}", call, peer), result};
}

}  // namespace

Communicator::Communicator(const NcclApi& api, const NcclId& id, Group& control,
                           std::chrono::milliseconds limit)
    : api_(api), control_(control), limit_(limit) {
  make([&] {
    NcclConfig config;
    config.blocking = 0;
    check("ncclCommInitRankConfig",
          api_.init_rank(&comm_, control_.size(), id, control_.rank(), &config));
  });
  lookout_ = std::make_unique<Lookout>([this] { return goes_on(); });
  settle("the start of a communicator");
}

Communicator::~Communicator() { abort("it left without finishing"); }

void Communicator::Calls::send(const float* from, std::int64_t words, int to) const {
  check("ncclSend to", to,
        comm_.api_.send(from, static_cast<std::size_t>(words), kNcclFloat32, to, comm_.comm_,
                        stream_));
}

void Communicator::Calls::receive(float* to, std::int64_t words, int from) const {
  check("ncclRecv from", from,
        comm_.api_.receive(to, static_cast<std::size_t>(words), kNcclFloat32, from, comm_.comm_,
                           stream_));
}

void Communicator::Calls::all_gather(const float* mine, float* all, std::int64_t words) const {
  check("ncclAllGather", comm_.api_.all_gather(mine, all, static_cast<std::size_t>(words),
                                               kNcclFloat32, comm_.comm_, stream_));
}

void Communicator::enqueue(const char* what, NcclStream stream,
                           const std::function<void(const Calls&)>& calls) {
  make([&] {
    check("ncclGroupStart", api_.group_start());
    try {
      calls(Calls(*this, stream));
    } catch (...) {
      // The thread is in a group until it says otherwise, and so would be the next caller.
      static_cast<void>(api_.group_end());
      throw;
    }
    check("ncclGroupEnd", api_.group_end());
  });
  settle(what);
}

void Communicator::look() {
  const NcclResult now = state();
  if (is_failure(now)) fail(sentence("work on the GPU", now));
}

void Communicator::finish() {
  make([&] { check("ncclCommFinalize", api_.finalize(comm_)); });
  settle("the end of a communicator");
  lookout_.reset();
  make([&] {
    check("ncclCommDestroy", api_.destroy(comm_));
    comm_ = nullptr;
  });
  abort("the communicator has finished");
}

void Communicator::abort(std::string_view reason) noexcept {
  const MutexLock lock(mutex_);
  end(reason);
}

/// Makes calls of NCCL, which come back at once.
void Communicator::make(const std::function<void()>& calls) {
  try {
    const MutexLock lock(mutex_);
    throw_if_over();
    calls();
  } catch (const Refused& refused) {
    fail(sentence(refused.call, refused.result));
  }
}

/// Returns when NCCL has done what the last calls asked for.
void Communicator::settle(std::string_view what) {
  const auto begin = std::chrono::steady_clock::now();
  for (Patience patience;; patience.rest()) {
    const NcclResult now = state();
    if (now == NcclResult::kSuccess) return;
    if (is_failure(now)) fail(sentence(what, now));
    const std::chrono::duration<double> waited = std::chrono::steady_clock::now() - begin;
    if (limit_.count() != 0 && waited > limit_)
      fail(
          fmt::format("{} is still in progress on rank {} of {} (NCCL {}) after {:.1f} s: another "
                      "rank has not joined",
                      what, control_.rank(), control_.size(), api_.version, waited.count()));
  }
}

NcclResult Communicator::state() {
  const MutexLock lock(mutex_);
  throw_if_over();
  NcclResult now = NcclResult::kSuccess;
  const NcclResult asked = api_.get_async_error(comm_, &now);
  return is_failure(asked) ? asked : now;
}

/// Whether no rank is lost; if one is, this rank's NCCL ends.
bool Communicator::goes_on() noexcept {
  try {
    control_.poll();
    return true;
  } catch (const std::exception& error) {
    abort(error.what());
    return false;
  }
}

void Communicator::fail(const std::string& reason) {
  const MutexLock lock(mutex_);
  end(reason);
  throw CommError(ended_by_);
}

void Communicator::throw_if_over() {
  if (over_) throw CommError(ended_by_);
}

// Where there is no memory for the reason, the process ends.
void Communicator::end(std::string_view reason) noexcept {
  if (over_) return;
  over_ = true;
  ended_by_ = reason;
  // What it says changes nothing: the communicator is not touched again.
  if (comm_ != nullptr) static_cast<void>(api_.abort(comm_));
  comm_ = nullptr;
}

/// What went wrong: NCCL's error, unless another rank has said why it left.
std::string Communicator::sentence(std::string_view call, NcclResult result) {
  static_cast<void>(goes_on());
  const MutexLock lock(mutex_);
  throw_if_over();
  const char* const more =
      api_.last_error != nullptr && comm_ != nullptr ? api_.last_error(comm_) : nullptr;
  return fmt::format("{} failed on rank {} of {} (NCCL {}): {}{}", call, control_.rank(),
                     control_.size(), api_.version, api_.error_text(result),
                     more == nullptr || *more == '\0' ? "" : fmt::format(" ({})", more));
}

}  // namespace segfuse::comm
