#include "base/code/code_store.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <exception>
#include <system_error>
#include <vector>

#include "base/code/blake2b.h"
#include "base/console/log.h"
#include "base/mutex.h"
#include "base/os/folder.h"

namespace segfuse {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kSecretBytes = 32;
constexpr const char* kSecretName = "code.key";
/// A file that is used gets a new time, but not more often than this.
constexpr std::time_t kSecondsBetweenUses = 3600;

/// In front of key and content.
struct Header {
  char magic[8] = {'s', 'e', 'g', 'f', 'u', 's', 'e', '2'};
  std::uint64_t key_bytes = 0;
  std::uint64_t content_bytes = 0;
  char hash[32] = {};  ///< of all the rest, under the secret
};

std::string hash_of(const Header& header, std::string_view key, std::string_view content,
                    const std::string& secret) {
  Blake2b hash(sizeof header.hash, secret);
  hash.update({reinterpret_cast<const char*>(&header), offsetof(Header, hash)});
  hash.update(key);
  hash.update(content);
  return hash.finish();
}

std::string name_of(std::string_view name, std::string_view suffix, std::string_view key) {
  return fmt::format("{}-{}.{}", name, blake2b_hex(key).substr(0, 16), suffix);
}

/// Whether a file of that name can be one of ours: NAME-16 digits.SUFFIX.
bool is_entry(std::string_view name) {
  const std::size_t dot = name.find_last_of('.');
  if (dot == std::string_view::npos || dot < 17 || name[dot - 17] != '-') return false;
  return name.substr(dot - 16, 16).find_first_not_of("0123456789abcdef") == std::string_view::npos;
}

/// An absolute path, or nothing.
fs::path variable(const char* name) {
  const char* value = ::secure_getenv(name);
  const fs::path path = value != nullptr ? value : "";
  return path.is_absolute() ? path : fs::path();
}

void make_private(const fs::path& folder) {
  std::error_code failed;
  if (folder.has_parent_path() && (fs::create_directories(folder.parent_path(), failed), failed))
    throw FileError(folder.parent_path(), "make the directory", failed.value());
  if (::mkdir(folder.c_str(), 0700) != 0 && errno != EEXIST)
    throw FileError(folder, "make the directory", errno);
}

/// The secret in this folder, made if there is none. A file that others could have written or read
/// is replaced.
std::string secret_in(const fs::path& path) {
  const Folder folder(path);
  for (int attempt = 0; attempt < 10; ++attempt) {
    folder.create_secret(kSecretName, random_bytes(kSecretBytes));
    const Descriptor file = folder.open(kSecretName);
    struct stat status{};
    if (::fstat(file.get(), &status) == 0 && only_ours(status) && (status.st_mode & 077) == 0) {
      std::string secret = read_rest(file.get(), path / kSecretName);
      if (secret.size() == kSecretBytes) return secret;
    }
    folder.remove(kSecretName);
  }
  throw DataError(
      fmt::format("{}: other users can read it, and its mode cannot be changed; delete the file",
                  (path / kSecretName).string()));
}

void mark_used(int file, const struct stat& status) {
  if (std::time(nullptr) - status.st_mtime > kSecondsBetweenUses) ::futimens(file, nullptr);
}

}  // namespace

fs::path user_cache_folder() {
  if (const fs::path cache = variable("XDG_CACHE_HOME"); !cache.empty()) return cache / "segfuse";
  if (const fs::path home = variable("HOME"); !home.empty()) return home / ".cache" / "segfuse";
  return {};
}

fs::path code_folder(const Options& options) {
  const std::string& named = options.get(options::kCacheDir);
  return named.empty() ? user_cache_folder() : fs::path(named);
}

CodeStoreOptions::CodeStoreOptions(const Options& options)
    : most_bytes(static_cast<std::uint64_t>(options.get(options::kCacheSize)) << 20),
      key_folder(user_cache_folder()) {}

CodeStore::CodeStore(fs::path folder, CodeStoreOptions options)
    : folder_(std::move(folder)), options_(std::move(options)) {}

std::shared_ptr<const CodeStore> CodeStore::nowhere() {
  return std::make_shared<const CodeStore>(fs::path());
}

fs::path CodeStore::path_of(std::string_view name, std::string_view suffix,
                            std::string_view key) const {
  return folder_ / name_of(name, suffix, key);
}

/// Nothing when it is missing; throws when it is not ours alone.
std::optional<Folder> CodeStore::open_folder() const {
  std::error_code missing;
  if (folder_.empty() || !fs::exists(folder_, missing)) return std::nullopt;
  Folder folder(folder_);
  const struct stat status = folder.status();
  if (status.st_uid != ::geteuid())
    throw DataError(fmt::format("{}: the folder belongs to another user (uid {})", folder_.string(),
                                status.st_uid));
  // The usual mode where groups are of one user; what others have put there is not taken anyway.
  if (!only_ours(status) && ::fchmod(folder.descriptor(), status.st_mode & 07755U) != 0)
    throw FileError(folder_, "take the right to write from others in", errno);
  return folder;
}

