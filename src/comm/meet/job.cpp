#include "comm/meet/job.h"

#include <fmt/core.h>
#include <poll.h>

#include <sys/socket.h>
#include <sys/stat.h>

#include <cstdlib>

#include "base/code/sha256.h"
#include "base/console/log.h"
#include "base/json/json.h"
#include "base/os/folder.h"
#include "comm/meet/board.h"
#include "comm/meet/wire/visit.h"
#include "segfuse/error.h"

namespace segfuse::comm::meet {
namespace {

constexpr std::size_t kShortestSecret = 16;
// Ports that systems do not hand out by themselves.
constexpr int kFirstPort = 20000;
constexpr int kPorts = 10000;

std::string hex_of(std::string_view bytes) {
  std::string hex;
  for (const char c : bytes) hex += fmt::format("{:02x}", static_cast<unsigned char>(c));
  return hex;
}

int digit_of(char c) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  return static_cast<int>(kDigits.find(c));
}

std::string bytes_of(const JsonPlace& place) {
  const std::string hex = place.text();
  if (hex.size() != 64 || hex.find_first_not_of("0123456789abcdef") != hex.npos)
    place.refuse("64 hexadecimal digits");
  std::string bytes;
  for (std::size_t i = 0; i < hex.size(); i += 2)
    bytes += static_cast<char>(digit_of(hex[i]) << 4 | digit_of(hex[i + 1]));
  return bytes;
}

// Programs that a rank starts have its variables, but none of these descriptors.
bool is_pipe(int descriptor) {
  struct stat status{};
  return ::fstat(descriptor, &status) == 0 && S_ISFIFO(status.st_mode);
}
bool is_listening(int descriptor) {
  int listening = 0;
  socklen_t size = sizeof listening;
  return ::getsockopt(descriptor, SOL_SOCKET, SO_ACCEPTCONN, &listening, &size) == 0 &&
         listening != 0;
}

/// What a launcher of ours gave.
void take_inherited(MeetingOptions& options) {
  if (std::getenv(kLauncherVariable) == nullptr || !is_pipe(kLauncherDescriptor)) return;
  options.launcher = Descriptor(kLauncherDescriptor);
  options.board = std::make_shared<Board>(Descriptor(kBoardDescriptor));
  if (options.board->ranks() != options.count)
    throw CommError(fmt::format("the launcher made room for {} ranks, but there are {}",
                                options.board->ranks(), options.count));
  if (options.rank == 0 && is_listening(kListeningDescriptor))
    options.listening = Descriptor(kListeningDescriptor);
}

}  // namespace

std::string key_of(std::string_view secret) {
  return hmac_sha256("segfuse: the key of a job", secret);
}

Key key_of_environment(const std::string& job) {
  const char* const secret = std::getenv(kKeyVariable);
  if (secret != nullptr && *secret != '\0') {
    const std::string_view text = secret;
    if (text.size() < kShortestSecret)
      throw UsageError(fmt::format("{} has {} characters; expected {} at least", kKeyVariable,
                                   text.size(), kShortestSecret));
    return {key_of(text), false};
  }
  if (job.empty())
    throw UsageError(
        fmt::format("the ranks have no key to recognise each other; set {} to a secret of {} "
                    "characters or more, the same on all ranks",
                    kKeyVariable, kShortestSecret));
  return {key_of(job), true};
}

std::string new_secret() { return hex_of(random_bytes(32)); }

int port_for(const Ranks& ranks) {
  if (ranks.port > 0) return ranks.port;
  if (ranks.job.empty())
    throw UsageError(
        fmt::format("{} started {} ranks but does not say at which port they meet; set MASTER_PORT "
                    "to a free one, the same on all ranks",
                    ranks.launcher, ranks.count));
  unsigned number = 0;
  for (const char c : sha256(ranks.job).substr(0, 3))
    number = number << 8 | static_cast<unsigned char>(c);
  return kFirstPort + static_cast<int>(number % kPorts);
}

