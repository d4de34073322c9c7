// libFuzzer target: readers that take a path, each with the same bytes in a file of its name.

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdlib>

#include "comm/meet/job.h"
#include "support/fuzz_folder.h"
#include "learn/train/report/recordings_file.h"
#include "segfuse/data.h"
#include "segfuse/error.h"
#include "segfuse/ops.h"

namespace {

using namespace segfuse;

void require(bool holds) {
  if (!holds) std::abort();
}

/// A DataError is a fine answer, all else that is thrown is a bug.
template <class Read>
void attempt(const Read& read) {
  try {
    read();
  } catch (const DataError&) {
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const fuzz::Folder folder;
  const auto written = [&](const char* name) { return folder.write(name, data, size); };
  attempt([&] { static_cast<void>(read_folding_map(written("fold.tsv"))); });
  attempt([&] { static_cast<void>(read_folding_map(written("fold.toml"))); });
  attempt([&] {
    const Tensor array = read_npy(written("x.npy"));
    require(array.size() <= static_cast<std::int64_t>(size));
  });
  attempt([&] {
    written("recordings.json");
    const learn::RecordingsFile file = learn::read_recordings(folder.path());
    require(!file.systems.empty());
    for (const auto& [id, recording] : file.recordings) require(std::isfinite(recording.seconds));
  });
  attempt([&] {
    const comm::meet::Place place = comm::meet::read_place(written("ranks.json"));
    require(place.port > 0 && place.port < 65536 && place.count > 0);
  });
  return 0;
}
