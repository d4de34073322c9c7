#pragma once
// Decoding and losses of a set by all ranks. They are dealt out by the batches that one rank would
// form, so that every sequence has the company that it has there, and rank 0 has the same bits.

#include <vector>

#include "learn/train/decode/decoder.h"

namespace segfuse::comm {
class Group;
}

namespace segfuse::learn {

// Each is called by all ranks, with equal arguments; null: one rank. On ranks other than the first
// there is no result. What goes wrong is thrown by rank 0, as one rank would throw it; the others
// wait for it to end them.

/// Decoder::decode(); without alternatives (k_best, samples).
std::vector<Decoded> decode_on_ranks(Decoder& decoder, const std::vector<Sequence>& sequences,
                                     const Decoder::Options& options, comm::Group* group);
/// Decoder::loss().
double loss_on_ranks(Decoder& decoder, const std::vector<Sequence>& sequences, comm::Group* group,
                     std::int64_t batch_frames = Decoder::kBatchFrames);

}  // namespace segfuse::learn
