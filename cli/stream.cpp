#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "commands.h"
#include "segfuse/train.h"

namespace segfuse::cli {

void add_stream(Command app) {
  auto options = std::make_shared<StreamOptions>();
  auto lookahead = std::make_shared<std::string>();
  Command command = app.add("stream", "Label standard input as it arrives");
  command.option("model", options->model, kModel).required();
  command
      .option("--encoding", options->encoding,
              "Encoding of the input; default: text for a model of values, else wav if the input "
              "has a WAV header, else s16le")
      .is_one_of({"wav", "s16le", "f32le", "text"});
  command.option("--rate", options->sample_rate,
                 "Sample rate of input without a header, in Hz; default: the model's");
  command.option("--channels", options->channels,
                 "Channels of input without a header, interleaved; default: 1");
  command.option("--channel", options->channel, kChannel);
  command.option("--lookahead", *lookahead,
                 "Maximum delay, in seconds, after which a boundary is decided; default: until no "
                 "later input can change it");
  command.footer(
      "\nPrints one line of JSON for each segment as soon as it is final, with times in "
      "seconds:\n{\"start\": 0.0, \"end\": 0.35, \"label\": \"a\"}\n\nExample:\n"
      "  arecord -t raw -f S16_LE -r 16000 | segfuse stream out/speech --lookahead 2");
  command.runs([options, lookahead] {
    if (!lookahead->empty())
      options->lookahead = number_of("--lookahead", *lookahead, "the seconds");
    options->context = Context::process_default();
    options->each = [](const LabelSegment& segment) {
      print_json({{"start", segment.start}, {"end", segment.end}, {"label", segment.label}}, -1);
      flush_output();
    };
    stream(*options);
  });
}

}  // namespace segfuse::cli
