#pragma once
// One rank's communicator of NCCL. It is non-blocking: its calls come back while NCCL still works
// on them in a thread of its own, so each is looked after here until it is done. Meanwhile another
// thread asks the control group whether a rank has failed: NCCL itself often does not notice.

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "base/mutex.h"
#include "comm/group.h"
#include "comm/lookout.h"
#include "comm/nccl/nccl_api.h"

namespace segfuse::comm {

class Communicator {
 public:
  /// Joins the ranks of `control`, which all make one with the same id; the device that is current
  /// is this rank's. `limit`: how long NCCL may work on one call, which includes the wait for the
  /// other ranks; 0: forever. CommError. `api` and `control` outlive it.
  Communicator(const NcclApi& api, const NcclId& id, Group& control,
               std::chrono::milliseconds limit);
  /// Aborts, unless it has finished.
  ~Communicator();
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  /// The calls of one group, inside enqueue(). Numbers of words; f32.
  class Calls {
   public:
    void send(const float* from, std::int64_t words, int to) const;
    void receive(float* to, std::int64_t words, int from) const;
    void all_gather(const float* mine, float* all, std::int64_t words) const;

   private:
    friend class Communicator;
    Calls(const Communicator& comm, NcclStream stream) : comm_(comm), stream_(stream) {}
    const Communicator& comm_;
    NcclStream stream_;
  };

  /// Makes the calls as one group. When it returns NCCL has put them on the stream, and not before:
  /// an event that is recorded now stands for them. CommError with what went wrong first; NCCL is
  /// aborted then and no later call succeeds.
  void enqueue(const char* what, NcclStream stream, const std::function<void(const Calls&)>& calls);

  /// Throws the error that NCCL or another rank has met, if one is known.
  void look();

  /// The last call of all ranks, after their work is done.
  void finish();

  /// Ends what this rank's NCCL does: work on the stream ends, and calls, pending and later ones,
  /// throw a CommError with the first reason. Any thread.
  void abort(std::string_view reason) noexcept;

 private:
  void make(const std::function<void()>& calls);
  void settle(std::string_view what);
  NcclResult state();
  bool goes_on() noexcept;
  [[noreturn]] void fail(const std::string& reason);
  void throw_if_over() SEGFUSE_REQUIRES(mutex_);
  void end(std::string_view reason) noexcept SEGFUSE_REQUIRES(mutex_);
  std::string sentence(std::string_view call, NcclResult result);

  const NcclApi& api_;
  Group& control_;
  const std::chrono::milliseconds limit_;
  /// Held over each call of NCCL on the communicator, and over a whole group; never while this rank
  /// waits for others.
  Mutex mutex_;
  NcclComm comm_ = nullptr;  ///< touched with the mutex held and until `over_` only
  bool over_ SEGFUSE_GUARDED_BY(mutex_) = false;
  std::string ended_by_ SEGFUSE_GUARDED_BY(mutex_);  ///< the first reason
  std::unique_ptr<Lookout> lookout_;                 ///< until the last call
};

}  // namespace segfuse::comm
