#pragma once
// An encoder that comes as programs, checked and ready to have a head written behind it.

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "ir/fusion.h"
#include "learn/nn/layers.h"
#include "segfuse/model.h"

namespace segfuse::learn {

/// The prefix of the names of its parameters and constants in a model.
inline constexpr std::string_view kEncoderPrefix = "encoder.";

class GivenEncoder {
 public:
  /// DataError where a text is no program; UsageError for a program of another form than
  /// segfuse/model.h has, and values that are not finite where `checks_values`.
  explicit GivenEncoder(Encoder encoder, bool checks_values = true);

  const Encoder& encoder() const noexcept { return encoder_; }
  std::int64_t columns() const noexcept { return columns_; }
  std::int64_t width() const noexcept { return width_; }
  /// Their names have the prefix; inputs of the programs do, too.
  const std::vector<nn::ParameterSpec>& parameters() const noexcept { return specs_; }
  std::vector<std::pair<std::string, Tensor>> constants() const;
  /// The first value of parameters()[i], a copy.
  Tensor initial(std::size_t i) const;
  /// The program for training or for inference, its result no output any more.
  struct Start {
    ir::Fusion fusion{"encoder"};
    ir::ValId features{};
    ir::ValId steps{};                    ///< (1, H, W)
    std::vector<ir::ValId> parameters{};  ///< an input for each; made where the program has none
  };
  Start start(bool training) const;
  /// Identifies programs and constants.
  std::string hash() const;

 private:
  ir::Fusion read(const std::string& text, bool training);

  Encoder encoder_;
  std::vector<nn::ParameterSpec> specs_;
  ir::Fusion training_, inference_;
  std::int64_t columns_ = 0;
  std::int64_t width_ = 0;
};

}  // namespace segfuse::learn
