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
    : rank_(rank), size_(size), first_size_(size), engine_(std::move(engine)) {}

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

void Group::commit() { do_commit(); }

bool Group::regroup() { return do_regroup(); }

bool Group::do_regroup() {
  throw InternalError(fmt::format("ranks of {} cannot go on without one that is lost", engine_));
}

void Group::set_place(int rank, int size, std::int64_t generation) {
  rank_ = rank;
  size_ = size;
  generation_ = generation;
}

void Group::leave_note(const std::string& name, const std::string& text) {
  if (goes_on_) do_leave_note(name, text);
}

std::string Group::note(const std::string& name) { return do_note(name); }

std::string Group::do_note(const std::string& name) {
  throw InternalError(fmt::format("a rank of {} asks for the note '{}'", engine_, name));
}

bool Group::somebody_waits() { return do_somebody_waits(); }

void Group::take_in() { do_take_in(); }

void Group::poll() { do_poll(); }

void Group::abort(std::string_view reason, ExitCode code) { do_abort(reason, code); }

void together(Group& group, const std::function<void()>& work) {
  if (group.in_unit_) return work();
  struct Unit {
    explicit Unit(bool& flag) : open(flag) { open = true; }
    ~Unit() { open = false; }
    Unit(const Unit&) = delete;
    Unit& operator=(const Unit&) = delete;
    bool& open;
  };
  const Unit unit(group.in_unit_);
  for (;;) {
    try {
      work();
      return group.commit();
    } catch (const RanksChanged&) {
      // Outside: regroup() may throw what ends this rank.
    }
    if (group.regroup()) return;
  }
}

void run_rank(Group& group, const std::function<void()>& work) {
  try {
    work();
    together(group, [&] { group.finish(); });
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
