#include "base/os/ranks.h"

#include <fmt/core.h>

#include <array>
#include <charconv>
#include <cstdlib>
#include <string_view>
#include <vector>

#include "segfuse/error.h"

namespace segfuse {
namespace {

/// How one launcher tells its processes who they are. From the inside out: who is listed first may
/// have been started by one that is listed later.
struct Family {
  const char* launcher;
  const char* count;
  const char* rank;
  const char* local_rank;
  const char* local_count;  ///< null: it says nothing in this form
};
constexpr std::array kFamilies = {
    Family{"torchrun", "WORLD_SIZE", "RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE"},
    Family{"Open MPI", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_RANK",
           "OMPI_COMM_WORLD_LOCAL_SIZE"},
    Family{"MVAPICH", "MVP_COMM_WORLD_SIZE", "MVP_COMM_WORLD_RANK", "MVP_COMM_WORLD_LOCAL_RANK",
           "MVP_COMM_WORLD_LOCAL_SIZE"},
    Family{"MVAPICH", "MV2_COMM_WORLD_SIZE", "MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_LOCAL_RANK",
           "MV2_COMM_WORLD_LOCAL_SIZE"},
    // MPICH and Intel MPI; Cray's, which has other names for what is local.
    Family{"MPI", "PMI_SIZE", "PMI_RANK", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"},
    Family{"MPI", "PMI_SIZE", "PMI_RANK", "PMI_LOCAL_RANK", "PMI_LOCAL_SIZE"},
    // Not SLURM_NTASKS: the script of a job has it too, and is one process.
    Family{"Slurm", "SLURM_STEP_NUM_TASKS", "SLURM_PROCID", "SLURM_LOCALID", nullptr},
};
/// torchrun sets it, and nobody does by hand.
constexpr const char* kTorchrunsOwn = "TORCHELASTIC_RUN_ID";
/// "True" where torchrun itself listens at MASTER_PORT.
constexpr const char* kTorchrunListens = "TORCHELASTIC_USE_AGENT_STORE";

/// An empty variable is one that is not set.
std::optional<std::string> text_of(const Variables& variables, const char* name) {
  const char* const value = name == nullptr ? nullptr : variables(name);
  if (value == nullptr || *value == '\0') return {};
  return value;
}

std::optional<std::int64_t> number_of(const Variables& variables, const char* name,
                                      std::int64_t least, std::int64_t most = 1'000'000'000) {
  const auto text = text_of(variables, name);
  if (!text) return {};
  std::int64_t number = 0;
  const char* const end = text->data() + text->size();
  const auto [at, error] = std::from_chars(text->data(), end, number);
  if (error != std::errc{} || at != end || number < least || number > most)
    throw UsageError(
        fmt::format("the environment variable {} is '{}'; expected a number from {} to {}", name,
                    *text, least, most));
  return number;
}

struct Word {
  const Family* family;
  std::int64_t count;
  std::optional<std::int64_t> rank;
};

std::vector<Word> words_of(const Variables& variables) {
  std::vector<Word> words;
  for (const Family& family : kFamilies) {
    const auto count = number_of(variables, family.count, 1);
    if (!count) continue;
    const auto rank = number_of(variables, family.rank, 0);
    if (rank && *rank >= *count)
      throw UsageError(fmt::format("{}={} and {}={} contradict each other: ranks count from 0",
                                   family.rank, *rank, family.count, *count));
    if (*count > 1) words.push_back({&family, *count, rank});
  }
  return words;
}

/// Whether the outer launcher may have started the inner one's helpers, so that both are right.
bool nested(const Variables& variables, const Word& inner, const Word& outer) {
  const std::string_view name = inner.family->launcher;
  // By hand these two are set in scripts, which must agree with what starts the processes.
  if (name == "torchrun")
    return text_of(variables, kTorchrunsOwn).has_value() && outer.count <= inner.count;
  return std::string_view(outer.family->launcher) == "Slurm" && outer.count < inner.count;
}

void check_agreement(const Variables& variables, const Word& inner, const Word& outer) {
  const bool one_rank = !inner.rank || !outer.rank || *inner.rank == *outer.rank;
  if (inner.count == outer.count && one_rank) return;
  if (nested(variables, inner, outer)) return;
  if (inner.count != outer.count)
    throw UsageError(
        fmt::format("{}={} and {}={} contradict each other about how many processes were started "
                    "together; unset the one that is wrong",
                    inner.family->count, inner.count, outer.family->count, outer.count));
  throw UsageError(
      fmt::format("{}={} and {}={} contradict each other about which of {} processes this is; "
                  "unset the one that is wrong",
                  inner.family->rank, *inner.rank, outer.family->rank, *outer.rank, inner.count));
}

/// Takes a number off the front.
std::optional<std::int64_t> take_number(std::string_view& text) {
  std::int64_t number = 0;
  const auto [at, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc{}) return {};
  text.remove_prefix(static_cast<std::size_t>(at - text.data()));
  return number;
}
bool take(std::string_view& text, std::string_view start) {
  if (!text.starts_with(start)) return false;
  text.remove_prefix(start.size());
  return true;
}

/// "2(x3),1" has 2, 2, 2 and 1 tasks on four machines.
std::optional<std::int64_t> tasks_of_node(std::string_view list, std::int64_t node) {
  do {
    const auto tasks = take_number(list);
    std::int64_t times = 1;
    if (take(list, "(x")) {
      times = take_number(list).value_or(0);
      if (!take(list, ")")) return {};
    }
    if (!tasks || node < times) return tasks;
    node -= times;
  } while (take(list, ","));
  return {};
}

/// The first machine of "gpu[003-017,20],login": gpu003.
std::string first_node(std::string_view list) {
  const std::size_t end = list.find_first_of("[,");
  std::string node(list.substr(0, end));
  if (end == std::string_view::npos || list[end] != '[') return node;
  list.remove_prefix(end + 1);
  const std::size_t digits = list.find_first_not_of("0123456789");
  const std::size_t close = list.find(']');
  if (digits == 0 || close == std::string_view::npos) return {};
  node += list.substr(0, digits);
  // "rack[1-4]node7": what is behind belongs to the name.
  list.remove_prefix(close + 1);
  return node + std::string(list.substr(0, list.find_first_of("[,")));
}

void add_local(const Variables& variables, Ranks& ranks) {
  for (const Family& family : kFamilies) {
    if (ranks.variable != family.count) continue;
    if (!ranks.local_rank) ranks.local_rank = number_of(variables, family.local_rank, 0);
    if (!ranks.local_count) ranks.local_count = number_of(variables, family.local_count, 1);
  }
  const auto node = number_of(variables, "SLURM_NODEID", 0);
  const auto tasks = text_of(variables, "SLURM_STEP_TASKS_PER_NODE");
  if (ranks.launcher == "Slurm" && node && tasks) ranks.local_count = tasks_of_node(*tasks, *node);
}

void add_meeting(const Variables& variables, Ranks& ranks) {
  ranks.port = static_cast<int>(number_of(variables, "MASTER_PORT", 1, 65535).value_or(0));
  if (const auto host = text_of(variables, "MASTER_ADDR")) {
    ranks.host = *host;
  } else if (ranks.local_count == ranks.count) {
    ranks.host = "127.0.0.1";
  } else if (const auto nodes = text_of(variables, "SLURM_STEP_NODELIST");
             nodes && ranks.launcher == "Slurm") {
    ranks.host = first_node(*nodes);
  }
}

void add_job(const Variables& variables, Ranks& ranks) {
  const auto step = text_of(variables, "SLURM_STEP_ID");
  const auto job = text_of(variables, "SLURM_JOB_ID");
  if (ranks.launcher == "Slurm" && job) {
    ranks.job = fmt::format("Slurm {}.{}", *job, step.value_or(""));
    return;
  }
  for (const char* const name : {"PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid", "PMI_JOBID",
                                 "SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID", kTorchrunsOwn})
    if (const auto id = text_of(variables, name); id && *id != "none") {
      ranks.job = fmt::format("{} {}", name, *id);
      return;
    }
  // Its jobs have no name unless they are given one; two of them do not share a port.
  if (ranks.launcher == "torchrun" && text_of(variables, kTorchrunsOwn) && ranks.port > 0)
    ranks.job = fmt::format("torchrun at {}:{}", ranks.host, ranks.port);
}

/// A process under PMIx that does not know how many there are.
void refuse_unknown_count(const Variables& variables) {
  for (const Family& family : kFamilies)
    if (text_of(variables, family.count)) return;
  const auto rank = number_of(variables, "PMIX_RANK", 0);
  if (rank && text_of(variables, "PMIX_NAMESPACE"))
    throw UsageError(
        fmt::format("PMIX_RANK={} says that processes were started together, and nothing says how "
                    "many; set WORLD_SIZE to their number and RANK to each one's",
                    *rank));
}

}  // namespace

std::optional<Ranks> ranks_of(const Variables& variables) {
  const std::vector<Word> words = words_of(variables);
  if (words.empty()) {
    refuse_unknown_count(variables);
    return {};
  }
  Ranks ranks;
  std::optional<std::int64_t> rank;
  for (const Word& word : words) {
    check_agreement(variables, words.front(), word);
    // A count that a script took over may come without a rank.
    if (!rank && word.count == words.front().count) rank = word.rank;
  }
  ranks.count = words.front().count;
  ranks.launcher = words.front().family->launcher;
  ranks.variable = words.front().family->count;
  if (!rank) rank = number_of(variables, "PMIX_RANK", 0, ranks.count - 1);
  if (!rank)
    throw UsageError(fmt::format(
        "{0}={1} says that this is one of {1} processes, and {2} does not say which; set {2}, or "
        "unset {0}",
        ranks.variable, ranks.count, words.front().family->rank));
  ranks.rank = *rank;
  add_local(variables, ranks);
  add_meeting(variables, ranks);
  add_job(variables, ranks);
  if (ranks.launcher == "torchrun" && text_of(variables, kTorchrunListens) == "True")
    ranks.port = 0;
  return ranks;
}

std::vector<std::string> launcher_variables() {
  std::vector<std::string> names = {"PMIX_RANK", "PMIX_NAMESPACE", kTorchrunsOwn, "MASTER_ADDR",
                                    "MASTER_PORT"};
  for (const Family& family : kFamilies)
    for (const char* const name :
         {family.count, family.rank, family.local_rank, family.local_count})
      if (name != nullptr) names.emplace_back(name);
  return names;
}

std::optional<Ranks> ranks_of_environment() {
  return ranks_of([](const char* name) -> const char* { return std::getenv(name); });
}

}  // namespace segfuse
