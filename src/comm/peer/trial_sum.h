#pragma once
// Sums whose result is known, before the ranks rely on memory that their GPUs reach: on some
// machines it can be opened, and what is written to it does not arrive.

#include <cstdint>
#include <functional>
#include <span>
#include <string>

#include "comm/peer/peer_exchange.h"

namespace segfuse::comm {

/// One trial after the other until a rank finds one wrong, so that none waits in the next for a
/// rank that does not come. What is wrong on this rank. All ranks call it.
std::string until_one_is_wrong(Group& control, std::span<const std::int64_t> trials,
                               const std::function<std::string(std::int64_t)>& wrong_in);

/// What is wrong with this rank's sums; empty where nothing is. All ranks call it. CommError where
/// a rank is lost meanwhile.
std::string trial_sums(Group& control, std::int64_t shards, runtime::OpenDevice& device,
                       runtime::StreamId stream, PeerExchange& exchange);

}  // namespace segfuse::comm
