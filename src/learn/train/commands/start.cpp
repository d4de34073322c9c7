// Ranks on this machine.

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <string_view>

#include "base/console/log.h"
#include "base/os/ranks.h"
#include "comm/launch/launch.h"
#include "comm/meet/job.h"
#include "comm/tree.h"
#include "engine/device/gpus.h"
#include "learn/train/files/checkpoint.h"
#include "learn/train/files/former_run.h"
#include "segfuse/error.h"
#include "segfuse/train.h"

namespace segfuse {
namespace {

[[noreturn]] void refuse_devices(std::string_view text) {
  throw UsageError(
      fmt::format("--devices '{}' does not name GPUs; expected all, cpu, or GPUs as in cuda:0-3 or "
                  "cuda:0,cuda:2",
                  text));
}

int ordinal_of(std::string_view digits, std::string_view text) {
  int value = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
  if (digits.empty() || digits[0] == '-' || end != digits.data() + digits.size() ||
      error == std::errc::invalid_argument)
    refuse_devices(text);
  return error == std::errc() ? value : 1 << 30;  // more than there are
}

struct Range {
  int first = 0;
  int last = 0;
};
/// Of "cuda:2" and "cuda:0-3".
Range range_of(std::string_view part, std::string_view text) {
  constexpr std::string_view kStart = "cuda:";
  if (!part.starts_with(kStart)) refuse_devices(text);
  part.remove_prefix(kStart.size());
  const std::size_t dash = part.find('-');
  const int first = ordinal_of(part.substr(0, dash), text);
  const int last = dash == part.npos ? first : ordinal_of(part.substr(dash + 1), text);
  if (last < first) refuse_devices(text);
  return {first, last};
}

std::vector<Range> ranges_of(std::string_view text) {
  std::vector<Range> ranges;
  for (std::string_view left = text;; left.remove_prefix(left.find(',') + 1)) {
    ranges.push_back(range_of(left.substr(0, left.find(',')), text));
    if (left.find(',') == left.npos) return ranges;
  }
}

/// A variable for all ranks, where nobody has set it.
std::string threads_of_each(std::int64_t ranks) {
  return std::to_string(std::max<std::int64_t>(1, Context().threads() / ranks));
}

void check_request(const RanksRequest& request, std::int64_t count) {
  if (request.restarts < 0)
    throw UsageError(fmt::format(
        "--restarts {}: expected the number of times that ranks may be restarted, from 0 on",
        request.restarts));
  const auto here = ranks_of_environment();
  if (here && request.restarts > 0)
    throw UsageError(
        fmt::format("--restarts {}: {} started these {} processes ({}={}) and is the one to "
                    "restart them; leave --restarts out, and let it restart them with --resume",
                    request.restarts, here->launcher, here->count, here->variable, here->count));
  if (here)
    throw UsageError(
        fmt::format("this is one of {} processes that {} started together ({}={}), so it cannot "
                    "start ranks; leave --ranks and --devices out",
                    here->count, here->launcher, here->variable, here->count));
  const int least = request.restarts > 0 ? 1 : 2;
  if (count < least || count > comm::kMaxShards)
    throw UsageError(
        fmt::format("{} ranks; between {} and {} are possible", count, least, comm::kMaxShards));
  if (count > 1 && (request.min_ranks < 0 || request.min_ranks > count))
    throw UsageError(fmt::format("--min-ranks {}: there are {} ranks; expected 1 to {}",
                                 request.min_ranks, count, count));
}

void tell_end_of(const comm::launch::LaunchResult& result, int restarts) {
  if (result.interrupted)
    log(LogLevel::kError, "{}; it is not restarted, because the end was requested meanwhile",
        result.sentence);
  else if (result.may_be_mended && restarts > 0)
    log(LogLevel::kError, "{}; it was restarted {} already (--restarts {})", result.sentence,
        restarts == 1 ? "once" : fmt::format("{} times", restarts), restarts);
  else if (result.exit_code == static_cast<int>(ExitCode::kInterrupted) && !result.by_itself)
    log(LogLevel::kError, "interrupted before the first step");
  else if (!result.by_itself && !result.sentence.empty())
    log(LogLevel::kError, "{}", result.sentence);
}

/// "all ranks start again after step 60, from DIR/checkpoint.safetensors".
std::string new_start_of(const RanksRequest& request, const learn::FormerRun& former,
                         std::int64_t count) {
  const std::string who = count == 1 ? "it starts" : "all ranks start";
  const auto from = learn::FormerRun::newest_checkpoint(request.out, former, request.resume);
  if (!from) return who + " again from the beginning, since there is no checkpoint yet";
  try {
    return fmt::format("{} again after step {}, from {}", who, learn::steps_of_checkpoint(*from),
                       from->string());
  } catch (const Error&) {  // the first rank says what is wrong with it
    return fmt::format("{} again from {}", who, from->string());
  }
}

}  // namespace

std::vector<std::string> devices_of(const std::string& text) {
  if (text == "cpu") return {"cpu"};
  std::vector<Range> ranges;
  if (text != "all") ranges = ranges_of(text);
  std::string reason;
  const int count = engine::gpu_count(&reason);
  if (count == 0) throw DeviceError(reason);
  if (text == "all") ranges = {{0, count - 1}};
  std::vector<std::string> names;
  for (const Range& range : ranges) {
    if (range.last >= count)
      throw UsageError(
          fmt::format("--devices {}: this machine has {}", text, engine::gpus_text(count)));
    for (int gpu = range.first; gpu <= range.last; ++gpu) {
      std::string name = fmt::format("cuda:{}", gpu);
      if (std::ranges::find(names, name) != names.end())
        throw UsageError(fmt::format(
            "--devices {} names {} twice; each rank needs a GPU of its own", text, name));
      names.push_back(std::move(name));
    }
  }
  return names;
}

int train_on_ranks(const RanksRequest& request) {
  const auto count = static_cast<std::int64_t>(
      request.devices.empty() ? request.ranks : static_cast<int>(request.devices.size()));
  check_request(request, count);
  const learn::FormerRun former(request.out);
  int restarts = 0;
  bool all_restarted = false;
  comm::launch::LaunchRequest launch;
  launch.arguments = request.command;
  launch.count = count;
  launch.first_speaks = true;
  launch.min_ranks = request.min_ranks;
  std::int64_t first = 0;  // the process of rank 0
  launch.started = [&](std::int64_t rank, int pid) {
    if (rank == 0) first = pid;
  };
  launch.lost = [](std::int64_t /*rank*/, std::string_view sentence) {
    log(LogLevel::kWarning, "{}", sentence);
  };
  launch.variables = [&](std::int64_t rank) {
    std::map<std::string, std::string> variables;
    if (std::getenv("SEGFUSE_THREADS") == nullptr)
      variables["SEGFUSE_THREADS"] = threads_of_each(count);
    if (!request.devices.empty())
      variables["SEGFUSE_DEVICE"] = request.devices[static_cast<std::size_t>(rank)];
    variables[learn::FormerRun::kVariable] = all_restarted ? former.text() : "";
    return variables;
  };
  if (request.restarts > 0)
    launch.again = [&](const comm::launch::LaunchResult& result) {
      if (restarts == request.restarts) return false;
      ++restarts;
      all_restarted = true;
      log(LogLevel::kWarning, "{}; {} (restart {} of {})", result.sentence,
          new_start_of(request, former, count), restarts, request.restarts);
      return true;
    };
  if (request.restarts > 0 && !request.compare)
    launch.replace = [&](std::int64_t rank, std::string_view sentence) {
      if (restarts == request.restarts) return false;
      ++restarts;
      log(LogLevel::kWarning, "{}; rank {} is started again, to join the others (restart {} of {})",
          sentence, rank, restarts, request.restarts);
      return true;
    };
  const comm::launch::LaunchResult result = comm::launch::launch(launch);
  comm::meet::remove_place_of(first, request.out);
  tell_end_of(result, restarts);
  return result.exit_code;
}

}  // namespace segfuse
