// libFuzzer target: orders of labels. What is read is a graph whose edges rise and where each order
// has one path; what is wrong is a DataError.

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <set>

#include "learn/train/decode/orders.h"
#include "segfuse/error.h"

namespace {

using namespace segfuse;

void require(bool holds) {
  if (!holds) std::abort();
}

void check(const semicrf::LabelOrders& orders) {
  const auto& nodes = orders.nodes;
  std::set<std::int32_t> starts;
  bool ends = false;
  for (std::size_t n = 0; n < nodes.size(); ++n) {
    if (nodes[n].first) require(starts.insert(nodes[n].label).second);
    ends = ends || nodes[n].last;
    std::set<std::int32_t> labels;
    for (const std::int32_t next : nodes[n].next) {
      require(next > static_cast<std::int32_t>(n) &&
              next < static_cast<std::int32_t>(nodes.size()));
      require(labels.insert(nodes[static_cast<std::size_t>(next)].label).second);
    }
  }
  require(nodes.empty() || (ends && !starts.empty()));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const Alphabet labels({"a", "b", "c", "sil", "{", "?", "b?"});
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  for (const auto between : {std::optional<std::int32_t>(), labels.find("sil")}) {
    try {
      check(learn::parse_orders(text, "x.txt", labels, between));
    } catch (const DataError&) {
    }
  }
  return 0;
}
