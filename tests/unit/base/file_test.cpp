#include "base/os/file.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdarg>
#include <fstream>
#include <thread>
#include <vector>

#include "base/os/folder.h"
#include "base/outputs.h"
#include "support/file_size_limit.h"

namespace {
std::atomic<bool> refuse_unnamed{false};
}

/// The library's calls come here.
extern "C" int openat(int folder, const char* name, int flags, ...) {
  va_list rest;
  va_start(rest, flags);
  const unsigned mode = va_arg(rest, unsigned);
  va_end(rest);
  if (refuse_unnamed && (flags & O_TMPFILE) == O_TMPFILE) {
    errno = EOPNOTSUPP;
    return -1;
  }
  return static_cast<int>(::syscall(SYS_openat, folder, name, flags, mode));
}

namespace segfuse {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::HasSubstr;

class File : public testing::Test {
 protected:
  void SetUp() override {
    std::string name = (fs::temp_directory_path() / "segfuse-file-XXXXXX").string();
    ASSERT_NE(::mkdtemp(name.data()), nullptr);
    dir_ = name;
  }
  void TearDown() override { fs::remove_all(dir_); }

  std::vector<std::string> names() const {
    std::vector<std::string> all;
    for (const auto& entry : fs::directory_iterator(dir_))
      all.push_back(entry.path().filename().string());
    return all;
  }