std::string CodeStore::secret() const {
  const MutexLock lock(mutex_);
  if (!secret_.empty()) return secret_;
  if (!options_.key_folder.empty()) try {
      make_private(options_.key_folder);
      return secret_ = secret_in(options_.key_folder);
    } catch (const std::exception&) {
      // A home that cannot be written: then beside the code.
    }
  return secret_ = secret_in(folder_);
}

std::optional<std::string> CodeStore::get(std::string_view name, std::string_view suffix,
                                          std::string_view key) const {
  std::string file;
  try {
    const std::optional<Folder> folder = open_folder();
    if (!folder) return std::nullopt;
    const Descriptor opened = folder->open(name_of(name, suffix, key));
    struct stat status{};
    if (::fstat(opened.get(), &status) != 0 || !only_ours(status)) return std::nullopt;
    file = read_rest(opened.get(), path_of(name, suffix, key));
    mark_used(opened.get(), status);
  } catch (const FileError&) {
    return std::nullopt;  // Not compiled yet, or not to be read by us.
  } catch (const std::exception& error) {
    complain(error.what());
    return std::nullopt;
  }
  Header header;
  const Header expected;
  if (file.size() < sizeof header) return std::nullopt;
  std::memcpy(&header, file.data(), sizeof header);
  const std::string_view rest = std::string_view(file).substr(sizeof header);
  if (std::memcmp(header.magic, expected.magic, sizeof header.magic) != 0 ||
      header.key_bytes != key.size() || rest.size() < key.size() ||
      header.content_bytes != rest.size() - key.size() || rest.substr(0, key.size()) != key)
    return std::nullopt;
  try {
    const std::string hash = hash_of(header, key, rest.substr(key.size()), secret());
    if (!equal_in_constant_time({header.hash, sizeof header.hash}, hash)) return std::nullopt;
  } catch (const std::exception& error) {
    complain(error.what());
    return std::nullopt;
  }
  file.erase(0, sizeof header + key.size());
  return file;
}

void CodeStore::put(std::string_view name, std::string_view suffix, std::string_view key,
                    std::string_view content) const noexcept {
  if (folder_.empty()) return;
  try {
    make_private(folder_);
    const std::optional<Folder> folder = open_folder();
    if (!folder) throw FileError(folder_, "open", ENOENT);
    Header header;
    header.key_bytes = key.size();
    header.content_bytes = content.size();
    const std::string hash = hash_of(header, key, content, secret());
    std::copy(hash.begin(), hash.end(), header.hash);
    const auto write = [&](FileWriter& out) {
      out.write(std::string_view(reinterpret_cast<const char*>(&header), sizeof header));
      out.write(key);
      out.write(content);
    };
    // get() finds out whether it is whole, so there is no need to wait for the disk.
    folder->replace(name_of(name, suffix, key), path_of(name, suffix, key), write, Sync::kNo, 0600);
    evict(*folder, sizeof header + key.size() + content.size());
  } catch (const std::exception& error) {
    complain(error.what());
  }
}

/// Looks at the folder when this store has added a sixteenth of what may be there, and at first.
void CodeStore::evict(const Folder& folder, std::uint64_t added) const {
  const MutexLock lock(mutex_);
  unlooked_ += added;
  if (looked_ && unlooked_ <= options_.most_bytes / 16) return;
  looked_ = true;
  unlooked_ = 0;
  struct Entry {
    timespec used;
    std::uint64_t bytes;
    std::string name;
  };
  std::vector<Entry> entries;
  std::uint64_t total = 0;
  for (std::string& name : folder.names()) {
    struct stat status{};
    if (!is_entry(name) ||
        ::fstatat(folder.descriptor(), name.c_str(), &status, AT_SYMLINK_NOFOLLOW) != 0 ||
        !S_ISREG(status.st_mode))
      continue;
    const auto bytes = static_cast<std::uint64_t>(status.st_size);
    total += bytes;
    entries.push_back({status.st_mtim, bytes, std::move(name)});
  }
  if (total <= options_.most_bytes) return;
  std::sort(entries.begin(), entries.end(), [](const Entry& a, const Entry& b) {
    return std::pair(a.used.tv_sec, a.used.tv_nsec) < std::pair(b.used.tv_sec, b.used.tv_nsec);
  });
  // A little more than needed, or every put() would come here.
  const std::uint64_t goal = options_.most_bytes - options_.most_bytes / 8;
  for (const Entry& entry : entries) {
    if (total <= goal) break;
    // A reader has it open.
    if (folder.remove(entry.name)) total -= entry.bytes;
  }
}

void CodeStore::complain(std::string_view why) const noexcept {
  if (complained_.exchange(true)) return;
  try {
    log(LogLevel::kWarning,
        "compiled code is not kept, so each process compiles again: {}; SEGFUSE_CACHE_DIR or "
        "--cache-dir may name another folder",
        why);
  } catch (...) {
  }
}

}  // namespace segfuse
