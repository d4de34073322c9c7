#include "comm/group.h"

#include <fmt/core.h>

namespace segfuse::comm {
namespace {

void check_peer(const Group& group, int peer) {
  if (peer < 0 || peer >= group.size() || peer == group.rank())
    throw InternalError(fmt::format("rank {} of {} exchanges bytes with rank {}", group.rank(),
                                    group.size(), peer));
}

}  // namespace

Group::Group(int rank, int size, std::string engine)
    : rank_(rank), size_(size), engine_(std::move(engine)) {}

std::vector<std::string> Group::gather(std::string_view mine) { return do_gather(mine); }

void Group::broadcast(std::span<std::byte> bytes, int root) {
  if (root < 0 || root >= size_)
    throw InternalError(fmt::format("a broadcast from rank {} of {}", root, size_));
  do_broadcast(bytes, root);
}

void Group::barrier() { do_barrier(); }

void Group::exchange(std::span<const Outgoing> out, std::span<const Incoming> in) {
  for (const Outgoing& span : out) check_peer(*this, span.to);
  for (const Incoming& span : in) check_peer(*this, span.from);
  do_exchange(out, in);
}

void Group::finish() { do_finish(); }

void Group::poll() { do_poll(); }

void Group::abort(std::string_view reason, ExitCode code) { do_abort(reason, code); }

void run_rank(Group& group, const std::function<void()>& work) {
  try {
    work();
    group.finish();
  } catch (const Error& error) {
    group.abort(error.what(), error.exit_code());
    throw;
  } catch (const std::exception& error) {
    group.abort(error.what(), ExitCode::kInternal);
    throw;
  } catch (...) {
    group.abort("an exception that is none of std", ExitCode::kInternal);
    throw;
  }
}

}  // namespace segfuse::comm
