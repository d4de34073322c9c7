#include "learn/train/loop/ranks.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <exception>

#include "base/console/log.h"
#include "comm/group.h"
#include "comm/tree_exchange.h"
#include "learn/train/loop/company.h"
#include "learn/train/loop/stragglers.h"
#include "learn/train/loop/watch.h"
#include "segfuse/error.h"

namespace segfuse::learn {

bool TrainingRanks::leads() const { return rank_of(group_) == 0; }

void TrainingRanks::report(comm::meet::Phase phase, std::int64_t step, std::int64_t shard) const {
  if (watch_ != nullptr) watch_->report(phase, step, shard);
}

comm::ShardRange TrainingRanks::shards() const { return shards_; }

void TrainingRanks::together(const std::function<void()>& work) const {
  learn::together(group_, work);
}

bool TrainingRanks::is_outside() const { return !alone() && group_->is_outside(); }

void TrainingRanks::take_in(const std::function<std::string()>& state,
                            const std::function<void(std::string)>& take) {
  together([&] {
    group_->take_in();
    const std::vector<int>& newcomers = group_->newcomers();
    if (newcomers.empty()) return;
    std::string bytes = leads() ? state() : "";
    std::uint64_t size = bytes.size();
    group_->broadcast(std::as_writable_bytes(std::span(&size, 1)), 0);
    std::vector<comm::Outgoing> out;
    std::vector<comm::Incoming> in;
    if (leads())
      for (const int rank : newcomers) out.push_back({rank, std::as_bytes(std::span(bytes))});
    const bool is_new = std::ranges::find(newcomers, group_->rank()) != newcomers.end();
    if (is_new) {
      bytes.resize(size);
      in.push_back({0, std::as_writable_bytes(std::span(bytes))});
    }
    group_->exchange(out, in);
    if (is_new) take(std::move(bytes));
  });
}

void TrainingRanks::leave_note(const std::string& name, const std::string& text) const {
  if (!alone() && leads()) group_->leave_note(name, text);
}

std::string TrainingRanks::note(const std::string& name) const { return group_->note(name); }

std::vector<std::string> TrainingRanks::gather(std::string_view own) {
  if (alone()) return {std::string(own)};
  std::vector<std::string> all;
  together([&] { all = group_->gather(own); });
  return all;
}

TrainingRanks::Report TrainingRanks::join(const Report& own) {
  if (alone()) return own;
  // A letter for what follows, then the failure, or the seconds and the losses.
  const bool waits = group_->somebody_waits();
  std::string text(1, !own.failure.empty() ? 'f' : own.stop ? 's' : waits ? 'w' : 'g');
  if (!own.failure.empty()) {
    text += own.failure;
  } else {
    text.append(reinterpret_cast<const char*>(&own.seconds), sizeof own.seconds);
    text.append(reinterpret_cast<const char*>(own.losses.data()),
                own.losses.size() * sizeof(float));
  }
  Report all;
  std::vector<Stragglers::Work> work;
  for (const std::string& of_rank : group_->gather(text)) {
    if (of_rank[0] == 'f') {
      let_leader_speak();
      throw_failure(of_rank.substr(1));
    }
    all.stop = all.stop || of_rank[0] == 's';
    all.take_in = all.take_in || of_rank[0] == 'w';
    double seconds = 0;
    std::memcpy(&seconds, of_rank.data() + 1, sizeof seconds);
    const std::size_t begin = 1 + sizeof seconds;
    const std::size_t count = (of_rank.size() - begin) / sizeof(float);
    const std::size_t before = all.losses.size();
    all.losses.resize(before + count);
    std::memcpy(all.losses.data() + before, of_rank.data() + begin, count * sizeof(float));
    work.push_back({seconds, static_cast<std::int64_t>(count)});
  }
  if (leads())
    if (const auto sentence = stragglers_->add(work)) log(LogLevel::kInfo, "{}", *sentence);
  return all;
}

std::string TrainingRanks::from_leader(std::string text) {
  if (alone()) return text;
  together([&] {
    std::uint64_t size = text.size();
    group_->broadcast(std::as_writable_bytes(std::span(&size, 1)), 0);
    text.resize(size);
    group_->broadcast(std::as_writable_bytes(std::span(text)), 0);
  });
  return text;
}

std::string TrainingRanks::first_of(std::string_view own) {
  if (alone()) return std::string(own);
  for (std::string& text : gather(own))
    if (!text.empty()) return std::move(text);
  return "";
}

void TrainingRanks::let_leader_speak() {
  if (!leads()) together([&] { group_->barrier(); });
}

}  // namespace segfuse::learn
