#include "segfuse/model.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <algorithm>
#include <filesystem>
#include <string>

#include "base/code/sha256.h"
#include "base/os/file.h"
#include "learn/train/files/model_file.h"
#include "segfuse/error.h"
#include "support/files.h"
#include "support/source_dir.h"
#include "support/tiny_model.h"

namespace segfuse {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;

/// Folders of models of a test's own, which SEGFUSE_MODELS names.
class Pretrained : public ::testing::Test {
 protected:
  Pretrained() { names({folder_.path()}); }
  ~Pretrained() override { ::unsetenv("SEGFUSE_MODELS"); }

  static void names(const std::vector<fs::path>& folders) {
    std::string text;
    for (const fs::path& folder : folders) text += (text.empty() ? "" : ":") + folder.string();
    ::setenv("SEGFUSE_MODELS", text.c_str(), 1);
  }
  static std::string entry(const std::string& name, const std::string& sha256) {
    return "[[model]]\nname = \"" + name +
           "\"\ntitle = \"tones\"\nrecordings = \"none\"\nlicence = \"Apache-2.0\"\n"
           "figure = \"label error 1 %\"\nsample_rate = 16000\nhop_ms = 10\n"
           "labels = [\"a\", \"b\"]\nbytes = 5\nsha256 = \"" +
           sha256 + "\"\n";
  }
  /// A model of that name in a folder, and an index of it alone.
  static fs::path add(const fs::path& folder, const std::string& name) {
    fs::create_directories(folder / name);
    const fs::path file = folder / name / "model.safetensors";
    learn::write_model(file, test::tiny_model());
    write_file_atomically(folder / name / "card.md", "# " + name + "\n");
    write_file_atomically(folder / "index.toml", entry(name, sha256_hex(read_file(file))));
    return file;
  }
  template <class Call>
  static std::string said(const Call& call) {
    try {
      call();
    } catch (const DataError& error) {
      return error.what();
    }
    return "accepted";
  }
  std::string said_of_index(const std::string& text) {
    write_file_atomically(folder_ / "index.toml", text);
    return said([] { pretrained_models(); });
  }

