// The configuration that follows from a plan, with comments.

#include <fmt/ranges.h>

#include <algorithm>

#include "base/toml_reader.h"
#include "learn/folder/plan.h"

namespace segfuse::learn {
namespace {

class Lines {
 public:
  void section(const std::string& name) { text_ += fmt::format("\n[{}]\n", name); }
  void comment(const std::string& words) { text_ += fmt::format("# {}\n", words); }
  void set(const std::string& key, const std::string& value, const std::string& why = "") {
    text_ += fmt::format("{} = {}{}{}\n", key, value, why.empty() ? "" : "  # ", why);
  }
  void set(const std::string& key, double value, const std::string& why = "") {
    set(key, fmt::format("{}", value), why);
  }
  void set(const std::string& key, std::int64_t value, const std::string& why = "") {
    set(key, std::to_string(value), why);
  }
  void set_text(const std::string& key, const std::string& value, const std::string& why = "") {
    set(key, TomlReader::text_of(value), why);
  }
  std::string take() { return std::move(text_); }

 private:
  std::string text_;
};

template <class T>
std::string list_of(const std::vector<T>& values) {
  return fmt::format("[{}]", fmt::join(values, ", "));
}

void write_data(const Plan& plan, Lines& out) {
  out.section("data");
  if (plan.survey->options.recordings.empty()) {
    out.set_text("path", plan.survey->place());
    out.set_text("unpaired", "skip", "recordings without labels and the like are left out");
  }
  if (!plan.survey->options.group.empty())
    out.set_text("group", plan.survey->options.group, "recordings of one stay in one set");
  if (!plan.survey->tier.empty()) out.set_text("tier", plan.survey->tier);
  if (!plan.survey->all_looked_at)
    out.set_text("unlabelled", "unknown",
                 "stretches without a label are not annotated, and are left out");
  if (plan.fill_label)
    out.set_text("fill_label", *plan.fill_label,
                 "stretches without a label; no file has this label");
}

void write_features(const Plan& plan, Lines& out) {
  out.section("features");
  if (plan.survey->values) {
    out.set_text("kind", "values", "rows of numbers, not audio");
    out.set("frame_rate", plan.survey->frame_rate.rate,
            fmt::format("rows a second: {}", plan.survey->frame_rate.reason));
    return;
  }
  out.set_text("kind", plan.raw ? "raw" : "log_mel");
  out.set("sample_rate", std::int64_t{plan.sample_rate},
          plan.rates.size() > 1 ? "of most recordings" : "of all recordings");
  if (plan.survey->channel && !plan.channel.empty())
    out.set("channel", plan.channel, "the one that the labels are of");
  else if (!plan.channel.empty())
    out.set_text("channel", plan.channel,
                 "\"mean\", \"stack\" for all side by side, or the number of one, from 0 on");
  out.set("hop_ms", plan.hop_ms, "boundaries lie between frames of this length");
  out.set("window_ms", plan.window_ms);
  if (plan.raw) {
    out.set("raw_bins", std::int64_t{plan.raw_bins});
    out.set("normalise_recording", "true");
    return;
  }
  out.set("n_mels", std::int64_t{plan.n_mels});
  out.set("fmin", plan.fmin);
  out.set("fmax", plan.fmax, plan.fmax > 0 ? "" : "half the sample rate");
  if (plan.preset.preset->deltas > 0) out.set("deltas", std::int64_t{plan.preset.preset->deltas});
}

void write_model(const Plan& plan, Lines& out) {
  const Preset& preset = *plan.preset.preset;
  out.section("model");
  out.set("width", plan.width);
  if (plan.subsample > 1) out.set("subsample", plan.subsample);
  out.set("stem_kernel", std::int64_t{preset.stem_kernel});
  out.set("kernel", std::int64_t{preset.kernel});
  out.set("dilations", list_of(preset.dilations));
  out.set("dropout", preset.dropout);
  out.set_text("head", "semi_markov");
  if (plan.max_duration > 0) {
    out.set("max_duration", plan.max_duration,
            fmt::format("K in frames; the longest segment has {}", plan.longest_frames));
    out.set_text("long_segments", "joined", "pieces of longer ones are put together");
  } else {
    out.set("max_duration", std::int64_t{0},
            fmt::format("K: the longest segment of the training recordings, {} frames",
                        plan.longest_in_training));
  }
}

void write_training(const Plan& plan, Lines& out) {
  out.section("training");
  out.set("epochs", plan.epochs);
  out.set("batch_size", plan.batch_size);
  if (plan.fixed_length > 0)
    out.set("fixed_length", plan.fixed_length, "frames of the pieces that are trained on");
  if (plan.select_by_loss)
    out.set_text("select_by", "loss",
                 "of epochs; errors in so few development segments say little");
  out.set("learning_rate", "2e-3");
  out.set("warmup", "0.1");
  out.set("weight_decay", plan.preset.preset->weight_decay);
  out.set("clip", "5");
  out.set("average", "0.98");
  out.set("seed", "1");
  out.section("evaluation");
  out.set("tolerances", list_of(plan.tolerances), "seconds that a boundary may be off");
}

}  // namespace

std::string configuration_of(const Plan& plan) {
  Lines out;
  out.comment(fmt::format("Preset {}: {}.", plan.preset.preset->name, plan.preset.reason));
  out.comment("All keys and their defaults: segfuse config");
  out.set_text("title", plan.preset.preset->title);
  write_data(plan, out);
  write_features(plan, out);
  write_model(plan, out);
  write_training(plan, out);
  return out.take();
}

}  // namespace segfuse::learn