MeetingOptions options_of(const Ranks& ranks) {
  MeetingOptions options;
  options.rank = ranks.rank;
  options.count = ranks.count;
  if (ranks.host.empty())
    throw UsageError(
        fmt::format("{} started {} ranks but does not say where they meet; set "
                    "MASTER_ADDR to the machine of rank 0",
                    ranks.launcher, ranks.count));
  options.host = ranks.host;
  options.port = port_for(ranks);
  Key key = key_of_environment(ranks.job);
  options.key = std::move(key.bytes);
  if (key.weak && ranks.rank == 0)
    log(LogLevel::kWarning,
        "the key of the ranks' meeting comes from the job's name ({}), which others can guess; set "
        "{} to a secret, the same on all ranks",
        ranks.job, kKeyVariable);
  take_inherited(options);
  return options;
}

std::optional<MeetingOptions> options_of_only_child() {
  const char* const count = std::getenv("WORLD_SIZE");
  const char* const host = std::getenv("MASTER_ADDR");
  const char* const port = std::getenv("MASTER_PORT");
  if (std::getenv(kLauncherVariable) == nullptr || !is_pipe(kLauncherDescriptor) ||
      count == nullptr || std::string_view(count) != "1" || host == nullptr || port == nullptr)
    return {};
  Ranks alone;
  alone.host = host;
  alone.port = std::atoi(port);
  alone.launcher = "segfuse";
  return options_of(alone);
}

void write_place(const std::filesystem::path& folder, const Place& place) {
  const Json json = {{"host", place.host},
                     {"port", place.port},
                     {"key", hex_of(place.key)},
                     {"ranks", place.count},
                     {"pid", place.pid}};
  const std::string text = json_text(json, 2) + "\n";
  Folder(folder).replace(
      kPlaceFile, folder / kPlaceFile, [&](FileWriter& out) { out.write(text); }, Sync::kNo, 0600);
}

void remove_place(const std::filesystem::path& folder) noexcept {
  try {
    Folder(folder).remove(kPlaceFile);
  } catch (const std::exception&) {
    // The folder went first.
  }
}

Place read_place(const std::filesystem::path& file) {
  const std::string name = file.string();
  const Json json = parse_json(read_file(file), name, {std::size_t{1} << 16, 4});
  const JsonPlace top(json, name);
  Place place;
  place.host = top.at("host").text();
  place.port = static_cast<int>(top.at("port").integer(1, 65535));
  place.key = bytes_of(top.at("key"));
  place.count = top.at("ranks").integer(1, 1'000'000'000);
  place.pid = top.at("pid").integer(1, 1'000'000'000);
  return place;
}

void remove_place_of(std::int64_t pid, const std::filesystem::path& folder) noexcept {
  try {
    if (read_place(folder / kPlaceFile).pid == pid) remove_place(folder);
  } catch (const std::exception&) {
    // There is none, or it is somebody else's.
  }
}

Rows look(const Place& place, const Clock& clock, const Timings& timings) {
  const Time until = clock.now() + timings.slow;
  const std::string where = fmt::format("{}:{}", place.host, place.port);
  std::string why;
  for (const Address& address : resolve(place.host, place.port)) {
    Visit met = visit(address, place.key, {Role::kLook, 0, 0}, until, clock, {});
    why = met.why;
    if (!met.connection) continue;
    Rows all;
    bool open = true;
    while (all.count == 0 || static_cast<std::int64_t>(all.rows.size()) < all.count) {
      if (auto bytes = met.connection->next(kLongestMessage)) {
        const Message message = decode(*bytes);
        const auto* rows = std::get_if<Rows>(&message);
        if (rows == nullptr || rows->count < 1 || rows->rows.empty())
          throw CommError(fmt::format("rank 0 at {} answers with something else", where));
        all.count = rows->count;
        all.failure = rows->failure;
        all.generation = rows->generation;
        all.rows.insert(all.rows.end(), rows->rows.begin(), rows->rows.end());
      } else if (open && wait_for(met.connection->descriptor(), POLLIN, until, clock, {})) {
        open = met.connection->receive();
      } else {
        throw CommError(fmt::format("rank 0 at {} stopped in the middle of its answer", where));
      }
    }
    return all;
  }
  throw CommError(fmt::format("the ranks at {} cannot be asked: {}", where, why));
}

}  // namespace segfuse::comm::meet