  test::TemporaryDirectory folder_;
};

TEST_F(Pretrained, ANameStandsForItsFile) {
  const fs::path file = add(folder_.path(), "tones");
  ASSERT_FALSE(pretrained_models().empty());
  EXPECT_EQ(pretrained_models().front().name, "tones");
  EXPECT_EQ(pretrained_models().front().path, file);
  EXPECT_EQ(pretrained_file("tones"), file);
  EXPECT_EQ(pretrained_card("tones"), "# tones\n");
  EXPECT_EQ(learn::model_path("tones"), file);
  EXPECT_EQ(Model::load("tones").labels().labels(), Model::load(file).labels().labels());
}

TEST_F(Pretrained, AnExistingPathWins) {
  add(folder_.path(), "tones");
  test::TemporaryDirectory here;
  const fs::path before = fs::current_path();
  fs::current_path(here.path());
  fs::create_directory("tones");
  EXPECT_EQ(learn::model_path("tones"), "tones/model.safetensors");
  fs::remove("tones");
  write_file_atomically("tones", "a file");
  EXPECT_EQ(learn::model_path("tones"), "tones");
  fs::remove("tones");
  fs::create_symlink("nowhere", "tones");
  EXPECT_EQ(learn::model_path("tones"), "tones");
  fs::current_path(before);
  // What can only be a path is never taken for a name.
  for (const char* path : {"./tones", "x/tones", "tones.safetensors", "/tones", "t\xc3\xb6nes", ""})
    EXPECT_EQ(learn::model_path(path), path);
}

TEST_F(Pretrained, AFileThatIsNotTheIndexsIsRefused) {
  const fs::path file = add(folder_.path(), "tones");
  std::string bytes = read_file(file);
  const std::string expected = sha256_hex(bytes);
  bytes.back() = static_cast<char>(bytes.back() ^ 1);
  write_file_atomically(file, bytes);
  EXPECT_THAT(said([] { pretrained_file("tones"); }),
              AllOf(HasSubstr(file.string() + ": the file is damaged or was changed"),
                    HasSubstr("is " + sha256_hex(bytes)), HasSubstr("expected " + expected),
                    HasSubstr((folder_ / "index.toml").string())));
  EXPECT_THAT(said([] { Model::load("tones"); }), HasSubstr("damaged"));
  fs::remove(file);
  EXPECT_THAT(said([] { pretrained_file("tones"); }), HasSubstr(file.string()));
}

TEST_F(Pretrained, WhatIsNotThereIsSaidWithWhatIsNear) {
  add(folder_.path(), "tones");
  EXPECT_THAT(said([] { Model::load("tonse"); }),
              AllOf(HasSubstr("tonse: there is no file or folder and no pretrained model"),
                    HasSubstr("did you mean 'tones'?"), HasSubstr(folder_.path().string()),
                    HasSubstr("SEGFUSE_MODELS")));
  // A card has a name only, whatever lies there.
  EXPECT_THAT(said([] { pretrained_card("."); }), HasSubstr(".: there is no pretrained model"));
}

TEST_F(Pretrained, AFolderWithoutModelsIsRefusedByTheVariable) {
  ::setenv("SEGFUSE_MODELS", "/nope", 1);
  EXPECT_THAT(said([] { pretrained_models(); }),
              HasSubstr("SEGFUSE_MODELS names '/nope', where there is no index.toml"));
}

TEST_F(Pretrained, TheFirstFolderWins) {
  const fs::path first = folder_ / "first";
  const fs::path second = folder_ / "second";
  add(second, "tones");
  add(first, "tones");
  names({first, second});
  EXPECT_EQ(pretrained_file("tones"), first / "tones/model.safetensors");
  EXPECT_EQ(std::ranges::count(pretrained_models(), "tones", &PretrainedModel::name), 1);
  names({second, first});
  EXPECT_EQ(pretrained_file("tones"), second / "tones/model.safetensors");
  names({folder_ / "nowhere"});
  EXPECT_THAT(said([] { pretrained_models(); }),
              HasSubstr("nowhere', where there is no index.toml"));
}

TEST_F(Pretrained, MalformedIndexesAreRefused) {
  const std::string good(64, 'a');
  EXPECT_EQ(said_of_index(entry("tones", good)), "accepted");
  for (const char* name : {"", "..", "../x", "a/b", "Tones", "a b", "a.b"})
    EXPECT_THAT(said_of_index(entry(name, good)),
                AllOf(HasSubstr("index.toml:2:"), HasSubstr("is not a name of a model")))
        << name;
  for (const std::string& hash : {std::string(), std::string(63, 'a'), std::string(64, 'A')})
    EXPECT_THAT(said_of_index(entry("tones", hash)), HasSubstr("is not a SHA-256; expected 64"));
  for (const char* key : {"name", "title", "recordings", "licence", "figure", "sample_rate",
                          "hop_ms", "labels", "bytes", "sha256"}) {
    std::string text = entry("tones", good);
    const std::size_t at = text.find(std::string("\n") + key + " = ") + 1;
    text.erase(at, text.find('\n', at) - at);
    EXPECT_THAT(said_of_index(text), HasSubstr(key)) << key;
  }
  EXPECT_THAT(said_of_index(entry("tones", good) + "more = 1\n"), HasSubstr("more"));
  EXPECT_THAT(said_of_index(entry("tones", good) + entry("a", good) + entry("tones", good)),
              HasSubstr("is the name of a model further up"));
  EXPECT_THAT(said_of_index("[[model]"), HasSubstr("index.toml:1:"));
}

/// Nobody changes a model of the tree without its index, its card or its configuration.
TEST_F(Pretrained, TheModelsOfTheTreeAreThoseOfTheirIndex) {
  constexpr std::uintmax_t kMaxBytes = 1'500'000;  // of all of them: they are in the repository
  const fs::path tree = fs::path(SEGFUSE_SOURCE_DIR) / "models";
  names({tree});
  std::uintmax_t bytes = 0;
  std::size_t count = 0;
  for (const PretrainedModel& row : pretrained_models()) {
    if (row.path.parent_path().parent_path() != tree) continue;
    SCOPED_TRACE(row.name);
    ++count;
    const Model model = Model::load(row.name);
    bytes += fs::file_size(row.path);
    EXPECT_EQ(row.bytes, fs::file_size(row.path));
    EXPECT_EQ(row.labels, model.labels().labels());
    EXPECT_EQ(row.sample_rate, model.features().sample_rate);
    EXPECT_DOUBLE_EQ(row.hop_ms, model.features().hop_ms);
    EXPECT_EQ(read_file(row.path.parent_path() / "config.toml"),
              learn::read_model(row.path).config.text);
    const std::string card = pretrained_card(row.name);
    for (const char* heading :
         {"## Data", "## Licence", "## Split", "## Figures", "## Uses", "## Limits"})
      EXPECT_THAT(card, HasSubstr(std::string("\n") + heading + "\n"));
    EXPECT_TRUE(card.starts_with("# " + row.name + "\n"));
    EXPECT_THAT(card, HasSubstr("95 % interval"));
  }
  EXPECT_LE(bytes, kMaxBytes);
  std::size_t folders = 0;
  for (const auto& item : fs::directory_iterator(tree))
    folders += fs::exists(item.path() / "model.safetensors") ? 1 : 0;
  EXPECT_EQ(count, folders);
}

}  // namespace
}  // namespace segfuse
