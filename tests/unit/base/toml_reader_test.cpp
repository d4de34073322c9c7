#include "base/toml_reader.h"

#include <fmt/core.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/os/file.h"
#include "segfuse/error.h"

namespace segfuse {
namespace {

using testing::ElementsAre;

constexpr std::string_view kConfig = R"(name = "demo"
[optim]
learning_rate = 0.002
steps = 300
clip = 1
betas = [0.9, 1]
[model]
widths = [8, 16]
head = "semicrf"
bias = true
[[layer]]
kind = "conv"
[[layer]]
kind = "norm"
eps = 1e-5
[fold]
zh = "sh"
ax = "ah"
)";

TomlReader config() { return TomlReader::parse(kConfig, "a.toml"); }

template <class F>
std::string data_error_of(F&& action) {
  try {
    action();
  } catch (const DataError& error) {
    return error.what();
  }
  return "no error";
}

TEST(TomlReader, SettingsAreWhatTheGettersGave) {
  const TomlReader root =
      TomlReader::parse("title = 'a \"b\"'\n[optim]\nsteps = 3\nsizes = [1, 2]\n", "a.toml",
                        {"optim.rate=2e-3", "optim.steps=4"});
  EXPECT_EQ(root.string("title"), "a \"b\"");
  const TomlReader optim = root.section("optim");
  EXPECT_TRUE(root.holds_string("title"));
  EXPECT_FALSE(optim.holds_string("steps"));
  EXPECT_FALSE(optim.holds_string("nothing"));
  (void)optim.integer("steps", 1);
  (void)optim.number("rate", 1.0);
  (void)optim.number("decay", 0.25, 0, 1);
  (void)optim.integers("sizes");
  (void)optim.boolean("fast", true);
  (void)optim.strings("names", {"x", "y\n"});
  (void)optim.choice("kind", "adam", {"adam", "sgd"});
  (void)optim.integer("steps", 1);
  std::string text;
  for (const TomlReader::Setting& s : root.settings()) text += s.name() + " = " + s.value + "\n";
  EXPECT_EQ(text,
            "title = \"a \\\"b\\\"\"\noptim.steps = 4\noptim.rate = 0.002\noptim.decay = 0.25\n"
            "optim.sizes = [1, 2]\noptim.fast = true\noptim.names = [\"x\", \"y\\u000A\"]\n"
            "optim.kind = \"adam\"\n");
}

TEST(TomlReader, GettersGiveTheFilesValues) {
  const TomlReader reader = config();
  const TomlReader optim = reader.section("optim");
  const TomlReader model = reader.section("model");
  EXPECT_EQ(reader.string("name"), "demo");
  EXPECT_EQ(optim.number("learning_rate", 1.0), 0.002);
  EXPECT_EQ(optim.integer("steps", 1, 1, 300), 300);
  EXPECT_EQ(optim.number("clip"), 1.0) << "integers serve as numbers";
  EXPECT_THAT(optim.numbers("betas"), ElementsAre(0.9, 1.0));
  EXPECT_THAT(model.integers("widths"), ElementsAre(8, 16));
  EXPECT_EQ(model.choice("head", "softmax", {"softmax", "semicrf"}), "semicrf");
  EXPECT_TRUE(model.boolean("bias"));
  const std::vector<TomlReader> layers = reader.sections("layer");
  ASSERT_EQ(layers.size(), 2U);
  EXPECT_EQ(layers[1].string("kind"), "norm");
  EXPECT_EQ(layers[1].number("eps", 0), 1e-5);
  EXPECT_THAT(reader.section("fold").keys(), ElementsAre("zh", "ax")) << "in file order";
}

TEST(TomlReader, AbsentKeysGiveTheFallback) {
  const TomlReader reader = config();
  EXPECT_EQ(reader.section("absent").number("x", 2.5), 2.5);
  EXPECT_EQ(reader.section("absent").section("deeper").integer("x", 3, 10, 20), 3);
  EXPECT_EQ(reader.section("optim").string("name", "adamw"), "adamw");
  EXPECT_EQ(reader.section("model").choice("norm", "layer", {"batch"}), "layer");
  EXPECT_THAT(reader.strings("names", {"a"}), ElementsAre("a"));
  EXPECT_TRUE(reader.sections("blocks").empty());
  EXPECT_FALSE(reader.has("seed"));
}

TEST(TomlReader, MissingKeysAreNamed) {
  EXPECT_EQ(data_error_of([] { config().string("data"); }), "a.toml:1:1: 'data' is missing");
  EXPECT_EQ(data_error_of([] { config().section("optim").number("decay"); }),
            "a.toml:2:1: 'decay' is missing in [optim]");
  EXPECT_EQ(data_error_of([] { config().section("gone").number("decay"); }),
            "a.toml: 'decay' is missing in [gone]");
}

TEST(TomlReader, WrongTypesAndRangesNameThePlace) {
  const TomlReader optim = config().section("optim");
  EXPECT_EQ(data_error_of([&] { optim.integer("learning_rate"); }),
            "a.toml:3:17: 'optim.learning_rate' must be an integer, found a number");
  EXPECT_EQ(data_error_of([&] { optim.string("steps", ""); }),
            "a.toml:4:9: 'optim.steps' must be a string, found an integer");
  EXPECT_EQ(data_error_of([&] { optim.integer("steps", 1, 1, 200); }),
            "a.toml:4:9: 'optim.steps' is 300; it must lie in [1, 200]");
  EXPECT_EQ(data_error_of([&] { optim.number("clip", 2, 1.5); }),
            "a.toml:5:8: 'optim.clip' is 1; it must be at least 1.5");
  EXPECT_EQ(data_error_of([&] { optim.integers("betas"); }),
            "a.toml:6:10: 'optim.betas' must be an integer, found a number");
  EXPECT_EQ(data_error_of([&] { optim.numbers("steps"); }),
            "a.toml:4:9: 'optim.steps' must be an array, found an integer");
  EXPECT_EQ(data_error_of([&] { optim.boolean("steps", false); }),
            "a.toml:4:9: 'optim.steps' must be true or false, found an integer");
  EXPECT_EQ(data_error_of([] { config().section("name"); }),
            "a.toml:1:8: 'name' must be a table, found a string");
  EXPECT_EQ(data_error_of([&] { optim.sections("betas"); }),
            "a.toml:6:9: 'optim.betas' must be an array of tables, found an array");
}

TEST(TomlReader, ChoicesSuggestTheNearest) {
  const TomlReader model = config().section("model");
  EXPECT_EQ(data_error_of([&] { model.choice("head", "", {"softmax", "semi-crf"}); }),
            "a.toml:9:8: 'model.head' is 'semicrf', which is not among 'softmax' and 'semi-crf'; "
            "did you mean 'semi-crf'?");
}

TEST(TomlReader, NumbersThatAreNotFiniteAreRefused) {
  const TomlReader reader = TomlReader::parse("x = nan\ny = inf", "a.toml");
  EXPECT_THROW(reader.number("x", 0), DataError);
  EXPECT_THROW(reader.number("y", 0), DataError);
}

void ask_everything(const TomlReader& reader) {
  reader.string("name");
  const TomlReader optim = reader.section("optim");
  optim.number("learning_rate", 1);
  optim.integer("steps", 1);
  optim.number("clip", 1);
  optim.numbers("betas");
  const TomlReader model = reader.section("model");
  model.integers("widths");
  model.string("head", "");
  model.boolean("bias", false);
  for (const TomlReader& layer : reader.sections("layer")) {
    layer.string("kind");
    layer.number("eps", 0);
  }
  reader.section("fold").keys();
}

TEST(TomlReader, NothingIsUnknownWhenAllWasAskedFor) {
  const TomlReader reader = config();
  ask_everything(reader);
  EXPECT_EQ(data_error_of([&] { reader.refuse_unknown(); }), "no error");
}

TEST(TomlReader, UnknownKeysAreRefusedWithTheNearestKnownOne) {
  const auto refusal = [](const std::string& from, const std::string& to) {
    std::string text(kConfig);
    text.replace(text.find(from), from.size(), to);
    const TomlReader reader = TomlReader::parse(text, "a.toml");
    ask_everything(reader);
    return data_error_of([&] { reader.refuse_unknown(); });
  };
  EXPECT_EQ(refusal("learning_rate", "learnin_rate"),
            "a.toml:3:1: unknown key 'learnin_rate' in [optim]; did you mean 'learning_rate'?");
  EXPECT_EQ(refusal("[fold]", "[folding]"),
            "a.toml:16:2: unknown key 'folding'; known are 'fold', 'layer', 'model', 'name' and "
            "'optim'");
  EXPECT_EQ(refusal("eps = 1e-5", "epsilon = 1e-5"),
            "a.toml:15:1: unknown key 'epsilon' in [layer[1]]; known are 'eps' and 'kind'");
}

TEST(TomlReader, OverridesWinAndAreBlamedByTheirOwnText) {
  const TomlReader reader = TomlReader::parse(
      kConfig, "a.toml",
      {"optim.steps=7", "model.head=soft max", "new.deep.x = [1, 2]", "model.widths=wide"});
  EXPECT_EQ(reader.section("optim").integer("steps"), 7);
  EXPECT_EQ(reader.section("optim").number("learning_rate"), 0.002) << "the others stay";
  EXPECT_EQ(reader.section("model").string("head"), "soft max");
  EXPECT_THAT(reader.section("new").section("deep").integers("x"), ElementsAre(1, 2));
  const auto usage_message = [](auto&& action) -> std::string {
    try {
      action();
    } catch (const UsageError& error) {
      return error.what();
    }
    return "no usage error";
  };
  EXPECT_EQ(
      usage_message([&] { reader.section("model").integers("widths"); }),
      "override 'model.widths=wide': 'model.widths' must be an array, found the text \"wide\"");
  EXPECT_EQ(usage_message([&] { reader.section("optim").integer("steps", 1, 10, 20); }),
            "override 'optim.steps=7': 'optim.steps' is 7; it must lie in [10, 20]");
  EXPECT_EQ(usage_message([&] { TomlReader::parse("", "a.toml", {"optim.steps"}); }),
            "override 'optim.steps': expected the form section.key=value");
  EXPECT_THAT(usage_message([&] { TomlReader::parse("", "a.toml", {"a b=1"}); }),
              testing::StartsWith("override 'a b=1': "));
}

TEST(TomlReader, WhatAnOverrideHasInsteadIsShown) {
  const auto message = [](const std::string& value, auto&& get) -> std::string {
    const std::string start = "override 'x.y=" + value + "': 'x.y' must be ";
    const TomlReader reader = TomlReader::parse("", "a.toml", {"x.y=" + value});
    try {
      get(reader.section("x"));
    } catch (const UsageError& error) {
      const std::string text = error.what();
      return text.starts_with(start) ? text.substr(start.size()) : text;
    }
    return "none";
  };
  const auto integer = [](const TomlReader& section) { section.integer("y"); };
  const auto number = [](const TomlReader& section) { section.number("y"); };
  for (const char* digits : {"99999999999999999999", "-9_223_372_036_854_775_809", "1e400"})
    EXPECT_EQ(message(digits, integer),
              fmt::format("an integer, found {}, which is too large", digits));
  EXPECT_EQ(message("1e400", number), "a finite number, found 1e400, which is too large");
  EXPECT_EQ(message("0,001", number), "a finite number, found the text \"0,001\"");
  EXPECT_EQ(message("1-2", integer), "an integer, found the text \"1-2\"");
  EXPECT_EQ(message("\"5\"", integer), "an integer, found the text \"5\"");
  EXPECT_EQ(message("", integer), "an integer, found nothing");
  EXPECT_EQ(message("9223372036854775807", integer), "none");
}

TEST(TomlReader, UnknownOverridesAreUsageErrors) {
  const TomlReader reader = TomlReader::parse(kConfig, "a.toml", {"optim.step=7"});
  ask_everything(reader);
  try {
    reader.refuse_unknown();
    FAIL() << "no error";
  } catch (const UsageError& error) {
    EXPECT_STREQ(error.what(),
                 "override 'optim.step=7': unknown key 'step' in [optim]; did you mean 'steps'?");
  }
}

TEST(TomlReader, MalformedTextGivesThePlaceAndExitCode3) {
  try {
    TomlReader::parse("a = 1\nb = = 2\n", "b.toml");
    FAIL() << "no error";
  } catch (const DataError& error) {
    EXPECT_THAT(error.what(), testing::StartsWith("b.toml:2:5: "));
    EXPECT_EQ(error.exit_code(), ExitCode::kData);
  }
  EXPECT_THROW(TomlReader::parse("a = 1\na = 2", "b.toml"), DataError);
  EXPECT_THROW(TomlReader::open("/nonexistent/a.toml"), FileError);
}

std::string repeated(std::string_view text, int times) {
  std::string all;
  for (int i = 0; i < times; ++i) all += text;
  return all;
}

TEST(TomlReader, KeysOfManyPartsAreRefused) {
  for (const std::string part : {"a.", "\"a\".", "'a' . ", "\"\\\"#\"."}) {
    for (const std::string& text :
         {"\n" + repeated(part, 100'000) + "a = 1\n", "\n[" + repeated(part, 100'000) + "a]\n",
          "\na = {" + repeated(part, 100'000) + "a = 1}\n"}) {
      try {
        TomlReader::parse(text, "b.toml");
        FAIL() << "no error";
      } catch (const DataError& error) {
        EXPECT_THAT(error.what(), testing::StartsWith("b.toml:2: a key of more than 64 parts"));
      }
    }
    EXPECT_THROW(TomlReader::parse("", "b.toml", {repeated(part, 100'000) + "a=1"}), UsageError);
  }
  const TomlReader fine = TomlReader::parse(
      repeated("a.", 60) + "a = 1\n# " + repeated("a.", 100) + "\nb = \"" + repeated("a.", 100) +
          "\"\nc = '" + repeated("a.", 100) + "'\nd = \"\"\"\n" + repeated("a.\"", 100) +
          "\"\"\"\ne = [" + repeated("1.5, ", 100) + "]\n",
      "b.toml");
  EXPECT_EQ(fine.string("b"), repeated("a.", 100));
}

}  // namespace
}  // namespace segfuse
