#include "unit/report/fake_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <random>

namespace segfuse::learn {
namespace {

constexpr double kHop = 0.01;
constexpr std::int32_t kBins = 40;
const char* const kNames[] = {"a",  "o",  "i",  "e",  "u",  "pau", "t",  "n",  "s",   "k",  "r",
                              "v",  "m",  "l",  "p",  "d",  "y",   "j",  "a0", "i0",  "t'", "n'",
                              "s'", "l'", "r'", "v'", "d'", "b",   "z",  "g",  "ch",  "sh", "zh",
                              "f",  "x",  "ts", "m'", "b'", "p'",  "k'", "z'", "shch"};

class Faker {
 public:
  explicit Faker(const FakeReport& options) : o_(options), random_(options.seed) {}

  ReportData make() {
    ReportData d;
    head(d);
    for (std::int32_t i = 0; i < o_.labels; ++i) {
      d.labels.push_back(i < 42 ? kNames[i] : fmt::format("label {}", i));
    }
    metrics(d);
    study(d);
    epochs(d);
    durations(d);
    confusions(d);
    calibrations(d);
    for (std::int64_t i = 0; i < o_.recordings; ++i) d.recordings.push_back(recording(i));
    return d;
  }

 private:
  double uniform() { return std::uniform_real_distribution<double>(0, 1)(random_); }
  double normal() { return std::normal_distribution<double>(0, 1)(random_); }
  double frequency(std::int32_t label) const { return 1.0 / (2.0 + label); }
  double mean_duration(std::int32_t label) const {
    return label == 5 ? 0.24 : 0.045 + 0.012 * static_cast<double>(label * 7 % 9);
  }

  void head(ReportData& d) const {
    d.title = "Segmenting read Russian speech";
    d.data_set = "festvox-ru: 496 training, 62 dev, 62 test recordings (1 speaker, 16 kHz)";
    d.date = "2025-03-14 10:22";
    d.model = "semi-Markov CRF, K = 50, on 6 residual temporal-convolution blocks, 128 channels";
    d.parameters = 1'243'882;
    d.seconds = 187.4;
    d.facts = {{"Device", "CPU, 2 threads"}, {"Seed", "1"}};
    d.environment = {{"segfuse", "0.1.0"},
                     {"compiler", "gcc 12.2.0, Release"},
                     {"processor", "x86-64, AVX-512, 2 cores"},
                     {"switched off", "CUDA, MPI, LLVM"}};
    d.config =
        "[data]\nkind = \"festvox\"\nfeatures = \"logmel\"\nbins = 40\n\n[model]\nencoder = "
        "\"tcn\"\nchannels = 128\nblocks = 6\nmax_duration = 50\n\n[train]\nepochs = 24\nrate = "
        "0.002\nbatch_seconds = 60\n";
  }

  static void study(ReportData& d) {
    d.charts = {{"Label error rate",
                 "training recordings",
                 "label errors / gold segments",
                 true,
                 {25, 50, 100},
                 {{"semi_markov", {0.3, 0.2, kNoValue}, {{0.28, 0.33}, {0.19, 0.22}, {}}},
                  {"softmax", {0.7, 0.6, 0.5}, {}}}}};
    d.tables = {{"Points",
                 "A note.",
                 {"point", "label error rate"},
                 {{"share-0.25", "30 %"}, {"share-0.5", "20 %"}}}};
  }

  static void metrics(ReportData& d) {
    d.systems = {"semi-Markov", "linear chain", "per frame"};
    const auto lower = ReportBetter::kLower;
    const auto higher = ReportBetter::kHigher;
    d.metrics = {
        {"Label error rate",
         ReportUnit::kPercent,
         lower,
         {0.1482, 0.1519, 0.6127},
         true,
         "edits over gold segments"},
        {"Boundary F1 at 20 ms", ReportUnit::kRatio, higher, {0.9164, 0.9097, 0.7012}, true, ""},
        {"R-value at 20 ms", ReportUnit::kRatio, higher, {0.9271, 0.9184, 0.4103}, true, ""},
        {"Frame accuracy", ReportUnit::kPercent, higher, {0.8712, 0.8715, 0.8598}, true, ""},
        {"Exact-segment F1", ReportUnit::kRatio, higher, {0.7931, 0.7822, 0.4871}, true, ""},
        {"Mean duration error",
         ReportUnit::kMillis,
         lower,
         {0.0074, 0.0079, 0.0213},
         false,
         "mean absolute error of matched segments"},
        {"Log likelihood a frame",
         ReportUnit::kNumber,
         higher,
         {-0.412, -0.447, kNoValue},
         false,
         ""},
        {"Parameters",
         ReportUnit::kCount,
         ReportBetter::kNeither,
         {1243882, 1241782, 1240170},
         false,
         ""},
        {"Training time",
         ReportUnit::kSeconds,
         ReportBetter::kNeither,
         {187.4, 121.9, 96.3},
         false,
         ""}};
    d.reference = d.systems[0];
    d.worst = {{"msu_0491", 4.2, 41, 13, 0.317}, {"msu_0077", 3.1, 30, 8, 0.267}};
    d.doubted = {{"msu_0491", 1.235, 1.31, "a0", "o", 0.0021},
                 {"msu_0012", 0.4, 0.46, "t", "t'", 0.031}};
    d.metrics[0].intervals = {{0.1391, 0.1573}, {0.1420, 0.1618}, {0.5902, 0.6352}};
    d.metrics[0].differences = {{}, {0.0037, {-0.0012, 0.0086}}, {0.4645, {0.4412, 0.4878}}};
    d.metrics[0].level = {true, true, false};
  }

