#include "learn/train/decode/on_ranks.h"

#include <fmt/core.h>

#include <cstring>
#include <functional>
#include <limits>
#include <span>
#include <string>
#include <type_traits>

#include "comm/group.h"
#include "learn/train/loop/company.h"
#include "segfuse/error.h"

namespace segfuse::learn {
namespace {

// Bytes for another rank of the same program: the memory as it is.

template <class T>
  requires std::is_trivially_copyable_v<T>
void put(std::string& bytes, const T& value) {
  bytes.append(reinterpret_cast<const char*>(&value), sizeof value);
}
template <class T>
  requires std::is_trivially_copyable_v<T>
void put(std::string& bytes, const std::vector<T>& values) {
  put(bytes, values.size());
  bytes.append(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T));
}

template <class T>
  requires std::is_trivially_copyable_v<T>
void take(std::string_view& bytes, T& value) {
  std::memcpy(&value, bytes.data(), sizeof value);
  bytes.remove_prefix(sizeof value);
}
template <class T>
  requires std::is_trivially_copyable_v<T>
void take(std::string_view& bytes, std::vector<T>& values) {
  std::size_t count = 0;
  take(bytes, count);
  values.resize(count);
  if (count > 0) std::memcpy(values.data(), bytes.data(), count * sizeof(T));
  bytes.remove_prefix(count * sizeof(T));
}

void put(std::string& bytes, const Decoded& decoded) {
  put(bytes, decoded.segments);
  put(bytes, decoded.gold);
  put(bytes, decoded.label);
  put(bytes, decoded.boundary);
  put(bytes, decoded.duration);
  put(bytes, decoded.log_probability);
}
void take(std::string_view& bytes, Decoded& decoded) {
  take(bytes, decoded.segments);
  take(bytes, decoded.gold);
  take(bytes, decoded.label);
  take(bytes, decoded.boundary);
  take(bytes, decoded.duration);
  take(bytes, decoded.log_probability);
}

/// What work() gives on each rank, on rank 0. Throws where it failed, as on one rank the first
/// batch that fails does.
std::vector<std::string> results_of(comm::Group& group, const Decoder& decoder,
                                    const std::function<std::string()>& work) {
  std::string own;
  std::string status;  // "BATCH CODE why", or the number of bytes
  try {
    own = work();
    status = std::to_string(own.size());
  } catch (const Error& error) {
    status = fmt::format("! {} {}", decoder.batch(), failure_text(error));
  }
  const std::vector<std::string> all = group.gather(status);
  std::int64_t first = std::numeric_limits<std::int64_t>::max();
  std::string failure;
  for (const std::string& text : all) {
    if (text[0] != '!') continue;
    std::size_t end = 0;
    const std::int64_t batch = std::stoll(text.substr(2), &end);
    if (batch >= first) continue;
    first = batch;
    failure = text.substr(2 + end + 1);
  }
  if (!failure.empty()) {
    if (group.rank() > 0) group.barrier();
    throw_failure(failure);
  }
  std::vector<std::string> results(all.size());
  std::vector<comm::Outgoing> out;
  std::vector<comm::Incoming> in;
  if (group.rank() > 0) out.push_back({0, std::as_bytes(std::span(own))});
  for (std::size_t rank = 1; rank < all.size() && group.rank() == 0; ++rank) {
    results[rank].resize(std::stoull(all[rank]));
    in.push_back({static_cast<int>(rank), std::as_writable_bytes(std::span(results[rank]))});
  }
  group.exchange(out, in);
  if (group.rank() > 0) return {};
  results[0] = std::move(own);
  return results;
}

BatchShare share_of(const comm::Group& group) { return {group.rank(), group.size()}; }

}  // namespace

std::vector<Decoded> decode_on_ranks(Decoder& decoder, const std::vector<Sequence>& sequences,
                                     const Decoder::Options& options, comm::Group* group) {
  if (group == nullptr) return decoder.decode(sequences, options);
  if (options.k_best > 0 || options.samples > 0)
    throw InternalError("alternatives of sequences are not shared by ranks");
  std::vector<std::string> results;
  const auto own_share = [&] {
    std::string bytes;
    for (const auto& [row, decoded] : decoder.decode_share(sequences, options, share_of(*group))) {
      put(bytes, row);
      put(bytes, decoded);
    }
    return bytes;
  };
  comm::together(*group, [&] { results = results_of(*group, decoder, own_share); });
  if (group->rank() > 0) return {};
  std::vector<Decoded> decoded(sequences.size());
  for (const std::string& of_rank : results)
    for (std::string_view left = of_rank; !left.empty();) {
      std::int64_t row = 0;
      take(left, row);
      take(left, decoded[static_cast<std::size_t>(row)]);
    }
  return decoded;
}

double loss_on_ranks(Decoder& decoder, const std::vector<Sequence>& sequences, comm::Group* group,
                     std::int64_t batch_frames) {
  if (group == nullptr) return decoder.loss(sequences, batch_frames);
  std::vector<std::string> results;
  const auto own_share = [&] {
    std::string bytes;
    for (const auto& [batch, losses] :
         decoder.loss_share(sequences, share_of(*group), batch_frames)) {
      put(bytes, batch);
      put(bytes, losses);
    }
    return bytes;
  };
  comm::together(*group, [&] { results = results_of(*group, decoder, own_share); });
  std::vector<BatchLosses> all;
  for (const std::string& of_rank : results)
    for (std::string_view left = of_rank; !left.empty();) {
      BatchLosses& one = all.emplace_back();
      take(left, one.batch);
      take(left, one.losses);
    }
  return sum_of(std::move(all));
}

}  // namespace segfuse::learn
