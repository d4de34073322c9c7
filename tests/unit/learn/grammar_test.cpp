#include "learn/model/grammar.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "learn/train/decode/decoder.h"
#include "learn/train/loop/crf_start.h"
#include "segfuse/error.h"
#include "small_data.h"
#include "support/tiny_model.h"

namespace segfuse::learn {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

const Alphabet& abc() {
  static const Alphabet labels({"a", "b", "c"});
  return labels;
}

/// a is followed by b alone, of 2 frames at least; recordings begin with a and do not end with it.
Grammar some_grammar() {
  Grammar grammar;
  grammar.next = {{"a", {"b"}}};
  grammar.first = {"a"};
  grammar.last = {"b", "c"};
  grammar.shortest = {{"b", 0.02}};
  grammar.longest = {{"c", 0.03}};
  return grammar;
}

std::string said(const Grammar& grammar, const std::vector<FrameSegment>& gold,
                 bool joined = false) {
  try {
    check_gold(rules_of(grammar, abc(), 0.01, joined), abc(), "song", gold, 0.01);
    return "";
  } catch (const DataError& error) {
    return error.what();
  }
}

TEST(Grammar, GoldThatBreaksARuleIsNamedWithItsPlace) {
  const Grammar g = some_grammar();
  EXPECT_EQ(said(g, {{0, 1, 0}, {1, 2, 1}, {3, 3, 2}}), "");
  EXPECT_THAT(said(g, {{0, 2, 1}}), HasSubstr("song: the segment 'b' at 0 s begins the recording"));
  EXPECT_THAT(said(g, {{0, 1, 0}, {1, 1, 1}}),
              HasSubstr("'b' at 0.01 s lasts 1 frames; grammar.sh"));
  EXPECT_THAT(said(g, {{0, 1, 0}, {1, 2, 1}, {3, 4, 2}}),
              HasSubstr("grammar.longest says at most 3"));
  EXPECT_THAT(said(g, {{0, 1, 0}, {1, 2, 2}}),
              AllOf(HasSubstr("'c' at 0.01 s follows 'a'"), HasSubstr("grammar.next.a")));
  EXPECT_THAT(said(g, {{0, 1, 0}}), HasSubstr("ends the recording; grammar.last"));
  // What the training set lacks is nobody's follower.
  EXPECT_EQ(said(g, {{0, 1, 0}, {1, 2, kUnknownLabel}, {3, 1, 2}}), "");
  const std::vector<FrameSegment> twice{{0, 1, 0}, {1, 2, 1}, {3, 2, 2}, {5, 2, 2}};
  EXPECT_EQ(said(g, twice), "");
  EXPECT_THAT(said(g, twice, true), HasSubstr("model.long_segments"));
}

TEST(Grammar, NamesAndDurationsMustFit) {
  Grammar g;
  g.next = {{"a", {"B"}}};
  EXPECT_THAT(said(g, {}), HasSubstr("grammar.next.a: the training recordings have no label 'B'"));
  g = {};
  g.shortest = {{"a", 0.05}};
  g.longest = {{"a", 0.04}};
  EXPECT_THAT(said(g, {}), HasSubstr("'a' lasts at most 0.04 s here and at least 0.05 s"));
  // Down for the shortest, up for the longest: edges lie anywhere between frames.
  g.shortest = {{"a", 0.019}};
  g.longest = {{"a", 0.031}};
  const Rules rules = rules_of(g, abc(), 0.01, false);
  EXPECT_EQ(rules.shortest[0], 1);
  EXPECT_EQ(rules.longest[0], 4);
  EXPECT_EQ(rules.longest[1], 0);
}

TEST(Grammar, TheLongestDurationStandsBesideAShortestOne) {
  const Tensor table = duration_limit_table({3, 5, 4}, 5, {2, 5, 1});
  EXPECT_EQ(limits_of(table), (std::vector<std::int64_t>{3, 5, 4}));
  EXPECT_TRUE(std::isinf(table.at(0)));
  EXPECT_EQ(table.at(3), 0);
}

TEST(Grammar, RestsAreNotShorterThanTheShortest) {
  const auto parts = split_long({{0, 9, 0}, {9, 8, 0}}, {4}, true, {2});
  const std::vector<FrameSegment> expected{{0, 4, 0}, {4, 3, 0}, {7, 2, 0}, {9, 4, 0}, {13, 4, 0}};
  EXPECT_EQ(parts, expected);
}

/// A model of parameters that are far from such a grammar.
std::vector<Decoded> decoded_with(const Limits& limits, HeadKind head, bool ordered,
                                  const std::vector<Sequence>& sequences) {
  ModelConfig sizes = tiny(0, head);
  sizes.ordered = ordered;
  const Segmenter segmenter(sizes);
  std::vector<Tensor> parameters;
  Rng rng(4);
  for (const nn::ParameterSpec& spec : segmenter.parameters())
    parameters.push_back(segfuse::testing::uniform(rng, DType::kF32, spec.shape));
  Decoder decoder(segmenter, parameters, limits, {});
  Decoder::Options how;
  how.k_best = 3;
  how.samples = 3;
  return decoder.decode(sequences, how);
}

/// Segmentations that break the rules; those of frames have no durations.
std::int64_t broken(const std::vector<Decoded>& all, const Grammar& grammar, bool durations) {
  Grammar g = grammar;
  if (!durations) g.shortest = g.longest = {};
  std::int64_t count = 0;
  for (const Decoded& d : all) {
    std::vector<std::vector<FrameSegment>> segmentations(1);
    for (const DecodedSegment& s : d.segments) segmentations[0].push_back(s.segment);
    for (const auto* list : {&d.best, &d.samples})
      for (const Alternative& a : *list) segmentations.push_back(a.segments);
    for (const auto& segments : segmentations) count += !said(g, segments).empty();
  }
  return count;
}

TEST(Grammar, WhatIsDecodedObeysIt) {
  const std::vector<Sequence> sequences = some_sequences();
  const Grammar grammar = some_grammar();
  const Rules rules = rules_of(grammar, abc(), 0.01, false);
  const Tensor none = duration_limit_table({4, 4, 4}, 4);
  const Tensor durations = duration_limit_table({4, 4, 3}, 4, rules.shortest);
  const OrderLimit semi = order_limit(rules, {false, false, false});
  const OrderLimit chain = order_limit(rules, {true, true, true});
  EXPECT_GT(broken(decoded_with(none, HeadKind::kSemiMarkov, false, sequences), grammar, true), 20);
  EXPECT_EQ(broken(decoded_with({durations, semi}, HeadKind::kSemiMarkov, true, sequences), grammar,
                   true),
            0);
  EXPECT_GT(broken(decoded_with(none, HeadKind::kLinearChain, false, sequences), grammar, false),
            20);
  EXPECT_EQ(
      broken(decoded_with({none, chain}, HeadKind::kLinearChain, true, sequences), grammar, false),
      0);
}

TEST(Grammar, StandsInTheModelFile) {
  TrainedModel model = test::tiny_model();
  model.config = parse_train_config(
      model.config.text + "[grammar]\nfirst = [\"a\"]\n[grammar.next]\n\"a\" = [\"b\"]\n", "tiny");
  model.config.data.path = "data";
  model.config.model.features = 4;
  model.config.model.classes = 3;
  model.config.model.max_duration = 5;
  model.config.model.ordered = true;
  model.order_limit =
      order_limit(rules_of(model.config.grammar, model.labels, 0.01, false), {false, false, false});
  TensorFile file = file_of(model);
  const TrainedModel again = model_of(file, "again");
  EXPECT_TRUE(again.config.model.ordered);
  EXPECT_EQ(again.order_limit.transition.at(1), 0);
  EXPECT_TRUE(std::isinf(again.order_limit.transition.at(2)));
  EXPECT_TRUE(std::isinf(again.order_limit.initial.at(1)));
  EXPECT_EQ(again.order_limit.final.at(1), 0);
  std::erase_if(file.tensors, [](const auto& t) { return t.first == "final_limit"; });
  EXPECT_THROW((void)model_of(file, "cut"), DataError);
}

}  // namespace
}  // namespace segfuse::learn