  void epochs(ReportData& d) {
    for (std::int64_t i = 1; i <= o_.epochs; ++i) {
      const double t = static_cast<double>(i);
      const double share = t / static_cast<double>(o_.epochs);
      const double fall = std::exp(-t / 4.5);
      d.epochs.push_back({t, 0.31 + 2.6 * fall + 0.01 * normal(),
                          0.42 + 2.5 * fall + 0.16 * share * share + 0.015 * normal(),
                          0.15 + 0.6 * fall + 0.004 * normal(),
                          0.002 * std::min(t / 3, 0.5 + 0.5 * std::cos(3.14159 * share))});
    }
    d.selected_epoch = std::floor(static_cast<double>(o_.epochs) * 0.8);
  }

  void durations(ReportData& d) {
    for (std::int32_t l = 0; l < o_.labels; ++l) {
      ReportDurations h{l, kHop, kHop, {}, {}, {}};
      h.gold.assign(50, 0);
      h.decoded.assign(50, 0);
      const double mean = mean_duration(l);
      const auto draw = [&](double spread) {
        const double frames = mean * std::exp(spread * normal()) / kHop;
        return static_cast<std::size_t>(std::clamp(frames, 1.0, 50.0)) - 1;
      };
      const int n = static_cast<int>(4000 * frequency(l));
      for (int i = 0; i < n; ++i) h.gold[draw(0.42)] += 1;
      for (int i = 0; i < n; ++i) h.decoded[draw(0.36)] += 1;
      for (int k = 1; k <= 50; ++k) {
        const double z = (std::log(k * kHop) - std::log(mean)) / 0.43;
        h.model.push_back(std::exp(-z * z / 2) / k);
      }
      d.durations.push_back(std::move(h));
    }
  }

  void confusions(ReportData& d) {
    const auto n = static_cast<std::size_t>(o_.labels);
    d.confusions.pairs.assign(n * n, 0);
    d.confusions.deletions.assign(n, 0);
    d.confusions.insertions.assign(n, 0);
    for (std::size_t g = 0; g < n; ++g) {
      const int count = static_cast<int>(4000 * frequency(static_cast<std::int32_t>(g)));
      for (int i = 0; i < count; ++i) {
        const double u = uniform();
        std::size_t to = g;
        if (u > 0.88) to = (g + 1 + static_cast<std::size_t>(3 * uniform() * uniform())) % n;
        if (u > 0.985) to = static_cast<std::size_t>(uniform() * static_cast<double>(n)) % n;
        if (u < 0.03) {
          d.confusions.deletions[g] += 1;
        } else {
          d.confusions.pairs[g * n + to] += 1;
        }
        if (uniform() < 0.025) d.confusions.insertions[g] += 1;
      }
      label_row(d, g, count);
    }
  }

  void label_row(ReportData& d, std::size_t g, double count) {
    d.label_rows.push_back({static_cast<std::int32_t>(g), count, std::round(count * 1.01),
                            0.86 + 0.06 * uniform(), 0.84 + 0.07 * uniform(),
                            mean_duration(static_cast<std::int32_t>(g)), 0.006 + 0.004 * uniform(),
                            0.002 * normal()});
  }

  static void calibrations(ReportData& d) {
    ReportCalibration segments{"Segment labels", {}, 0.021};
    ReportCalibration boundaries{"Boundaries within 20 ms", {}, 0.034};
    for (int i = 0; i < 10; ++i) {
      const double p = 0.05 + 0.1 * i;
      segments.bins.push_back({p, p * p * 0.1 + p * 0.9, std::exp(0.6 * i)});
      boundaries.bins.push_back({p, std::min(1.0, p + 0.06 * std::sin(6 * p)), 400.0 - 35 * i});
    }
    d.calibrations = {segments, boundaries};
  }

