#include "learn/train/commands/config_keys.h"

#include <fmt/format.h>

#include <limits>

#include "comm/tree.h"
#include "segfuse/semicrf_models.h"
#include "segfuse/train.h"

namespace segfuse::learn {
namespace {

constexpr double kHuge = 1e9;
constexpr auto kMax = std::numeric_limits<std::int64_t>::max();

/// Rows of one section. `get` gives the place of the value in a configuration.
class Section {
 public:
  Section(std::vector<ConfigKey>& keys, std::string name) : keys_(keys), name_(std::move(name)) {}

  template <class Get>
  void text(const std::string& key, Get get, const std::string& doc) {
    add(key, "string", doc,
        [key, get](const TomlReader& t, TrainConfig& c) { get(c) = t.string(key, get(c)); });
  }

  template <class Get>
  void boolean(const std::string& key, Get get, const std::string& doc) {
    add(key, "boolean", doc,
        [key, get](const TomlReader& t, TrainConfig& c) { get(c) = t.boolean(key, get(c)); });
  }

  template <class Get>
  void whole(const std::string& key, Get get, std::int64_t least, std::int64_t most,
             const std::string& doc) {
    const std::string type = most == kMax ? fmt::format("integer, at least {}", least)
                                          : fmt::format("integer, {} to {}", least, most);
    add(key, type, doc, [key, get, least, most](const TomlReader& t, TrainConfig& c) {
      auto& value = get(c);
      value = static_cast<std::remove_reference_t<decltype(value)>>(
          t.integer(key, static_cast<std::int64_t>(value), least, most));
    });
  }

  template <class Get>
  void number(const std::string& key, Get get, double least, double most, const std::string& doc) {
    const std::string type = most == kHuge ? fmt::format("number, at least {}", least)
                                           : fmt::format("number, {} to {}", least, most);
    add(key, type, doc, [key, get, least, most](const TomlReader& t, TrainConfig& c) {
      get(c) = t.number(key, get(c), least, most);
    });
  }

  /// `values` of `names`, in their order; the configuration has one of them.
  template <class Get, class Value>
  void choice(const std::string& key, Get get,
              const std::vector<std::pair<std::string, Value>>& values, const std::string& doc) {
    std::vector<std::string> names;
    std::string type;
    for (const auto& [name, value] : values) {
      names.push_back(name);
      type += fmt::format("{}\"{}\"", type.empty() ? "" : ", ", name);
    }
    add(key, type, doc, [key, get, values, names](const TomlReader& t, TrainConfig& c) {
      std::string fallback;
      for (const auto& [name, value] : values)
        if (value == get(c)) fallback = name;
      const std::string chosen = t.choice(key, fallback, names);
      for (const auto& [name, value] : values)
        if (name == chosen) get(c) = value;
    });
  }

  void add(const std::string& key, const std::string& type, const std::string& doc,
           std::function<void(const TomlReader&, TrainConfig&)> read) {
    keys_.push_back({name_, key, type, doc, std::move(read)});
  }

