#pragma once
// HTML report of one training run: a plain struct in, one self-contained page out.
//
// Every part is optional. An empty vector or string hides what it would fill; a value that is NaN
// or infinite is shown as a dash. Text may be any bytes: it is escaped, and bytes that are not
// UTF-8 become U+FFFD. Times are in seconds from the start of the recording. The page holds its
// styles, scripts and data and asks the network for nothing. Same struct, same bytes.
//
// A segment whose label is not in `labels` has label -1; it is shown as "?" and is never right.
// Contract errors are InternalError and name the field: a label index outside `labels`, a segment
// that ends before it starts, a vector whose length does not fit the one it goes with.

#include <cstdint>
#include <limits>
#include <string>
#include <utility>
#include <vector>

namespace segfuse::learn {

inline constexpr double kNoValue = std::numeric_limits<double>::quiet_NaN();

enum class ReportUnit : std::uint8_t {
  kNumber,   ///< as it is, three significant digits
  kPercent,  ///< a ratio, shown times 100 with one decimal and "%"
  kRatio,    ///< a ratio, three decimals
  kSeconds,  ///< seconds, or minutes and hours when long
  kMillis,   ///< seconds, shown in milliseconds
  kCount,    ///< a whole number with thousands separated
};

enum class ReportBetter : std::uint8_t { kHigher, kLower, kNeither };

/// From a lower to an upper limit, in the unit of the value; NaN where there is none.
struct ReportInterval {
  double low = kNoValue;
  double high = kNoValue;
};

/// To the reference system, with its interval.
struct ReportDifference {
  double value = kNoValue;
  ReportInterval interval{};
};

/// One row of the comparison; with `headline` also a tile at the top for the first system.
struct ReportMetric {
  std::string name;
  ReportUnit unit = ReportUnit::kRatio;
  ReportBetter better = ReportBetter::kHigher;
  std::vector<double> values;  ///< one a system, as ReportData::systems; NaN where not measured
  bool headline = false;
  std::string note{};                           ///< one line: what is measured
  std::vector<ReportInterval> intervals{};      ///< of each value; empty: none
  std::vector<ReportDifference> differences{};  ///< of each value to that of the reference
  std::vector<bool> level{};  ///< which values may be as good as the best; empty: none is
};

struct ReportEpoch {
  double epoch = 0;
  double train_loss = kNoValue;
  double dev_loss = kNoValue;
  double dev_label_error_rate = kNoValue;
  double learning_rate = kNoValue;  ///< at the end of the epoch
  double crf_largest = kNoValue;    ///< greatest magnitude of the CRF's parameters then
  double other_largest = kNoValue;  ///< of all others
};

/// Durations of one label: entry i of each vector belongs to the duration `first + i * step`.
/// Each vector may have any non-negative scale (counts, probabilities) and any length, or be empty.
struct ReportDurations {
  std::int32_t label = -1;
  double first = 0;
  double step = 0;
  std::vector<double> gold;     ///< counts in the evaluated recordings
  std::vector<double> model;    ///< the model's distribution or its expected counts
  std::vector<double> decoded;  ///< counts of decoded segments
};

/// Counts over aligned segment labels. `pairs` is row-major [gold, decoded] over `labels`.
struct ReportConfusions {
  std::vector<double> pairs;
  std::vector<double> deletions;   ///< per gold label; may be empty
  std::vector<double> insertions;  ///< per decoded label; may be empty
};

struct ReportLabelRow {
  std::int32_t label = -1;
  double gold = kNoValue;     ///< segments
  double decoded = kNoValue;  ///< segments
  double precision = kNoValue;
  double recall = kNoValue;
  double mean_duration = kNoValue;   ///< of gold segments, seconds
  double duration_error = kNoValue;  ///< mean absolute error, seconds
  double duration_bias = kNoValue;   ///< mean of decoded minus gold, seconds
};

/// One reliability diagram.
struct ReportCalibration {
  struct Bin {
    double predicted = kNoValue;  ///< mean probability in the bin
    double observed = kNoValue;   ///< share that was right
    double count = 0;
  };
  std::string name;
  std::vector<Bin> bins;
  double expected_error = kNoValue;  ///< expected calibration error
};

struct ReportSegment {
  double start = 0;
  double end = 0;
  std::int32_t label = -1;
  double posterior = kNoValue;
};

/// A decoded lane of a recording. `name` is shown next to it; it may be empty.
struct ReportLane {
  std::string name;
  std::vector<ReportSegment> segments;
};

struct ReportRecording {
  std::string name;
  double seconds = 0;
  double sample_rate = 0;       ///< Hz
  std::vector<float> waveform;  ///< mono samples
  double feature_step = 0;      ///< seconds between feature frames
  std::int32_t feature_bins = 0;
  std::vector<float> features;  ///< [frame, bin], low bin first, e.g. log-mel
  std::vector<ReportSegment> gold;
  std::vector<ReportLane> decoded;  ///< the first one is the system that the report is about
  double boundary_step = 0;         ///< seconds between entries of `boundary`
  std::vector<float> boundary;      ///< posterior that a segment starts there, 0..1
  double label_error_rate = kNoValue;
};

/// A recording with errors.
struct ReportWorst {
  std::string name;
  double seconds = 0;
  double gold = 0;  ///< segments
  double errors = 0;
  double label_error_rate = 0;
};

/// A gold segment that the model finds unlikely.
struct ReportDoubt {
  std::string recording;
  double start = 0;
  double end = 0;
  std::string label;
  std::string decoded;  ///< what most of it was decoded as
  double posterior = 0;
  std::size_t index = 0;  ///< of the recording, for who fills this
};

/// How a value changes over something, in lines with intervals. Values are ratios.
struct ReportLine {
  std::string name;
  std::vector<double> values;             ///< one for each x
  std::vector<ReportInterval> intervals;  ///< of each value; empty: none
};
struct ReportChart {
  std::string title;
  std::string x_title;
  std::string y_title;
  bool doubling = false;  ///< a step on the x axis doubles x, which is above 0
  std::vector<double> x;
  std::vector<ReportLine> lines;
};

/// Rows of texts under a head.
struct ReportTable {
  std::string title;
  std::string note;
  std::vector<std::string> head;
  std::vector<std::vector<std::string>> rows;
};

struct ReportData {
  std::string title;
  std::string data_set;
  std::string date;   ///< given by the caller, never read from a clock
  std::string model;  ///< one or two lines
  double parameters = kNoValue;
  double seconds = kNoValue;                               ///< of training
  std::vector<std::pair<std::string, std::string>> facts;  ///< further header facts
  std::vector<std::string> notes;                          ///< remarks that a reader must not miss
  std::vector<std::string> systems;                        ///< column names; empty: one column
  std::string reference;                                   ///< the system that differences are to
  std::vector<ReportMetric> metrics;
  std::vector<ReportChart> charts;
  std::vector<ReportTable> tables;
  std::vector<ReportEpoch> epochs;
  double selected_epoch = kNoValue;  ///< ReportEpoch::epoch of the kept model
  std::vector<std::string> labels;
  std::vector<ReportDurations> durations;
  ReportConfusions confusions;
  std::vector<ReportLabelRow> label_rows;
  std::vector<ReportCalibration> calibrations;
  std::vector<ReportRecording> recordings;
  std::size_t worst_shown = 0;       ///< so many of the last of them are there because they are bad
  std::vector<ReportWorst> worst;    ///< the worst first
  std::vector<ReportDoubt> doubted;  ///< the least likely first
  std::vector<std::pair<std::string, std::string>> environment;
  std::string config;  ///< the configuration, TOML text
};

/// What the page may hold at most, so that its size has a bound that the data does not set.
/// Longer series are reduced (envelope: min and max; features: mean; boundaries: max), longer
/// recordings are cut, and the page says so.
struct ReportLimits {
  std::int64_t recordings = 24;
  std::int64_t envelope_columns = 4000;
  std::int64_t feature_cells = 64000;
  std::int64_t boundary_columns = 4000;
  std::int64_t segments = 2000;  ///< a lane of a recording
  std::int64_t duration_bins = 120;
  std::int64_t labels = 100;  ///< in durations and confusions: the most frequent ones
  std::int64_t epochs = 2000;
};

/// The page, HTML in UTF-8.
std::string render_report(const ReportData& data, const ReportLimits& limits = {});

struct SequencePicture {
  double from = 0;     ///< seconds
  double to = 0;       ///< seconds; 0 means the end of the recording
  double width = 900;  ///< user units, 300 to 1600
  std::string title;   ///< empty: the recording's name
};

/// A still picture of one decoded recording, SVG in UTF-8 on a light background: spectrogram where
/// there are features and the waveform where there are samples, gold lane, decoded lanes with the
/// errors marked, boundary posterior. `labels` as in ReportData. Under 150 KB.
std::string render_sequence_svg(const ReportRecording& recording,
                                const std::vector<std::string>& labels,
                                const SequencePicture& picture = {});

}  // namespace segfuse::learn