  std::vector<ReportSegment> gold_segments() {
    std::vector<ReportSegment> out;
    double t = 0;
    while (t < o_.seconds - 0.3) {
      const auto label = static_cast<std::int32_t>(uniform() * uniform() * o_.labels);
      const std::int32_t l = t == 0 ? 5 % o_.labels : std::min(label, o_.labels - 1);
      const double raw = mean_duration(l) * std::exp(0.4 * normal());
      const double end = std::min(o_.seconds, t + std::max(2.0, std::round(raw / kHop)) * kHop);
      out.push_back({t, end, l, kNoValue});
      t = end;
    }
    if (t < o_.seconds) out.push_back({t, o_.seconds, 5 % o_.labels, kNoValue});
    return out;
  }

  std::vector<ReportSegment> decode(const std::vector<ReportSegment>& gold, double error) {
    std::vector<ReportSegment> out;
    for (const ReportSegment& s : gold) {
      ReportSegment r = s;
      r.posterior = 1 - 0.12 * uniform() * uniform();
      if (!out.empty()) {
        const double moved = s.start + std::round(0.6 * normal()) * kHop;
        if (moved > out.back().start + kHop && moved < s.end - kHop) r.start = moved;
        out.back().end = r.start;
      }
      const double u = uniform();
      if (u < error * 0.25 && !out.empty()) {
        out.back().end = s.end;
        continue;
      }
      if (u < error) {
        r.label = (r.label + 1) % o_.labels;
        r.posterior = 0.35 + 0.4 * uniform();
      }
      out.push_back(r);
      if (u > 1 - error * 0.2 && s.end - s.start > 0.06) {
        const double middle = (r.start + s.end) / 2;
        out.back().end = middle;
        out.push_back({middle, s.end, (r.label + 2) % o_.labels, 0.3 + 0.3 * uniform()});
      }
    }
    return out;
  }

  void signals(ReportRecording& r) {
    const double rate = 16000;
    r.sample_rate = rate;
    double phase = 0;
    for (const ReportSegment& s : r.gold) {
      const bool quiet = s.label == 5;
      const bool noisy = s.label % 4 == 2;
      const auto count = static_cast<int>((s.end - s.start) * rate);
      for (int i = 0; i < count; ++i) {
        const double shape = std::sin(3.14159 * i / count);
        phase += 6.28318 * (110 + 20 * std::sin(s.start)) / rate;
        const double voice = std::sin(phase) + 0.6 * std::sin(3 * phase + s.label) +
                             0.4 * std::sin(7 * phase + 2 * s.label);
        const double source = noisy ? 0.35 * normal() : 0.28 * voice;
        r.waveform.push_back(
            static_cast<float>(quiet ? 0.004 * normal() : (0.25 + 0.75 * shape) * source));
      }
    }
    r.feature_step = kHop;
    r.feature_bins = kBins;
    for (const ReportSegment& s : r.gold) {
      const auto frames = static_cast<int>(std::lround((s.end - s.start) / kHop));
      for (int t = 0; t < frames; ++t) {
        for (int b = 0; b < kBins; ++b) r.features.push_back(static_cast<float>(cell(s, b)));
      }
    }
  }

  double cell(const ReportSegment& s, int b) {
    if (s.label == 5) return -9 + 0.4 * normal();
    const double f1 = 5 + s.label * 5 % 9;
    const double f2 = 15 + s.label * 7 % 17;
    const auto peak = [&](double f, double w) { return std::exp(-(b - f) * (b - f) / w); };
    const double noise = s.label % 4 == 2 ? 3.5 / (1 + std::exp((24.0 - b) / 3)) : 0;
    return -6 - 0.05 * b + 5 * peak(f1, 8) + 4 * peak(f2, 12) + noise + 0.5 * normal();
  }

  ReportRecording recording(std::int64_t index) {
    ReportRecording r;
    r.name = fmt::format("ru_{:04d}", 10 * index + 3);
    r.seconds = o_.seconds;
    r.gold = gold_segments();
    r.decoded = {{"semi-Markov", decode(r.gold, 0.14)}, {"linear chain", decode(r.gold, 0.2)}};
    signals(r);
    r.boundary_step = kHop;
    r.boundary.assign(static_cast<std::size_t>(std::lround(o_.seconds / kHop)), 0.0F);
    for (const ReportSegment& s : r.decoded[0].segments) {
      for (int k = -2; k <= 2; ++k) {
        const auto at = std::lround(s.start / kHop) + k;
        if (at < 0 || at >= static_cast<std::int64_t>(r.boundary.size())) continue;
        const double p = s.posterior * std::exp(-1.5 * k * k);
        float& entry = r.boundary[static_cast<std::size_t>(at)];
        entry = std::max(entry, static_cast<float>(p));
      }
    }
    r.label_error_rate = 0.1 + 0.1 * uniform();
    return r;
  }

  FakeReport o_;
  std::mt19937_64 random_;
};

}  // namespace

ReportData fake_report(const FakeReport& options) { return Faker(options).make(); }

}  // namespace segfuse::learn
