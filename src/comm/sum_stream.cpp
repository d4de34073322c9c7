#include "comm/sum_stream.h"

#include <fmt/core.h>

#include <vector>

#include "comm/nccl/add_nodes.h"
#include "comm/patience.h"
#include "segfuse/error.h"

namespace segfuse::comm {
namespace {

constexpr const char* kAddOwn = "the sum of shards: own ones";

}  // namespace

void SumStream::check(int rank, std::span<const runtime::Buffer> nodes, std::size_t own_nodes,
                      const runtime::Buffer& sum, const SumBegin& begin) {
  if (nodes.size() != own_nodes)
    throw InternalError(fmt::format("rank {} hands over {} nodes; its shards make {}", rank,
                                    nodes.size(), own_nodes));
  for (const auto& buffers : {nodes, begin.last_node})
    for (const runtime::Buffer& node : buffers)
      if (node.bytes() != sum.bytes())
        throw InternalError(
            fmt::format("a node of {} bytes in a sum of {}", node.bytes(), sum.bytes()));
}

void SumStream::enqueue(runtime::Work work, std::span<const runtime::Use> uses,
                        const SumBegin& begin, const runtime::Buffer& scratch) {
  runtime::Executor& executor = device_.executor();
  if (begin.after == nullptr) {
    last_work_ = executor.launch(stream_, std::move(work), uses);
    return;
  }
  // The scratch memory's uses are all on the stream, but those of its former owner.
  runtime::Frontier needed = *begin.after;
  if (scratch) needed.join(executor.uses_of(scratch));
  last_work_ = executor.launch(stream_, std::move(work), uses, needed);
}

void SumStream::add_own(std::shared_ptr<const AddNodes> kernel, const SumBegin& begin,
                        std::int64_t words, const runtime::Buffer& scratch) {
  if (begin.last_node.size() < 2) return;
  std::vector<const float*> values;
  std::vector<runtime::Use> used;
  for (const runtime::Buffer& one : begin.last_node) {
    values.push_back(reinterpret_cast<const float*>(one.address()));
    used.push_back({one, used.empty()});
  }
  enqueue({kAddOwn,
           [kernel = std::move(kernel), words, values](runtime::StreamHandle on) {
             std::vector<unsigned char> additions(values.size(), 0);
             additions.back() = static_cast<unsigned char>(values.size() - 1);
             kernel->launch(on, values, additions, words, const_cast<float*>(values[0]));
           }},
          used, begin, scratch);
}

void SumStream::wait(const std::function<void()>& look) {
  runtime::Timeline& timeline = device_.timeline();
  runtime::Frontier last(last_work_);
  timeline.settle(last, runtime::kMaxStreams);  // ensures an event after it
  for (Patience patience; !timeline.over(last); patience.rest()) {
    look();
    timeline.poll();
  }
  look();
}

}  // namespace segfuse::comm
