#pragma once
// Sums whose result is known, before the ranks rely on memory that their GPUs reach: on some
// machines it can be opened, and what is written to it does not arrive.

#include <string>

#include "comm/peer/peer_exchange.h"

namespace segfuse::comm {

/// What is wrong with this rank's sums; empty where nothing is. All ranks call it. CommError where
/// a rank is lost meanwhile.
std::string trial_sums(Group& control, std::int64_t shards, runtime::OpenDevice& device,
                       runtime::StreamId stream, PeerExchange& exchange);

}  // namespace segfuse::comm
