#pragma once
// What a user says of a folder of recordings, for the commands that take one.

#include <string>

#include "commands.h"
#include "segfuse/train.h"

namespace segfuse::cli {

struct FolderChoice {
  std::string preset;
  std::string tier;
  std::string group;
  std::string frame_rate;
  bool print = false;  ///< the configuration, and end
};

/// --preset, --tier, --group and --frame-rate.
void add_folder_choice(Command command, FolderChoice& choice);

/// Where the configuration is a folder, puts what follows from it in its place.
void prepare(TrainOptions& options, const FolderChoice& choice);

/// A directory to write to, where the user named none.
void choose_out(TrainOptions& options, const std::string& kind = "model");

}  // namespace segfuse::cli
