#include "base/code_store.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>

#include "base/log.h"
#include "base/os/file.h"
#include "segfuse/options.h"
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

TEST(CodeStore, SaysOnceThatItCannotWrite) {
  const test::TemporaryDirectory folder;
  folder.write("file", "in the way");
  int said = 0;
  const LogSink former = set_log_sink([&](LogLevel, std::string_view) { ++said; });
  const CodeStore store(folder / "file/below");
  store.put("n", "o", "key", "content");
  store.put("n", "o", "key", "content");
  set_log_sink(former);
  EXPECT_EQ(said, 1);
  EXPECT_EQ(store.get("n", "o", "key"), std::nullopt);
}

TEST(CodeFolder, IsTheOptionOrUnderTheHome) {
  const Options before = default_options();
  Options options = before;
  options.set(options::kCacheDir, std::string());
  set_default_options(options);
  ::setenv("XDG_CACHE_HOME", "/somewhere", 1);
  EXPECT_EQ(code_folder(), "/somewhere/segfuse");
  ::unsetenv("XDG_CACHE_HOME");
  if (const char* home = std::getenv("HOME"); home != nullptr && *home != '\0') {
    EXPECT_EQ(code_folder(), std::filesystem::path(home) / ".cache/segfuse");
  }
  options.set(options::kCacheDir, std::string("here"));
  set_default_options(options);
  EXPECT_EQ(code_folder(), "here");
  set_default_options(before);
}

}  // namespace
}  // namespace segfuse
