#include "learn/report/text.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

namespace segfuse::learn {
namespace {

TEST(ReportText, JsonForScriptCannotEndTheElementAndMeansTheSame) {
  const nlohmann::json value = {{"</script>", "<!-- <script> </SCRIPT\t>"}, {"<", 1}};
  const std::string text = json_for_script(value.dump());
  EXPECT_EQ(text.find('<'), std::string::npos);
  EXPECT_EQ(nlohmann::json::parse(text), value);
}

TEST(ReportText, FormatsValues) {
  const auto text = [](double v, ReportUnit u) {
    std::string out;  // ASCII stand-ins for the typographic characters
    const std::string raw = format_value(v, u);
    for (std::size_t i = 0; i < raw.size(); ++i) {
      const std::string three = raw.substr(i, 3);
      if (three == "\xE2\x88\x92")
        out += '-', i += 2;
      else if (three == "\xE2\x80\x93")
        out += "dash", i += 2;
      else if (three == "\xE2\x80\xAF")
        out += '_', i += 2;
      else if (raw.substr(i, 2) == "\xC2\xA0")
        out += ' ', i += 1;
      else
        out += raw[i];
    }
    return out;
  };
  EXPECT_EQ(text(0.14821, ReportUnit::kPercent), "14.8 %");
  EXPECT_EQ(text(-0.0001, ReportUnit::kPercent), "0.0 %");
  EXPECT_EQ(text(0.91649, ReportUnit::kRatio), "0.916");
  EXPECT_EQ(text(-0.4, ReportUnit::kRatio), "-0.400");
  EXPECT_EQ(text(1243882, ReportUnit::kCount), "1_243_882");
  EXPECT_EQ(text(-999, ReportUnit::kCount), "-999");
  EXPECT_EQ(text(0, ReportUnit::kCount), "0");
  EXPECT_EQ(text(0.0074, ReportUnit::kMillis), "7.4 ms");
  EXPECT_EQ(text(12.34, ReportUnit::kSeconds), "12.3 s");
  EXPECT_EQ(text(187.4, ReportUnit::kSeconds), "3 min 7 s");
  EXPECT_EQ(text(3599.6, ReportUnit::kSeconds), "1 h 0 min");
  EXPECT_EQ(text(7325, ReportUnit::kSeconds), "2 h 2 min");
  EXPECT_EQ(text(123.456, ReportUnit::kNumber), "123");
  EXPECT_EQ(text(0.00123456, ReportUnit::kNumber), "0.00123");
  EXPECT_EQ(text(-1.5e9, ReportUnit::kNumber), "-1.50e+09");
  EXPECT_EQ(text(0, ReportUnit::kNumber), "0");
  for (const ReportUnit unit : {ReportUnit::kNumber, ReportUnit::kPercent, ReportUnit::kCount,
                                ReportUnit::kSeconds, ReportUnit::kMillis, ReportUnit::kRatio}) {
    EXPECT_EQ(text(kNoValue, unit), "dash");
    EXPECT_EQ(text(std::numeric_limits<double>::infinity(), unit), "dash");
    EXPECT_EQ(text(-std::numeric_limits<double>::infinity(), unit), "dash");
  }
}

TEST(ReportText, RoundsToSignificantDigits) {
  EXPECT_EQ(round_significant(1234567, 3), 1230000);
  EXPECT_EQ(round_significant(-0.00123456, 3), -0.00123);
  EXPECT_EQ(round_significant(0, 6), 0);
  EXPECT_EQ(round_significant(9.9996, 4), 10);
  EXPECT_TRUE(std::isnan(round_significant(INFINITY, 3)));
}

}  // namespace
}  // namespace segfuse::learn