 private:
  std::vector<ConfigKey>& keys_;
  std::string name_;
};

#define SEGFUSE_AT(member) [](TrainConfig& c) -> auto& { return c.member; }

void add_data_keys(std::vector<ConfigKey>& keys) {
  Section s(keys, "data");
  s.text("path", SEGFUSE_AT(data.path),
         "Manifest or directory with recordings and labels; `--data` wins over it.");
  s.text("tier", SEGFUSE_AT(data.tier),
         "Tier of the label files that have several; empty: the first interval tier. Of several "
         "label files beside a recording: the ending, as \"wrd\"; empty: the finest.");
  s.add("fill_label", "string",
        "Label for what no label covers: gaps, a late start, an early end. Without it such a "
        "recording is refused.",
        [](const TomlReader& t, TrainConfig& c) {
          if (t.has("fill_label")) c.data.fill_label = t.string("fill_label");
        });
  s.choice("unlabelled", SEGFUSE_AT(data.unlabelled_unknown),
           std::vector<std::pair<std::string, bool>>{{"gap", false}, {"unknown", true}},
           "What no label covers: segments of `fill_label`, or stretches that nobody has looked "
           "at, which are neither trained on nor measured.");
  s.text("fold", SEGFUSE_AT(data.fold), "Folding map, applied to all labels before training.");
  s.text("metric_fold", SEGFUSE_AT(data.metric_fold), "Folding map for the figures alone.");
  s.boolean("metric_merge", SEGFUSE_AT(data.metric_merge),
            "Whether neighbours that `metric_fold` made equal count as one.");
  s.choice("unpaired", SEGFUSE_AT(data.skip_unpaired),
           std::vector<std::pair<std::string, bool>>{{"refuse", false}, {"skip", true}},
           "Recordings without labels, and labels without a recording: refused, or left out with a "
           "warning.");
  s.text("group", SEGFUSE_AT(data.group),
         "What recordings of one speaker or animal have in common: \"folder\", a column of the "
         "manifest, or an expression as `^(bird[0-9]+)_`, whose parentheses stand around a part of "
         "the names. Splits and folds that are dealt never part a group. Empty: there are none.");
  s.whole("folds", SEGFUSE_AT(data.folds), 0, 100'000,
          "So many folds, whatever the splits were: number i of the sorted recordings is in fold "
          "i mod folds + 1, counted from 0; groups are dealt so that folds are even. `test_fold` "
          "is the test set; of the others every tenth "
          "is for development. 0: the splits as they are.");
  s.whole("test_fold", SEGFUSE_AT(data.test_fold), 1, 100'000,
          "Which of the folds is the test set.");
  s.number("train_share", SEGFUSE_AT(data.train_share), 0, 1,
           "So much of the training recordings is trained on, above 0. `training.seed` draws them; "
           "those of a smaller share are among those of a larger one.");
}

/// The distance of frames: of audio hop_ms, of values frame_rate. The other one is refused.
void add_frame_keys(Section& s) {
  s.add("hop_ms", fmt::format("number, at least {}", 1e-3),
        "Distance of frames, in milliseconds; boundaries lie between frames. Not with kind = "
        "\"values\".",
        [](const TomlReader& t, TrainConfig& c) {
          FeatureConfig& f = c.features;
          if (f.kind != FeatureKind::kValues)
            f.hop_ms = t.number("hop_ms", f.hop_ms, 1e-3, kHuge);
          else if (t.has("hop_ms"))
            t.refuse("hop_ms", "is 1000 / frame_rate for kind = \"values\"");
        });
  s.add("frame_rate", "number above 0", "Of kind = \"values\", which needs it: rows a second.",
        [](const TomlReader& t, TrainConfig& c) {
          FeatureConfig& f = c.features;
          if (f.kind != FeatureKind::kValues) {
            if (t.has("frame_rate")) t.refuse("frame_rate", "is for kind = \"values\" only");
            return;
          }
          f.frame_rate = t.number("frame_rate", 0, 0, kHuge);
          if (!(f.frame_rate > 0))
            t.refuse("frame_rate", "must say how many rows of values are a second");
          f.hop_ms = 1000 / f.frame_rate;
        });
}

/// What the keys behind it have where they are not given depends on it.
void add_kind_key(Section& s) {
  std::vector<std::string> names;
  std::string type;
  for (const FeatureKind kind :
       {FeatureKind::kLogMel, FeatureKind::kMfcc, FeatureKind::kRaw, FeatureKind::kValues,
        FeatureKind::kKaldiFbank, FeatureKind::kWhisper}) {
    names.emplace_back(name_of(kind));
    type += fmt::format("{}\"{}\"", type.empty() ? "" : ", ", names.back());
  }
  s.add("kind", type,
        "Log-mel energies, their cosine transform, the samples themselves, the numbers of "
        "recordings that are no audio, or what models of Kaldi's kind and Whisper take.",
        [names](const TomlReader& t, TrainConfig& c) {
          const std::string chosen = t.choice("kind", std::string(name_of(c.features.kind)), names);
          c.features = default_features(feature_kind_from_name(chosen));
        });
}

void add_feature_keys(std::vector<ConfigKey>& keys) {
  Section s(keys, "features");
  add_kind_key(s);
  s.whole("sample_rate", SEGFUSE_AT(features.sample_rate), 1, 10'000'000,
          "Of the recordings, in Hz.");
  s.number("window_ms", SEGFUSE_AT(features.window_ms), 1e-3, kHuge,
           "Length of the window of a frame, in milliseconds.");
  add_frame_keys(s);
  s.whole("n_mels", SEGFUSE_AT(features.n_mels), 1, 1000,
          "Bands of the mel scale; 80 for `kaldi_fbank` and `whisper` where it is not given.");
  s.whole("n_mfcc", SEGFUSE_AT(features.n_mfcc), 1, 1000, "Coefficients of `mfcc`.");
  s.number("fmin", SEGFUSE_AT(features.fmin), 0, kHuge, "Lower end of the mel scale, in Hz.");
  s.number("fmax", SEGFUSE_AT(features.fmax), 0, kHuge,
           "Upper end of the mel scale, in Hz; 0: half the sample rate.");
  s.number("preemphasis", SEGFUSE_AT(features.preemphasis), 0, 1,
           "Share of the former sample that is taken from each one.");
  s.number("lifter", SEGFUSE_AT(features.lifter), 0, kHuge,
           "Of `mfcc`: weight of the higher coefficients; 0: none.");
  s.whole("raw_bins", SEGFUSE_AT(features.raw_bins), 0, 1'000'000,
          "Of `raw`: averages a window; 0: every sample.");
  s.add("snip_edges", "boolean",
        "Of `kaldi_fbank`: whether windows begin with their frames (true, where it is not given) "
        "or lie in the middle of them.",
        [](const TomlReader& t, TrainConfig& c) {
          FeatureConfig& f = c.features;
          if (f.kind == FeatureKind::kKaldiFbank)
            f.snip_edges = t.boolean("snip_edges", f.snip_edges);
          else if (t.has("snip_edges"))
            t.refuse("snip_edges", "is for kind = \"kaldi_fbank\" only");
        });
  s.whole("deltas", SEGFUSE_AT(features.deltas), 0, 2,
          "Slopes over time beside the features, once or twice.");
  s.boolean("normalise_recording", SEGFUSE_AT(features.normalise_recording),
            "Mean 0 and deviation 1 of every column within each recording.");
  s.add("channel", "integer from 0 on, \"mean\" or \"stack\"",
        "Channel of recordings that have several, their mean, or the features of all beside each "
        "other; without it they are refused.",
        [](const TomlReader& t, TrainConfig& c) {
          if (t.holds_string("channel"))
            c.features.channel =
                audio_channel(t.string("channel"), t.where("channel") + ": 'features.channel'");
          else if (t.has("channel"))
            c.features.channel = static_cast<int>(t.integer("channel", 0, 0, 1023));
        });
}

void add_model_keys(std::vector<ConfigKey>& keys) {
  Section s(keys, "model");
  s.whole("width", SEGFUSE_AT(model.width), 1, 100'000, "Channels of the encoder.");
  s.whole("stem_kernel", SEGFUSE_AT(model.stem_kernel), 1, 1001,
          "Frames that the first convolution sees; odd.");
  s.whole("kernel", SEGFUSE_AT(model.kernel), 1, 1001,
          "Frames that the convolution of a block sees; odd.");
  s.add("dilations", "list of positive integers",
        "Distance of the frames that each block sees; one block for each.",
        [](const TomlReader& t, TrainConfig& c) {
          c.model.dilations = t.integers("dilations", c.model.dilations);
        });
  s.choice("recurrence", SEGFUSE_AT(model.recurrence),
           std::vector<std::pair<std::string, nn::Recurrence>>{{"lstm", nn::Recurrence::kLstm},
                                                               {"gru", nn::Recurrence::kGru},
                                                               {"ssm", nn::Recurrence::kSsm}},
           "Kind of the recurrent blocks: LSTM, GRU, or a diagonal linear state space. The first "
           "two run on the CPU only.");
  s.whole("recurrent_blocks", SEGFUSE_AT(model.recurrent_blocks), 0, 100,
          "Blocks of a recurrence in both directions (forward alone with `causal`), behind the "
          "convolutions.");
  s.whole("recurrent_states", SEGFUSE_AT(model.recurrent_states), 1, 100'000,
          "States of each direction.");
  s.whole("attention_blocks", SEGFUSE_AT(model.attention_blocks), 0, 1000,
          "Blocks of self-attention behind the convolutions and recurrences.");
  s.whole("attention_heads", SEGFUSE_AT(model.attention_heads), 1, 1000,
          "Heads of each; they divide `width`.");
  s.whole("subsample", SEGFUSE_AT(model.subsample), 1, 64,
          "Frames that share one position of the encoder.");
  s.boolean("causal", SEGFUSE_AT(model.causal),
            "Whether the encoder's scores of a frame depend on that frame and earlier ones alone; "
            "the frames of one position (`subsample`) count as one.");
  s.number("dropout", SEGFUSE_AT(model.dropout), 0, 0.99,
           "Share of the activations that a training step leaves out.");
  s.choice("head", SEGFUSE_AT(model.head),
           std::vector<std::pair<std::string, HeadKind>>{{"semi_markov", HeadKind::kSemiMarkov},
                                                         {"linear_chain", HeadKind::kLinearChain},
                                                         {"softmax", HeadKind::kSoftmax}},
           "What turns the encoder's scores into segments.");
  s.boolean("boundary_scores", SEGFUSE_AT(model.boundary_scores),
            "Whether the semi-Markov head scores starts and ends as well.");
  using Family = semicrf::DurationFamily;
  s.choice(
      "durations", SEGFUSE_AT(model.durations),
      std::vector<std::pair<std::string, Family>>{{"table", Family::kTable},
                                                  {"geometric", Family::kGeometric},
                                                  {"negative_binomial", Family::kNegativeBinomial},
                                                  {"poisson", Family::kPoisson},
                                                  {"log_normal", Family::kLogNormal},
                                                  {"buckets", Family::kBuckets}},
      "How the semi-Markov head scores durations: a score for each of 1 to K frames and label, "
      "a distribution with one or two parameters for each label, or a score for each range of "
      "durations.");
  s.whole("duration_buckets", SEGFUSE_AT(model.duration_buckets), 1, 1000,
          "Of durations = \"buckets\": ranges, at most; they are evenly wide in the logarithm.");
  s.whole("max_duration", SEGFUSE_AT(max_duration), 0, 1'000'000,
          "K: frames of the longest segment that the head knows; 0: the longest one of training.");
  s.choice("long_segments", SEGFUSE_AT(join_long),
           std::vector<std::pair<std::string, bool>>{{"cut", false}, {"joined", true}},
           "Whether decoded pieces of segments longer than K stay cut or are joined.");
}

void add_plan_keys(Section& s) {
  s.whole("epochs", SEGFUSE_AT(training.epochs), 1, 1'000'000, "Passes over the training set.");
  s.whole("batch_size", SEGFUSE_AT(training.batch_size), 1, 1'000'000, "Sequences of a step.");
  s.whole("batch_frames", SEGFUSE_AT(training.batch_frames), 0, kMax,
          "Frames of a step at most, with padding; 0: any number.");
  s.add("shards", fmt::format("power of two, 1 to {}", comm::kMaxShards),
        "Parts of a step that ranks can share; they divide `batch_size`. Without it as many as "
        "there are ranks.",
        [](const TomlReader& t, TrainConfig& c) {
          c.training.chooses_shards = !t.has("shards");
          c.training.shards = t.integer("shards", c.training.shards, 1, comm::kMaxShards);
        });
  s.number("learning_rate", SEGFUSE_AT(training.learning_rate), 0, kHuge,
           "Largest learning rate of AdamW.");
  s.number("warmup", SEGFUSE_AT(training.warmup), 0, 1,
           "Share of all steps in which the learning rate rises.");
  s.number("clip", SEGFUSE_AT(training.clip), 0, kHuge,
           "Largest norm of all gradients together; 0: any.");
  s.number("crf_reg", SEGFUSE_AT(training.crf_reg), 0, kHuge,
           "Half of it times the squares of the head's parameters joins the loss.");
  s.whole(
      "fixed_length", SEGFUSE_AT(training.fixed_length), 0, 1'000'000'000,
      "Frames of the pieces that recordings are trained in, shorter ones are left out; 0: whole "
      "recordings.");
}

void add_training_keys(std::vector<ConfigKey>& keys) {
  Section s(keys, "training");
  add_plan_keys(s);
  s.whole("patience", SEGFUSE_AT(training.patience), 0, kMax,
          "Epochs without a better development score after which training ends; 0: never.");
  s.whole("select_every", SEGFUSE_AT(training.select_every), 1, 1'000'000,
          "Epochs between two scorings of the development set.");
  std::vector<std::pair<std::string, Selection>> criteria;
  for (const Selection selection :
       {Selection::kLabelError, Selection::kBoundaryF1, Selection::kSegmentF1, Selection::kLoss})
    criteria.emplace_back(name_of(selection), selection);
  s.choice("select_by", SEGFUSE_AT(training.select_by), criteria,
           "What the best epoch is best in, on the development set.");
  s.text("init", SEGFUSE_AT(training.init),
         "Model whose weights the training begins with: a file, the directory of a training, or a "
         "name of `segfuse models`; empty: random ones.");
  s.whole("seed", SEGFUSE_AT(training.seed), 0, kMax, "Of all random numbers.");
  s.number("weight_decay", SEGFUSE_AT(training.adamw.weight_decay), 0, kHuge, "Of AdamW.");
  s.number("beta1", SEGFUSE_AT(training.adamw.beta1), 0, 0.999999,
           "Of AdamW: memory of the gradient.");
  s.number("beta2", SEGFUSE_AT(training.adamw.beta2), 0, 0.999999,
           "Of AdamW: memory of its square.");
  s.number("average", SEGFUSE_AT(training.adamw.average), 0, 0.999999,
           "Memory of the running mean of the parameters that decodes; 0: the last ones do.");
}

/// The ratio of noise is drawn between two numbers.
void add_noise_key(Section& s) {
  static constexpr double kLeast = -40, kMost = 120;
  s.add("noise_snr_db", fmt::format("list of two numbers, {} to {}", kLeast, kMost),
        "Gaussian noise on the normalised features, at a ratio to them between these, in dB; "
        "without it none.",
        [](const TomlReader& t, TrainConfig& c) {
          if (!t.has("noise_snr_db")) return;
          std::vector<double>& range = c.augmentation.noise_snr_db;
          range = t.numbers("noise_snr_db");
          if (range.size() != 2 || !(range[0] <= range[1]) || !(range[0] >= kLeast) ||
              !(range[1] <= kMost))
            t.refuse("noise_snr_db", fmt::format("must be two numbers from {} to {}, the smaller "
                                                 "one first, as in [10, 30]",
                                                 kLeast, kMost));
        });
}

void add_augmentation_keys(std::vector<ConfigKey>& keys) {
  Section s(keys, "augmentation");
  s.whole("time_masks", SEGFUSE_AT(augmentation.time_masks), 0, 1000,
          "Stretches of each training recording that an epoch shows as the mean; 0: none.");
  s.number("time_mask_ms", SEGFUSE_AT(augmentation.time_mask_ms), 0, kHuge,
           "Length of the longest, in milliseconds; each is as long as it happens, from 0 on.");
  s.whole("frequency_masks", SEGFUSE_AT(augmentation.frequency_masks), 0, 1000,
          "Of features of bands: ranges of bands that an epoch shows as the mean; 0: none.");
  s.whole("frequency_mask_bands", SEGFUSE_AT(augmentation.frequency_mask_bands), 0, 1000,
          "Bands of the widest.");
  s.number("gain_db", SEGFUSE_AT(augmentation.gain_db), 0, 60,
           "Each recording louder or softer by up to so many dB; 0: as it is.");
  add_noise_key(s);
  s.whole(
      "transpose_bands", SEGFUSE_AT(augmentation.transpose_bands), 0, 1000,
      "Of features of bands: each recording higher or lower by up to so many bands; 0: as it is.");
}

void add_grammar_keys(std::vector<ConfigKey>& keys) {
  Section s(keys, "grammar");
  s.add("next", "table of lists of labels",
        "What may follow a label, as in `next.P = [\"-\", \"QRS\"]`; anything may follow a label "
        "that it does not name.",
        [](const TomlReader& t, TrainConfig& c) {
          const TomlReader table = t.section("next");
          for (const std::string& label : table.keys())
            c.grammar.next[label] = table.strings(label);
        });
  const auto list = [&s](const char* key, auto member, const char* doc) {
    s.add(key, "list of labels", doc, [key, member](const TomlReader& t, TrainConfig& c) {
      if (t.has(key)) c.grammar.*member = t.strings(key);
    });
  };
  list("first", &Grammar::first, "What a recording may begin with; without it with anything.");
  list("last", &Grammar::last, "What a recording may end with; without it with anything.");
  const auto durations = [&s](const char* key, auto member, const char* doc) {
    s.add(key, "table of numbers above 0", doc, [key, member](const TomlReader& t, TrainConfig& c) {
      const TomlReader table = t.section(key);
      for (const std::string& label : table.keys())
        (c.grammar.*member)[label] = table.number(label);
    });
  };
  durations("shortest", &Grammar::shortest,
            "Seconds that a segment of a label lasts at least, as in `shortest.P = 0.04`.");
  durations("longest", &Grammar::longest, "Seconds that a segment of a label lasts at most.");
}

/// The last two take no part in a training, and no recipe names them.
void add_evaluation_keys(std::vector<ConfigKey>& keys) {
  Section s(keys, "evaluation");
  s.add("tolerances", "list of numbers, at least one",
        "How far a boundary may be off, in seconds; the first one counts in the report.",
        [](const TomlReader& t, TrainConfig& c) {
          c.tolerances = t.numbers("tolerances", c.tolerances);
        });
  s.add("edge_tolerance", "number, 0 to 1",
        "How far onsets and offsets of a label may be off, in seconds, for their sensitivity, PPV "
        "and errors; 0.15 where it is not given.",
        [](const TomlReader& t, TrainConfig& c) {
          if (t.has("edge_tolerance"))
            c.edge_tolerance = t.number("edge_tolerance", c.edge_tolerance, 0, 1);
        });
  s.add("background", "list of labels",
        "What is no segment of interest: gaps, silence. Chunks, edges and the segment error rate "
        "leave these labels out, after `data.metric_fold`. Where it is not given: "
        "`data.fill_label`.",
        [](const TomlReader& t, TrainConfig& c) {
          if (t.has("background")) c.background = t.strings("background");
        });
}

std::vector<ConfigKey> all_keys() {
  std::vector<ConfigKey> keys;
  Section(keys, "").text("title", SEGFUSE_AT(title), "Heading of the report.");
  add_data_keys(keys);
  add_feature_keys(keys);
  add_model_keys(keys);
  add_training_keys(keys);
  add_augmentation_keys(keys);
  add_grammar_keys(keys);
  add_evaluation_keys(keys);
  return keys;
}

#undef SEGFUSE_AT

}  // namespace

const std::vector<ConfigKey>& config_keys() {
  static const std::vector<ConfigKey> keys = all_keys();
  return keys;
}

}  // namespace segfuse::learn
