#include "learn/train/files/model_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <functional>
#include <limits>

#include "base/json/json.h"
#include "learn/train/files/checkpoint.h"
#include "learn/train/files/safetensors.h"
#include "support/files.h"
#include "support/tiny_model.h"

namespace segfuse::learn {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr float kInf = std::numeric_limits<float>::infinity();

using test::tiny_model;

class ModelFile : public ::testing::Test {
 protected:
  test::TemporaryDirectory folder_;
  fs::path path_ = folder_ / "segfuse_model_file_test.safetensors";

  TensorFile file() {
    write_model(path_, tiny_model());
    return read_safetensors(path_);
  }
  /// What read_model() says of a model file after `change`.
  std::string said(const std::function<void(TensorFile&)>& change) {
    TensorFile changed = file();
    change(changed);
    write_safetensors(path_, changed);
    try {
      read_model(path_);
    } catch (const DataError& error) {
      return error.what();
    }
    return "accepted";
  }
  std::string said_of_json(const std::function<void(Json&)>& change) {
    return said([&](TensorFile& f) {
      Json json = Json::parse(f.metadata.at("model"));
      change(json);
      f.metadata["model"] = json.dump();
    });
  }
};

Tensor& tensor(TensorFile& file, const std::string& name) {
  for (auto& [key, value] : file.tensors)
    if (key == name) return value;
  throw std::runtime_error("no tensor " + name);
}

TEST_F(ModelFile, WhatWasWrittenIsReadForEveryHead) {
  for (const HeadKind head : {HeadKind::kSemiMarkov, HeadKind::kLinearChain, HeadKind::kSoftmax}) {
    const TrainedModel model = tiny_model(head);
    write_model(path_, model);
    const TrainedModel back = read_model(path_);
    EXPECT_EQ(back.config.model, model.config.model);
    EXPECT_EQ(back.labels.labels(), model.labels.labels());
    EXPECT_EQ(back.parameters.size(), model.parameters.size());
  }
}

// A table that was too small was read beyond its end.
TEST_F(ModelFile, TheTableOfDurationsHasTheModelsShapeAndType) {
  for (const Shape& shape : {Shape{0}, Shape{1}, Shape{15}, Shape{3, 5}, Shape{5, 4}, Shape{}})
    EXPECT_THAT(said([&](TensorFile& f) {
                  tensor(f, "duration_limit") = Tensor::zeros(DType::kF32, shape);
                }),
                AllOf(HasSubstr("segfuse_model_file_test.safetensors: 'duration_limit' is f32"),
                      HasSubstr("asks for f32[5, 3]")))
        << to_string(shape);
  EXPECT_THAT(
      said([](TensorFile& f) { tensor(f, "duration_limit") = Tensor::zeros(DType::kF64, {5, 3}); }),
      HasSubstr("'duration_limit' is f64[5, 3]"));
  for (const float value : {1.0F, kInf, std::nanf("")})
    EXPECT_THAT(said([&](TensorFile& f) {
                  tensor(f, "duration_limit") = Tensor::full(DType::kF32, {5, 3}, value);
                }),
                HasSubstr("expected 0 or -inf"));
  EXPECT_EQ(said([](TensorFile& f) { tensor(f, "duration_limit").set(14, -kInf); }), "accepted");
}

TEST_F(ModelFile, EveryTensorIsLookedAt) {
  const TensorFile whole = file();
  for (const auto& [name, value] : whole.tensors) {
    const Shape shape = value.shape();
    const DType dtype = value.dtype();
    EXPECT_THAT(said([&](TensorFile& f) {
                  std::erase_if(f.tensors, [&](const auto& t) { return t.first == name; });
                }),
                HasSubstr("'" + name + "' is missing"));
    EXPECT_THAT(said([&](TensorFile& f) {
                  tensor(f, name) =
                      Tensor::full(dtype == DType::kF32 ? DType::kF64 : DType::kF32, shape, 1);
                }),
                HasSubstr("'" + name + "' is "));
    Shape longer = shape;
    ++longer.back();
    EXPECT_THAT(said([&](TensorFile& f) { tensor(f, name) = Tensor::full(dtype, longer, 1); }),
                HasSubstr("'" + name + "' is "));
    // Parameters may hold anything: doctor numerics looks at models that have gone wrong.
    if (name.starts_with("parameter.")) continue;
    EXPECT_THAT(said([&](TensorFile& f) { tensor(f, name).set(0, std::nan("")); }),
                HasSubstr("'" + name + "' holds nan"));
  }
  EXPECT_THAT(said([](TensorFile& f) { tensor(f, "normalisation.deviation").set(1, 0); }),
              HasSubstr("'normalisation.deviation' holds 0; expected numbers above 0"));
  EXPECT_THAT(said([](TensorFile& f) {
                f.tensors.emplace_back("parameter.block7.bias", Tensor::zeros(DType::kF32, {1}));
              }),
              HasSubstr("'parameter.block7.bias' belongs to another model"));
}

TEST_F(ModelFile, EveryKeyOfTheMetadataIsLookedAt) {
  const Json whole = Json::parse(file().metadata.at("model"));
  const std::vector<Json> strange = {nullptr,
                                     "x",
                                     -1,
                                     0,
                                     1.5,
                                     true,
                                     1e18,
                                     Json::array(),
                                     "",
                                     Json::object(),
                                     Json::array({Json::array()}),
                                     UINT64_MAX};
  for (const auto& [key, value] : whole.items()) {
    const bool optional = key == "joins_neighbours";  // older models have none
    EXPECT_THAT(said_of_json([&](Json& json) { json.erase(key); }),
                optional ? HasSubstr("accepted") : HasSubstr("there is no '" + key + "'"));
    for (const Json& other : strange) {
      if (optional && other.is_array() && other.empty()) continue;
      if (other.type() == value.type() && (key == "data" || key == "overrides")) continue;
      EXPECT_THAT(said_of_json([&](Json& json) { json[key] = other; }),
                  HasSubstr("segfuse_model_file_test.safetensors: "))
          << key << " " << other;
    }
  }
  EXPECT_THAT(said_of_json([](Json& json) { json["max_duration"] = 1'000'000; }),
              HasSubstr("asks for f32[1000000, 3]"));
  EXPECT_THAT(said_of_json([](Json& json) { json["labels"] = {"a", "a", "b"}; }),
              HasSubstr("twice"));
  EXPECT_THAT(said_of_json([](Json& json) { json["labels"] = {"a", "b"}; }),
              HasSubstr("'duration_limit' is f32[5, 3]"));
}

TEST_F(ModelFile, MetadataThatNestsDeeplyIsRefused) {
  const std::string deep(200'000, '[');
  EXPECT_THAT(said([&](TensorFile& f) { f.metadata["model"] = "{\"version\":" + deep; }),
              HasSubstr("nests more than 64"));
  EXPECT_THAT(said([](TensorFile& f) { f.metadata["model"] = "{\"version\":1e999}"; }),
              HasSubstr("too large for a double"));
}

TEST_F(ModelFile, AConfigurationThatCannotWorkIsTheFilesFault) {
  EXPECT_THAT(said([](TensorFile& f) { f.metadata["config"] += "[features]\nhop_ms = 1e-3\n"; }),
              HasSubstr("segfuse_model_file_test.safetensors"));
  EXPECT_THAT(said([](TensorFile& f) {
                f.metadata["config"] = "[features]\nwindow_ms = 1000000\n[model]\nwidth = 2\n";
              }),
              AllOf(HasSubstr("segfuse_model_file_test.safetensors (config)"),
                    HasSubstr("window_ms is 1000000")));
}

TEST_F(ModelFile, APathThatIsNotUtf8CostsNothing) {
  TrainedModel model = tiny_model();
  model.config.data.path =
      "bad\xFF"
      "dir";
  write_model(path_, model);
  EXPECT_EQ(read_model(path_).config.data.path,
            "bad\xEF\xBF\xBD"
            "dir");
}

class Checkpoint : public ::testing::Test {
 protected:
  test::TemporaryDirectory folder_;
  fs::path path_ = folder_ / "segfuse_checkpoint_test.safetensors";
  std::vector<nn::ParameterSpec> specs_ = test::tiny_specs();

  static TrainingState state() { return test::tiny_state(); }
  std::string said(const std::function<void(TensorFile&)>& change) {
    write_checkpoint(path_, state(), specs_, test::kTinyRecipe);
    TensorFile file = read_safetensors(path_);
    change(file);
    write_safetensors(path_, file);
    try {
      read_checkpoint(path_, specs_, test::kTinyRecipe);
    } catch (const Error& error) {  // another recipe is a UsageError
      return error.what();
    }
    return "accepted";
  }
};

TEST_F(Checkpoint, WhatWasWrittenIsRead) {
  write_checkpoint(path_, state(), specs_, test::kTinyRecipe);
  const TrainingState back = read_checkpoint(path_, specs_, test::kTinyRecipe);
  EXPECT_EQ(back.step, 12);
  EXPECT_EQ(back.best_score, 0.25);
  ASSERT_EQ(back.history.size(), 2);
  EXPECT_EQ(back.history[0].epoch, 1);
  EXPECT_TRUE(std::isnan(back.history[1].dev_error));
}

TEST_F(Checkpoint, EveryTensorIsLookedAt) {
  write_checkpoint(path_, state(), specs_, test::kTinyRecipe);
  const TensorFile whole = read_safetensors(path_);
  ASSERT_EQ(whole.tensors.size(), 10);
  for (const auto& [name, value] : whole.tensors) {
    const Shape shape = value.shape();
    EXPECT_THAT(said([&](TensorFile& f) { tensor(f, name) = Tensor::zeros(DType::kF32, {7}); }),
                HasSubstr("'" + name + "'"));
    EXPECT_THAT(said([&](TensorFile& f) { tensor(f, name) = Tensor::zeros(DType::kF64, shape); }),
                HasSubstr("'" + name + "'"));
    for (const double bad : {std::nan(""), HUGE_VAL})
      EXPECT_THAT(
          said([&](TensorFile& f) { tensor(f, name) = Tensor::full(DType::kF32, shape, bad); }),
          HasSubstr(path_.string() + ": '" + name + "' holds "));
  }
}

TEST_F(Checkpoint, EveryKeyOfTheStateIsLookedAt) {
  write_checkpoint(path_, state(), specs_, test::kTinyRecipe);
  const Json whole = Json::parse(read_safetensors(path_).metadata.at("state"));
  const auto with = [&](const std::string& key, const Json& value) {
    return said([&](TensorFile& f) {
      Json json = whole;
      json[key] = value;
      f.metadata["state"] = json.dump();
    });
  };
  for (const auto& [key, value] : whole.items()) {
    EXPECT_THAT(said([&](TensorFile& f) {
                  Json json = whole;
                  json.erase(key);
                  f.metadata["state"] = json.dump();
                }),
                HasSubstr("there is no '" + key + "'"));
    EXPECT_THAT(with(key, Json::object()), HasSubstr("segfuse_checkpoint_test.safetensors")) << key;
    EXPECT_THAT(with(key, "x"), ::testing::Not("accepted")) << key;
  }
  for (const char* key : {"step", "epoch", "batch", "best_epoch"}) {
    EXPECT_THAT(with(key, -1), HasSubstr(std::string("at ") + key));
    EXPECT_THAT(with(key, 1e300), HasSubstr(std::string("at ") + key));
  }
  EXPECT_THAT(with("epoch", 3), HasSubstr("as many epochs as the history has"));
  EXPECT_THAT(with("best_epoch", 3), HasSubstr("the best one among them"));
  EXPECT_THAT(with("history", {{1, 2}, {3, 4}}), HasSubstr("the 8 numbers of an epoch"));
  EXPECT_THAT(with("version", 1), HasSubstr("version 1; this program reads version 2"));
  EXPECT_THAT(
      said([](TensorFile& f) { f.metadata["state"] = "{\"a\":" + std::string(200'000, '['); }),
      HasSubstr("nests more than 64"));
}

}  // namespace
}  // namespace segfuse::learn
