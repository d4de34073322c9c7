#include "base/code/code_store.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <fstream>
#include <thread>
#include <vector>

#include "base/console/log.h"
#include "base/os/file.h"
#include "segfuse/context.h"
#include "support/files.h"

namespace segfuse {
namespace {

using testing::Optional;
using testing::StrEq;

TEST(CodeStore, GivesWhatWasPutUnderTheKey) {
  const test::TemporaryDirectory folder;
  const CodeStore store(folder / "a/b");
  EXPECT_EQ(store.get("n", "o", "key"), std::nullopt);
  const std::string content("binary\0content", 14);
  store.put("n", "o", "key", content);
  EXPECT_EQ(store.get("n", "o", "key"), content);
  EXPECT_EQ(store.get("n", "o", "key2"), std::nullopt);
  store.put("n", "o", "key", "");
  EXPECT_THAT(CodeStore(folder / "a/b").get("n", "o", "key"), Optional(StrEq("")));
}

TEST(CodeStore, AKeyIsNotTheBeginningOfAnother) {
  const test::TemporaryDirectory folder;
  const CodeStore store(folder.path());
  store.put("n", "o", "ab", "c");
  std::filesystem::copy_file(store.path_of("n", "o", "ab"), store.path_of("n", "o", "a"));
  std::filesystem::copy_file(store.path_of("n", "o", "ab"), store.path_of("n", "o", "abc"));
  EXPECT_EQ(store.get("n", "o", "a"), std::nullopt);
  EXPECT_EQ(store.get("n", "o", "abc"), std::nullopt);
}

TEST(CodeStore, EveryChangedByteAndEveryPieceIsFound) {
  const test::TemporaryDirectory folder;
  const CodeStore store(folder.path());
  store.put("n", "o", "the key", "the content");
  const std::filesystem::path path = store.path_of("n", "o", "the key");
  const std::string whole = read_file(path);
  for (std::size_t at = 0; at < whole.size(); ++at) {
    std::string changed = whole;
    changed[at] = static_cast<char>(changed[at] ^ 0x10);
    std::ofstream(path, std::ios::binary | std::ios::trunc) << changed;
    EXPECT_EQ(store.get("n", "o", "the key"), std::nullopt) << "byte " << at;
    std::ofstream(path, std::ios::binary | std::ios::trunc) << whole.substr(0, at);
    EXPECT_EQ(store.get("n", "o", "the key"), std::nullopt) << at << " bytes";
  }
  store.put("n", "o", "the key", "the content");
  EXPECT_THAT(store.get("n", "o", "the key"), Optional(StrEq("the content")));
}

TEST(CodeStore, WithoutAFolderNothingIsKept) {
  const CodeStore store{std::filesystem::path()};
  store.put("n", "o", "key", "content");
  EXPECT_EQ(store.get("n", "o", "key"), std::nullopt);
}

TEST(CodeStore, SaysOnceThatItCannotWriteAndWhatHelps) {
  const test::TemporaryDirectory folder;
  folder.write("file", "in the way");
  for (const char* place : {"file", "file/below", "file/below/it"}) {
    std::vector<std::string> said;
    const LogSink former =
        set_log_sink([&](LogLevel, std::string_view text) { said.emplace_back(text); });
    const CodeStore store(folder / place);
    store.put("n", "o", "key", "content");
    store.put("n", "o", "key", "content");
    set_log_sink(former);
    ASSERT_EQ(said.size(), 1U) << place;
    EXPECT_THAT(said[0], testing::MatchesRegex(
                             "[^:]*compiles again: cannot [^:]*'" + folder.path().string() +
                             "/file[^:]*': Not a directory; SEGFUSE_CACHE_DIR.*"));
    EXPECT_EQ(store.get("n", "o", "key"), std::nullopt);
  }
}

CodeStoreOptions options_of(const test::TemporaryDirectory& secrets,
                            std::uint64_t most_bytes = 1 << 30) {
  CodeStoreOptions options;
  options.most_bytes = most_bytes;
  options.key_folder = secrets.path();
  return options;
}

TEST(CodeStore, IsForItsUserAlone) {
  const test::TemporaryDirectory top, secrets;
  const std::filesystem::path folder = top / "a/b";
  const mode_t former = ::umask(0002);
  const CodeStore store(folder, options_of(secrets));
  store.put("n", "o", "key", "content");
  ::umask(former);
  struct stat status{};
  ASSERT_EQ(::stat(folder.c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 07777U, 0700U);
  ASSERT_EQ(::stat(store.path_of("n", "o", "key").c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 07777U, 0600U);
  ASSERT_EQ(::stat((secrets / "code.key").c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 07777U, 0600U);
  // A folder of before, made with the usual mode of groups of one: the right is taken back.
  std::filesystem::permissions(folder, std::filesystem::perms(0775));
  EXPECT_THAT(store.get("n", "o", "key"), Optional(StrEq("content")));
  ASSERT_EQ(::stat(folder.c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 07777U, 0755U);
}

TEST(CodeStore, WhatOthersCouldHaveWrittenIsNotTaken) {
  const test::TemporaryDirectory folder, secrets;
  const CodeStore store(folder.path(), options_of(secrets));
  store.put("n", "o", "key", "content");
  const std::filesystem::path path = store.path_of("n", "o", "key");
  for (const mode_t mode : {0620U, 0602U, 0666U}) {
    ASSERT_EQ(::chmod(path.c_str(), mode), 0);
    EXPECT_EQ(store.get("n", "o", "key"), std::nullopt) << mode;
  }
  store.put("n", "o", "key", "content");
  EXPECT_THAT(store.get("n", "o", "key"), Optional(StrEq("content")));
  std::filesystem::rename(path, folder / "moved");
  std::filesystem::create_symlink("moved", path);
  EXPECT_EQ(store.get("n", "o", "key"), std::nullopt) << "through a link";
  store.put("n", "o", "key", "new");
  EXPECT_FALSE(std::filesystem::is_symlink(path));
  EXPECT_THAT(store.get("n", "o", "key"), Optional(StrEq("new")));
}

TEST(CodeStore, NothingOfAnotherUserIsTaken) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can give files away";
  const test::TemporaryDirectory folder, secrets;
  const CodeStore store(folder.path(), options_of(secrets));
  store.put("n", "o", "key", "content");
  const std::filesystem::path path = store.path_of("n", "o", "key");
  ASSERT_EQ(::chown(path.c_str(), 65534, 65534), 0);
  EXPECT_EQ(store.get("n", "o", "key"), std::nullopt);
  ASSERT_EQ(::chown(path.c_str(), 0, 0), 0);
  EXPECT_THAT(store.get("n", "o", "key"), Optional(StrEq("content")));
  ASSERT_EQ(::chown(folder.path().c_str(), 65534, 65534), 0);
  std::string said;
  const LogSink former = set_log_sink([&](LogLevel, std::string_view text) { said += text; });
  EXPECT_EQ(store.get("n", "o", "key"), std::nullopt);
  store.put("n", "o", "other", "content");
  set_log_sink(former);
  EXPECT_THAT(said, testing::AllOf(testing::HasSubstr(folder.path().string()),
                                   testing::HasSubstr("another user")));
  EXPECT_FALSE(std::filesystem::exists(store.path_of("n", "o", "other")));
}

TEST(CodeStore, AnEntryThatWasMadeWithoutTheSecretIsNotTaken) {
  const test::TemporaryDirectory folder, secrets, others;
  const CodeStore store(folder.path(), options_of(secrets));
  const CodeStore forger(folder.path(), options_of(others));
  forger.put("n", "o", "key", "planted");
  EXPECT_THAT(forger.get("n", "o", "key"), Optional(StrEq("planted")));
  EXPECT_EQ(store.get("n", "o", "key"), std::nullopt);
  store.put("n", "o", "key", "content");
  // Another process of the same user has the same secret.
  EXPECT_THAT(CodeStore(folder.path(), options_of(secrets)).get("n", "o", "key"),
              Optional(StrEq("content")));
}

TEST(CodeStore, ASecretThatOthersCouldReadIsReplaced) {
  const test::TemporaryDirectory folder, secrets;
  CodeStore(folder.path(), options_of(secrets)).put("n", "o", "key", "content");
  const std::string former = read_file(secrets / "code.key");
  EXPECT_EQ(former.size(), 32U);
  ASSERT_EQ(::chmod((secrets / "code.key").c_str(), 0644), 0);
  const CodeStore store(folder.path(), options_of(secrets));
  EXPECT_EQ(store.get("n", "o", "key"), std::nullopt);
  EXPECT_NE(read_file(secrets / "code.key"), former);
  store.put("n", "o", "key", "content");
  EXPECT_THAT(store.get("n", "o", "key"), Optional(StrEq("content")));
}

TEST(CodeStore, WhatWasNotUsedForTheLongestTimeGoesFirst) {
  const test::TemporaryDirectory folder, secrets;
  const std::string content(1000, 'x');
  const auto key = [](int i) { return fmt::format("key {}", i); };
  const std::filesystem::path kept = folder.write("notes.txt", std::string(100'000, 'x'));
  {
    const CodeStore store(folder.path(), options_of(secrets));
    for (int i = 0; i < 10; ++i) {
      store.put("n", "o", key(i), content);
      const std::filesystem::path path = store.path_of("n", "o", key(i));
      const timespec times[2] = {{0, UTIME_OMIT}, {1'000'000 + i, 0}};
      ASSERT_EQ(::utimensat(AT_FDCWD, path.c_str(), times, 0), 0);
    }
    EXPECT_TRUE(store.get("n", "o", key(0)));  // used: the youngest from now on
  }
  const CodeStore store(folder.path(), options_of(secrets, 6'000));
  store.put("n", "o", "another", content);
  std::vector<int> left;
  for (int i = 0; i < 10; ++i)
    if (store.get("n", "o", key(i))) left.push_back(i);
  EXPECT_THAT(left, testing::ElementsAre(0, 8, 9));
  EXPECT_TRUE(store.get("n", "o", "another"));
  EXPECT_TRUE(std::filesystem::exists(kept)) << "what is not ours is not removed";
  // However much is put there, it stays within the limit and what a sixteenth more is.
  for (int i = 0; i < 50; ++i) store.put("n", "o", key(100 + i), content);
  std::uintmax_t bytes = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder.path()))
    if (entry.path().extension() == ".o") bytes += entry.file_size();
  EXPECT_LE(bytes, 6'000U + 1'100U);
}

TEST(CodeStore, ManyThreadsAndStoresShareAFolder) {
  const test::TemporaryDirectory folder, secrets;
  const std::string content(5000, 'x');
  std::vector<std::thread> threads;
  std::atomic<int> wrong = 0;
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([&] {
      const CodeStore store(folder.path(), options_of(secrets, 40'000));
      for (int i = 0; i < 100; ++i) {
        const std::string key = fmt::format("key {}", i % 13);
        store.put("n", "o", key, content + key);
        const auto found = store.get("n", "o", key);
        if (found && *found != content + key) ++wrong;
      }
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
}

TEST(CodeFolder, IsTheOptionOrUnderTheHome) {
  Options options;
  ::setenv("XDG_CACHE_HOME", "/somewhere", 1);
  EXPECT_EQ(code_folder(options), "/somewhere/segfuse");
  // Against the folder that the process happens to be in: whoever made that would be believed.
  ::setenv("XDG_CACHE_HOME", "somewhere", 1);
  EXPECT_TRUE(code_folder(options).empty() || code_folder(options).is_absolute())
      << code_folder(options);
  EXPECT_THAT(code_folder(options).string(), testing::Not(testing::HasSubstr("somewhere")));
  ::unsetenv("XDG_CACHE_HOME");
  if (const char* home = std::getenv("HOME"); home != nullptr && *home != '\0') {
    EXPECT_EQ(code_folder(options), std::filesystem::path(home) / ".cache/segfuse");
  }
  options.set(options::kCacheDir, std::string("here"));
  EXPECT_EQ(code_folder(options), "here");
}

}  // namespace
}  // namespace segfuse
