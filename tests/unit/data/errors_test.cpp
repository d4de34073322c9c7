// Every file of tests/error/data gives its one sentence: the table there says how each is read.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/os/file.h"
#include "base/text.h"
#include "segfuse/data.h"
#include "segfuse/error.h"
#include "support/source_dir.h"

namespace segfuse {
namespace {

namespace fs = std::filesystem;

const fs::path kFolder = fs::path(SEGFUSE_SOURCE_DIR) / "tests/error/data";

void read(const fs::path& path, const std::string& how) {
  if (how == "audio") {
    read_audio(path);
  } else if (how == "manifest") {
    load_manifest(path);
  } else if (how == "folding") {
    read_folding_map(path);
  } else {
    LabelOptions options;
    options.sample_rate = 16000;
    if (how == "festvox") options.format = LabelFormat::kFestvox;
    if (how == "fill") options.fill_label = "-";
    if (how.starts_with("tier=")) options.tier = how.substr(5);
    read_labels(path, options);
  }
}

TEST(Errors, EachMalformedFileSaysWhatIsWrongAndWhere) {
  std::size_t cases = 0;
  const std::string table = read_file(kFolder / "cases.tsv");
  for (const std::string_view line : split_lines(table)) {
    if (line.starts_with('#')) continue;
    const std::vector<std::string_view> fields = split(line, '\t');
    ASSERT_EQ(fields.size(), 3) << line;
    const fs::path path = kFolder / fields[0];
    std::string expected(fields[2]);
    const bool usage = expected.starts_with("UsageError: ");
    if (usage) expected.erase(0, 12);
    ++cases;
    try {
      read(path, std::string(fields[1]));
      ADD_FAILURE() << fields[0] << ": nothing was thrown";
    } catch (const Error& error) {
      const std::string message = error.what();
      EXPECT_EQ(error.exit_code(), usage ? ExitCode::kUsage : ExitCode::kData) << message;
      EXPECT_THAT(message, testing::HasSubstr(path.string()));
      EXPECT_THAT(message, testing::HasSubstr(expected));
      EXPECT_EQ(message.find('\n'), std::string::npos) << message;
    }
  }
  EXPECT_GT(cases, 60);
}

TEST(Errors, EveryFileOfTheFolderIsInTheTable) {
  const std::string table = read_file(kFolder / "cases.tsv");
  for (const fs::directory_entry& entry : fs::directory_iterator(kFolder)) {
    const std::string name = entry.path().filename().string();
    if (name == "cases.tsv") continue;
    EXPECT_THAT(table, testing::HasSubstr("\n" + name + "\t"));
  }
}

}  // namespace
}  // namespace segfuse
