// Recordings that commands write.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <fstream>

#include "base/os/file.h"
#include "segfuse/data/formats.h"
#include "segfuse/error.h"
#include "support/files.h"

namespace segfuse {
namespace {

using testing::HasSubstr;

class AudioFromCommand : public ::testing::Test {
 protected:
  void SetUp() override {
    for (int i = 0; i < 800; ++i) samples_.push_back(static_cast<float>(i % 64) / 64);
    write_wav(directory_ / "a.wav", samples_, 8000);
    for (const char* name : {"r.phn", "a.phn"}) std::ofstream(directory_ / name) << "0 800 x\n";
  }
  Recording recording(const std::string& entry) const {
    std::ofstream(directory_ / "m.tsv") << "id\taudio\nr\t" << entry << "\n";
    const std::vector<Recording> all =
        load_manifest(directory_ / "m.tsv", {.allow_commands = true});
    EXPECT_EQ(all.size(), 1U);
    return all.at(0);
  }
  std::string message(const std::string& entry) const {
    try {
      read_recording(recording(entry));
    } catch (const DataError& error) {
      const std::string text = error.what();
      const std::string place = (directory_ / "m.tsv").string() + ":2: ";
      EXPECT_TRUE(text.starts_with(place)) << text;
      EXPECT_EQ(text.find('\n'), std::string::npos);
      return text.substr(std::min(text.size(), place.size()));
    }
    return "nothing was thrown";
  }

  test::TemporaryDirectory directory_;
  std::vector<float> samples_;
};

TEST_F(AudioFromCommand, IsReadLikeAFile) {
  for (const char* entry : {"cat a.wav |", "cat a.wav|", "cat a.wav | cat |", "cat 'a.wav' | "}) {
    const Recording r = recording(entry);
    ASSERT_TRUE(r.command) << entry;
    EXPECT_TRUE(r.audio.empty());
    EXPECT_EQ(r.labels, directory_ / "r.phn");
    const Audio audio = read_recording(r);
    EXPECT_EQ(audio.samples, samples_) << entry;
    EXPECT_EQ(audio.sample_rate, 8000);
    AudioOptions options;
    options.stored_scale = true;
    EXPECT_EQ(read_recording(r, options).samples,
              read_audio(directory_ / "a.wav", options).samples);
  }
  EXPECT_FALSE(recording("a.wav").command);
}

TEST_F(AudioFromCommand, HeadersOfProgramsThatCannotGoBackAreFine) {
  for (const std::string_view size :
       {std::string_view("\xff\xff\xff\xff", 4), std::string_view("\0\xf0\xff\x7f", 4)}) {
    std::string bytes = read_file(directory_ / "a.wav");
    bytes.replace(40, 4, size);
    std::ofstream(directory_ / "streamed.wav", std::ios::binary) << bytes;
    EXPECT_EQ(read_recording(recording("cat streamed.wav |")).samples, samples_);
  }
}

TEST_F(AudioFromCommand, FailuresNameCommandStatusAndLastMessage) {
  EXPECT_EQ(message("echo first >&2; echo no such tape >&2; exit 3 |"),
            "the command \"echo first >&2; echo no such tape >&2; exit 3\" failed: exit status 3; "
            "its last message: \"no such tape\"");
  EXPECT_EQ(message("exit 1 |"),
            "the command \"exit 1\" failed: exit status 1; it wrote no message");
  EXPECT_THAT(message("no-such-decoder a.sph |"), HasSubstr("failed: exit status 127; its last"));
  EXPECT_THAT(message("kill -KILL $$ |"), HasSubstr("killed by signal 9"));
  EXPECT_EQ(message("true |"), "the command \"true\" wrote nothing; it wrote no message");
  EXPECT_THAT(message("echo hello |"),
              HasSubstr("what \"echo hello\" wrote: byte 0: not an audio file that can be read"));
  EXPECT_THAT(message("head -c 100 a.wav |"),
              HasSubstr("what \"head -c 100 a.wav\" wrote: byte 36"));
}

TEST_F(AudioFromCommand, LabelsAreSoughtByTheId) {
  std::ofstream(directory_ / "m.tsv") << "id\taudio\nq\tcat a.wav |\n";
  EXPECT_THROW(load_manifest(directory_ / "m.tsv", {.allow_commands = true}), DataError);
}

TEST_F(AudioFromCommand, RunsOnlyWhereCommandsAreAllowed) {
  const std::string entry = "touch ran; cat a.wav |";
  std::ofstream(directory_ / "m.tsv") << "id\taudio\nr\t" << entry << "\n";
  try {
    load_manifest(directory_ / "m.tsv");
    ADD_FAILURE() << "it was read";
  } catch (const UsageError& error) {
    EXPECT_THAT(error.what(), testing::AllOf(HasSubstr("m.tsv:2: \"touch ran; cat a.wav |\""),
                                             HasSubstr("--allow-commands")));
  }
  const Recording r = recording(entry);
  EXPECT_FALSE(std::filesystem::exists(directory_ / "ran"));
  read_recording(r);
  EXPECT_TRUE(std::filesystem::exists(directory_ / "ran"));
}

TEST_F(AudioFromCommand, LeavesNothingRunning) {
  const auto state_of = [](const std::string& pid) {
    std::ifstream status("/proc/" + pid + "/stat");
    std::string text;
    std::getline(status, text);
    const std::size_t end = text.rfind(')');
    return end == std::string::npos ? 'X' : text.at(end + 2);
  };
  for (const char* entry : {"sleep 1000 & echo $! > pid; cat a.wav |",
                            "sleep 1000 >/dev/null 2>&1 & echo $! > pid; cat a.wav |",
                            "(trap '' TERM; sleep 1000) & echo $! > pid; cat a.wav |"}) {
    EXPECT_EQ(read_recording(recording(entry)).samples, samples_) << entry;
    std::string pid = read_file(directory_ / "pid");
    pid.pop_back();
    // Killed, but perhaps not gone or not collected yet.
    for (int attempt = 0; attempt < 10'000 && state_of(pid) != 'X' && state_of(pid) != 'Z';
         ++attempt)
      ::usleep(1000);
    EXPECT_THAT(state_of(pid), testing::AnyOf('X', 'Z')) << entry;
  }
}

}  // namespace
}  // namespace segfuse
