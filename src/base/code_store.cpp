#include "base/code_store.h"

#include <fmt/core.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <exception>

#include "base/fnv.h"
#include "base/log.h"
#include "base/os/file.h"
#include "segfuse/options.h"

namespace segfuse {
namespace {

/// In front of key and content.
struct Header {
  char magic[8] = {'s', 'e', 'g', 'f', 'u', 's', 'e', '1'};
  std::uint64_t key_bytes = 0;
  std::uint64_t content_bytes = 0;
  std::uint64_t checksum = 0;  ///< of key and content
};

std::uint64_t checksum_of(std::string_view key, std::string_view content) {
  return fnv1a(content, fnv1a(key));
}

}  // namespace

std::filesystem::path code_folder() {
  const std::string named = default_options().get(options::kCacheDir);
  if (!named.empty()) return named;
  if (const char* cache = std::getenv("XDG_CACHE_HOME"); cache != nullptr && *cache != '\0')
    return std::filesystem::path(cache) / "segfuse";
  if (const char* home = std::getenv("HOME"); home != nullptr && *home != '\0')
    return std::filesystem::path(home) / ".cache" / "segfuse";
  return {};
}

std::filesystem::path CodeStore::path_of(std::string_view name, std::string_view suffix,
                                         std::string_view key) const {
  return folder_ / fmt::format("{}-{:016x}.{}", name, fnv1a(key), suffix);
}

std::optional<std::string> CodeStore::get(std::string_view name, std::string_view suffix,
                                          std::string_view key) const {
  if (folder_.empty()) return std::nullopt;
  std::string file;
  try {
    file = read_file(path_of(name, suffix, key));
  } catch (const std::exception&) {
    return std::nullopt;  // Not compiled yet, or not to be read by us.
  }
  Header header;
  const Header expected;
  if (file.size() < sizeof header) return std::nullopt;
  std::memcpy(&header, file.data(), sizeof header);
  const std::string_view rest = std::string_view(file).substr(sizeof header);
  if (std::memcmp(header.magic, expected.magic, sizeof header.magic) != 0 ||
      header.key_bytes != key.size() || rest.size() < key.size() ||
      header.content_bytes != rest.size() - key.size() || rest.substr(0, key.size()) != key ||
      header.checksum != checksum_of(key, rest.substr(key.size())))
    return std::nullopt;
  file.erase(0, sizeof header + key.size());
  return file;
}

void CodeStore::put(std::string_view name, std::string_view suffix, std::string_view key,
                    std::string_view content) const noexcept {
  if (folder_.empty()) return;
  try {
    Header header;
    header.key_bytes = key.size();
    header.content_bytes = content.size();
    header.checksum = checksum_of(key, content);
    std::filesystem::create_directories(folder_);
    const auto write = [&](FileWriter& out) {
      out.write(std::string_view(reinterpret_cast<const char*>(&header), sizeof header));
      out.write(key);
      out.write(content);
    };
    // get() trusts nothing, so there is no need to wait for the disk.
    write_file_atomically(path_of(name, suffix, key), write, Sync::kNo);
  } catch (const std::exception& error) {
    if (complained_.exchange(true)) return;
    try {
      log(LogLevel::kWarning, "compiled code is not kept: {}", error.what());
    } catch (...) {
    }
  }
}

}  // namespace segfuse
