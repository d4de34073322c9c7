#include "comm/lookout.h"

#include <chrono>
#include <utility>

namespace segfuse::comm {

Lookout::Lookout(std::function<bool()> goes_on)
    : goes_on_(std::move(goes_on)), thread_([this] {
        using namespace std::chrono_literals;
        while (!over_ && goes_on_()) std::this_thread::sleep_for(10ms);
      }) {}

Lookout::~Lookout() {
  over_ = true;
  thread_.join();
}

}  // namespace segfuse::comm
