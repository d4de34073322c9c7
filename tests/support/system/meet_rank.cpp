// A rank of tests: meets the others as its environment says, then works in steps. Arguments say
// what goes wrong where: kill=2@5 ends rank 2 in step 5 by SIGKILL.
//
//   steps=N              how many (endless)
//   kill=R@S stop=R@S    SIGKILL, SIGSTOP
//   exit=R@S:CODE        ends without a word
//   fail=R@S             says that it cannot go on, and ends with 3
//   hang=R@S             reads data for ever
//   value=R:TEXT         rank R has another value than the others
//   launch=N             is no rank: starts N, with the other arguments
//   stuck=SECONDS        the limit for that

#include <fmt/core.h>
#include <signal.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <map>
#include <string>
#include <vector>

#include "base/os/interrupt.h"
#include "base/os/ranks.h"
#include "comm/launch/launch.h"
#include "comm/meet/job.h"
#include "comm/meet/meeting.h"
#include "segfuse/error.h"

namespace {

using namespace segfuse;
using comm::meet::Phase;

std::map<std::string, std::string> arguments;

/// What is behind "R@S" for this rank and step; null: it is not meant.
const char* meant(const std::string& name, std::int64_t rank, std::int64_t step) {
  const auto found = arguments.find(name);
  if (found == arguments.end()) return nullptr;
  const std::string start = fmt::format("{}@{}", rank, step);
  const std::string& text = found->second;
  if (!text.starts_with(start) || (text.size() > start.size() && text[start.size()] != ':'))
    return nullptr;
  return text.c_str() + start.size();
}

int work(comm::meet::Meeting& meeting, const InterruptScope& interrupt) {
  const std::int64_t rank = meeting.rank();
  const long steps = arguments.contains("steps") ? std::atol(arguments["steps"].c_str()) : -1;
  for (std::int64_t step = 1; steps < 0 || step <= steps; ++step) {
    meeting.report({.step = step, .phase = Phase::kReadingData, .doing = "recording 'x.flac'"});
    if (meant("hang", rank, step) != nullptr)
      for (;;) meeting.check(), ::usleep(1000);
    meeting.report({.step = step, .phase = Phase::kBackward});
    if (meant("kill", rank, step) != nullptr) ::raise(SIGKILL);
    if (meant("stop", rank, step) != nullptr) ::raise(SIGSTOP);
    if (const char* code = meant("exit", rank, step)) std::_Exit(std::atoi(code + 1));
    if (meant("fail", rank, step) != nullptr) {
      meeting.fail("there is no paper");
      return 3;
    }
    meeting.report({.step = step, .bucket = 0, .phase = Phase::kExchange});
    bool stop = false;
    for (const std::string& text : meeting.all_gather(interrupt.requested() ? "stop" : "go"))
      stop = stop || text == "stop";
    fmt::print("step {}\n", step);
    std::fflush(stdout);
    if (stop) return 130;
  }
  return 0;
}

int be_rank() {
  const InterruptScope interrupt;
  const auto ranks = ranks_of_environment();
  if (!ranks) throw UsageError("there are no ranks");
  comm::meet::MeetingOptions options = comm::meet::options_of(*ranks);
  options.values = {{"version", "1"}, {"data", "abc"}};
  options.last_resort = std::chrono::seconds(10);
  if (arguments.contains("stuck"))
    options.timings.stuck = std::chrono::seconds(std::atol(arguments["stuck"].c_str()));
  const std::string& value = arguments["value"];
  if (value.starts_with(fmt::format("{}:", ranks->rank))) options.values["data"] = value.substr(2);
  comm::meet::Meeting meeting(std::move(options));
  const int code = work(meeting, interrupt);
  if (code != 3) meeting.leave();
  return code;
}

int be_launcher(int argc, char** argv) {
  comm::launch::LaunchRequest request;
  request.count = std::atol(arguments["launch"].c_str());
  for (int i = 0; i < argc; ++i)
    if (!std::string(argv[i]).starts_with("launch=")) request.arguments.emplace_back(argv[i]);
  const comm::launch::LaunchResult result = comm::launch::launch(request);
  if (!result.sentence.empty()) fmt::print(stderr, "{}\n", result.sentence);
  return result.exit_code;
}

}  // namespace

int main(int argc, char** argv) {
  for (int i = 1; i < argc; ++i) {
    const std::string text = argv[i];
    const std::size_t equal = text.find('=');
    arguments[text.substr(0, equal)] = equal == text.npos ? "" : text.substr(equal + 1);
  }
  try {
    return arguments.contains("launch") ? be_launcher(argc, argv) : be_rank();
  } catch (const Error& error) {
    fmt::print(stderr, "{}\n", error.what());
    return static_cast<int>(error.exit_code());
  }
}