  fs::path dir_;
};

template <class F>
std::string message_of(F&& action) {
  try {
    action();
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

TEST_F(File, WrittenContentIsReadBack) {
  const std::string large(300000, 'x');
  write_file_atomically(dir_ / "a", [&](FileWriter& out) {
    out.write("head");
    out.write(large);
    out.write(std::string_view("\0tail", 5));
    EXPECT_EQ(out.size(), 300009U);
  });
  EXPECT_EQ(read_file(dir_ / "a"), "head" + large + std::string("\0tail", 5));
  EXPECT_THAT(names(), testing::ElementsAre("a"));
}

TEST_F(File, MapShowsTheBytesAndMoves) {
  write_file_atomically(dir_ / "a", "abc");
  FileMap first(dir_ / "a");
  const FileMap second(std::move(first));
  EXPECT_EQ(second.text(), "abc");
  EXPECT_EQ(first.size(), 0U);
  FileMap third(dir_ / "a");
  third = FileMap(dir_ / "a");
  EXPECT_EQ(third.text(), "abc");
}

TEST_F(File, AMapOutlivesTheReplacementOfItsFile) {
  write_file_atomically(dir_ / "a", "former");
  const FileMap map(dir_ / "a");
  write_file_atomically(dir_ / "a", "new");
  EXPECT_EQ(map.text(), "former");
  EXPECT_EQ(FileMap(dir_ / "a").text(), "new");
}

TEST_F(File, EmptyFilesAreFine) {
  write_file_atomically(dir_ / "a", "");
  EXPECT_EQ(FileMap(dir_ / "a").size(), 0U);
  EXPECT_EQ(read_file(dir_ / "a"), "");
}

TEST_F(File, FilesWithoutASizeAreReadWhole) {
  EXPECT_THAT(read_file("/proc/self/status"), HasSubstr("VmRSS"));
}

TEST_F(File, MissingFilesAndDirectoriesAreNamed) {
  EXPECT_THAT(message_of([&] { FileMap map(dir_ / "absent"); }),
              AllOf(HasSubstr((dir_ / "absent").string()), HasSubstr("No such file")));
  EXPECT_THAT(message_of([&] { read_file(dir_); }), HasSubstr("Is a directory"));
  ASSERT_EQ(::mkfifo((dir_ / "pipe").c_str(), 0600), 0);
  EXPECT_THAT(message_of([&] { FileMap(dir_ / "pipe"); }), HasSubstr("not a regular file"));
  EXPECT_THAT(message_of([&] { read_file(dir_ / "pipe"); }), HasSubstr("no process writes to it"));
}

TEST_F(File, APipeThatItsWriterClosedIsRead) {
  for (const std::string content : {"", "abc"}) {
    int ends[2];
    ASSERT_EQ(::pipe(ends), 0);
    ASSERT_EQ(::write(ends[1], content.data(), content.size()), std::ssize(content));
    ::close(ends[1]);
    EXPECT_EQ(read_file("/dev/fd/" + std::to_string(ends[0])), content);
    ::close(ends[0]);
  }
}

TEST_F(File, OnlyRegularFilesAreReplaced) {
  ASSERT_EQ(::mkfifo((dir_ / "pipe").c_str(), 0600), 0);
  EXPECT_THROW(write_file_atomically(dir_ / "pipe", "x"), UsageError);
  EXPECT_THROW(write_file_atomically(dir_, "x"), UsageError);
  EXPECT_THROW(write_file_atomically("/dev/null", "x"), UsageError);
  EXPECT_THROW(write_file_atomically(dir_ / "absent" / "a", "x"), FileError);
}

TEST_F(File, LinksAreFollowedAndModesKept) {
  write_file_atomically(dir_ / "a", "1");
  ASSERT_EQ(::chmod((dir_ / "a").c_str(), 0640), 0);
  fs::create_symlink("a", dir_ / "link");
  write_file_atomically(dir_ / "link", "2");
  EXPECT_TRUE(fs::is_symlink(dir_ / "link"));
  EXPECT_EQ(read_file(dir_ / "a"), "2");
  EXPECT_EQ(static_cast<unsigned>(fs::status(dir_ / "a").permissions()), 0640U);
}

TEST_F(File, AWriterThatThrowsChangesNothing) {
  write_file_atomically(dir_ / "a", "former");
  EXPECT_THROW(write_file_atomically(dir_ / "a",
                                     [](FileWriter& out) {
                                       out.write("half");
                                       throw InternalError("stop");
                                     }),
               InternalError);
  EXPECT_EQ(read_file(dir_ / "a"), "former");
  EXPECT_THAT(names(), testing::ElementsAre("a"));
}

TEST_F(File, WhatAKilledWriterLeftIsRemovedAndALivingOnesIsNot) {
  const std::string dead = ".segfuse-0123456789abcdef.partial";
  const std::string alive = ".segfuse-fedcba9876543210.partial";
  const std::string foreign = ".segfuse-notes.partial";
  for (const std::string& name : {dead, alive, foreign}) std::ofstream(dir_ / name) << "rest";
  const int held = ::open((dir_ / alive).c_str(), O_RDONLY);
  ASSERT_EQ(::flock(held, LOCK_EX | LOCK_NB), 0);
  write_file_atomically(dir_ / "a", "new");
  EXPECT_THAT(names(), testing::UnorderedElementsAre("a", alive, foreign));
  ::close(held);
}

TEST_F(File, AFormerWritersNameIsNeitherFollowedNorWaitedFor) {
  write_file_atomically(dir_ / "secret", "mine");
  fs::create_symlink("secret", dir_ / ".a.partial");
  std::ofstream(dir_ / ".b.partial") << "locked";
  const int held = ::open((dir_ / ".b.partial").c_str(), O_RDONLY);
  ASSERT_EQ(::flock(held, LOCK_EX | LOCK_NB), 0);
  ::alarm(60);  // a writer that waits for a stranger's lock ends here
  write_file_atomically(dir_ / "a", "new");
  write_file_atomically(dir_ / "b", "new");
  ::alarm(0);
  ::close(held);
  EXPECT_EQ(read_file(dir_ / "secret"), "mine");
  EXPECT_EQ(read_file(dir_ / "a") + read_file(dir_ / "b"), "newnew");
  EXPECT_FALSE(fs::is_symlink(dir_ / "a"));
}

TEST_F(File, ALinkOfAnotherUserIsNotFollowed) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can make links of others";
  write_file_atomically(dir_ / "secret", "mine");
  fs::create_symlink("secret", dir_ / "a");
  ASSERT_EQ(::lchown((dir_ / "a").c_str(), 65534, 65534), 0);
  EXPECT_THAT(message_of([&] { write_file_atomically(dir_ / "a", "new"); }),
              AllOf(HasSubstr((dir_ / "a").string()), HasSubstr("another user")));
  EXPECT_EQ(read_file(dir_ / "secret"), "mine");
}

TEST_F(File, NamesOfAnyLengthCanBeWritten) {
  const std::string name(255, 'n');
  for (const char* content : {"former", "new"}) {
    write_file_atomically(dir_ / name, content);
    EXPECT_EQ(read_file(dir_ / name), content);
  }
}

TEST_F(File, ALineIsNotWrittenBehindOneThatWasCut) {
  const Folder folder(dir_);
  folder.append_line("list", "one");
  folder.append_line("list", "two");
  EXPECT_EQ(read_file(dir_ / "list"), "one\ntwo\n");
  std::ofstream(dir_ / "list") << "one\nhal";
  folder.append_line("list", "three");
  EXPECT_EQ(read_file(dir_ / "list"), "one\nhal\nthree\n");
}

TEST_F(File, OutputsOfAnEarlierRunAreReplacedAndOtherFilesAreNot) {
  const fs::path path = dir_ / "out";
  Outputs().write(path, "first");
  Outputs later;
  later.announce(path, "in");
  EXPECT_NO_THROW(later.check());
  later.write(path, "second");
  later.write(path, "third");
  EXPECT_EQ(read_file(path), "third");
  std::ofstream(path) << "changed by hand";
  EXPECT_THROW(later.check(), UsageError);
  EXPECT_THROW(later.write(path, "fourth"), UsageError);
  EXPECT_THROW(Outputs().write(path, "fourth"), UsageError);
  EXPECT_EQ(read_file(path), "changed by hand");
  Outputs(true).write(path, "fourth");
  EXPECT_EQ(read_file(path), "fourth");
}

/// While alive, no file system has files without a name.
class WithoutUnnamedFiles {
 public:
  WithoutUnnamedFiles() { refuse_unnamed = true; }
  ~WithoutUnnamedFiles() { refuse_unnamed = false; }
};

TEST_F(File, WithoutUnnamedFilesARandomNameDoes) {
  const WithoutUnnamedFiles without;
  write_file_atomically(dir_ / "a", [&](FileWriter& out) {
    EXPECT_THAT(names(),
                testing::ElementsAre(testing::MatchesRegex("\\.segfuse-[0-9a-f]+\\.partial")));
    // Another writer, even of another folder object, leaves a living one's file alone.
    write_file_atomically(dir_ / "b", "b");
    out.write("a");
  });
  EXPECT_EQ(read_file(dir_ / "a") + read_file(dir_ / "b"), "ab");
  EXPECT_THROW(write_file_atomically(dir_ / "a", [](FileWriter&) { throw InternalError("stop"); }),
               InternalError);
  EXPECT_THAT(names(), testing::UnorderedElementsAre("a", "b"));
}

TEST_F(File, AFullDiskLeavesTheFormerFile) {
  write_file_atomically(dir_ / "a", "former");
  for (const std::size_t size : {5000UL, 500000UL}) {  // fails in the last flush; in the midst
    const test::FileSizeLimit limit(4096);
    try {
      write_file_atomically(dir_ / "a", std::string(size, 'x'));
      FAIL() << "no error";
    } catch (const FileError& error) {
      EXPECT_EQ(error.error_number(), EFBIG);
      EXPECT_EQ(error.exit_code(), ExitCode::kDevice);
      EXPECT_THAT(error.what(), AllOf(HasSubstr((dir_ / "a").string()), HasSubstr("ulimit")));
    }
  }
  EXPECT_EQ(read_file(dir_ / "a"), "former");
  EXPECT_THAT(names(), testing::ElementsAre("a"));
}

TEST_F(File, WritersAndReadersOfOnePathNeverSeeAMixture) {
  write_file_atomically(dir_ / "a", std::string(100000, '0'));
  std::atomic<bool> stop{false};
  std::vector<std::thread> writers;
  for (int i = 1; i <= 3; ++i)
    writers.emplace_back([&, i] {
      for (int round = 0; round < 20; ++round)
        write_file_atomically(dir_ / "a", std::string(100000, static_cast<char>('0' + i)));
    });
  std::thread reader([&] {
    while (!stop) {
      const std::string content = read_file(dir_ / "a");
      ASSERT_EQ(content, std::string(100000, content.at(0)));
    }
  });
  for (std::thread& writer : writers) writer.join();
  stop = true;
  reader.join();
  EXPECT_THAT(names(), testing::ElementsAre("a"));
}

}  // namespace
}  // namespace segfuse
