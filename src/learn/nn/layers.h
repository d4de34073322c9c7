#pragma once
// Layers as functions that write into a Fusion. Sequences are (B, T, C).

#include <cstdint>
#include <string>
#include <vector>

#include "ir/extent.h"
#include "ir/id.h"
#include "segfuse/tensor.h"

namespace segfuse::ir {
class Builder;
}

namespace segfuse::nn {

/// How a parameter starts.
struct Init {
  enum class Kind {
    kConstant,
    kNormal,
    kUniform,  ///< between low and value
    kSecond,   ///< the constant in the second of four equal parts, 0 elsewhere
  } kind = Kind::kConstant;
  double value = 0;  ///< the constant, the standard deviation, or the upper end
  double low = 0;
};

/// The kinds of recurrent blocks.
enum class Recurrence {
  kLstm,  ///< Hochreiter and Schmidhuber 1997, with the forget gate of Gers et al. 2000
  kGru,   ///< Cho et al. 2014, with the reset gate behind the product, as cuDNN and PyTorch have it
  kSsm,   ///< a diagonal linear recurrence: h[t] = a h[t - 1] + sqrt(1 - a^2) u[t], 0 < a < 1
};

struct ParameterSpec {
  std::string name;
  Shape shape;
  Init init;
  bool decay = false;  ///< whether weight decay applies: matrices, not biases, norms or CRF scores
  friend bool operator==(const ParameterSpec& a, const ParameterSpec& b) {
    return a.name == b.name && a.shape == b.shape;
  }
};

/// Writes a network into one Fusion and collects its parameters, each an input of the Fusion, in
/// the order of the calls. Names are prefixed by the open scopes ("block2.conv.weight").
class Net {
 public:
  /// `seed` (i64[2]) turns dropout on; an invalid id builds the network for inference.
  Net(ir::Builder& builder, ir::ValId seed) : b_(builder), seed_(seed) {}

  ir::Builder& builder() const noexcept { return b_; }
  const std::vector<ParameterSpec>& parameters() const noexcept { return parameters_; }
  const std::vector<ir::ValId>& values() const noexcept { return values_; }

  class Scope {
   public:
    Scope(Net& net, const std::string& name) : net_(net), length_(net.prefix_.size()) {
      net.prefix_ += name + ".";
    }
    ~Scope() { net_.prefix_.resize(length_); }
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    Net& net_;
    std::size_t length_;
  };

  ir::ValId parameter(const std::string& name, Shape shape, Init init, bool decay = false);

  /// A parameter that the Fusion has as an input already.
  void adopt(ParameterSpec spec, ir::ValId input);

  /// (..., I) -> (..., O): x W + b, W normal with variance gain^2 / I.
  ir::ValId linear(const std::string& name, ir::ValId x, std::int64_t outputs, double gain = 1);
  /// (B, T, I) -> (B, T, O): odd kernel, zeros beyond both ends; where it is causal, a frame sees
  /// itself and those before it. Padding frames must be zero.
  ir::ValId conv1d(const std::string& name, ir::ValId x, std::int64_t outputs, std::int64_t kernel,
                   std::int64_t dilation, double gain = 1, bool causal = false);
  /// Over the last axis, with scale and shift.
  ir::ValId layer_norm(const std::string& name, ir::ValId x);
  ir::ValId dropout(ir::ValId x, double rate);
  /// Scaled dot-product self-attention (Vaswani et al. 2017) with `heads` heads over (B, T, C);
  /// key_bias (B, 1, 1, T) is added to the scores: 0 for frames, a large negative number for
  /// padding. Where it is causal, a frame sees itself and those before it.
  ir::ValId self_attention(const std::string& name, ir::ValId x, std::int64_t heads,
                           ir::ValId key_bias, bool causal = false);
  /// (B, T, C) -> (B, T, 2 * states): a recurrence from the first frame on beside one from the last
  /// on. `inside` (B, T, 1) is true for frames of the sequence, which come first: the second one
  /// begins with the last of them. Beyond them the result is 0.
  ///
  /// Parameters of each of "forward" and "backward", I the channels of x, H the states:
  ///   lstm: input.weight (I, 4 H), input.bias (4 H), state.weight (H, 4 H); gates in the order
  ///         input, forget, cell, output (of PyTorch: weight_ih and weight_hh transposed, and the
  ///         sum of its two biases)
  ///   gru:  input.weight (I, 3 H), input.bias (3 H), state.weight (H, 3 H), state.bias (H); gates
  ///         in the order reset, update, new (of PyTorch the same; its biases of reset and update
  ///         are summed, state.bias is the third part of bias_hh)
  ///   ssm:  input.weight (I, H), input.bias (H), time_scale (H): a = exp(-exp(-time_scale))
  /// Weights begin uniform in +-1 / sqrt(H), biases with 0 and those of forget gates with 1, time
  /// scales uniform between those of 1 and 1000 frames; input.weight of an ssm as that of linear().
  ir::ValId bidirectional(const std::string& name, ir::ValId x, Recurrence kind,
                          std::int64_t states, ir::ValId inside);
  /// (B, T, C) -> (B, T, states): the one from the first frame on alone.
  ir::ValId recurrent(const std::string& name, ir::ValId x, Recurrence kind, std::int64_t states,
                      ir::ValId inside);

  /// From now on recurrent() goes on from an earlier piece: its states are inputs, frames that are
  /// not inside leave them as they are, and carried() has the last ones under the names of those.
  /// An ssm's are f64, as precise as what goes from frame to frame.
  void carry() { carries_ = true; }
  struct Carried {
    std::string name;  ///< "carried." and the path of the layer
    ir::ValId last;    ///< (B, states)
  };
  const std::vector<Carried>& carried() const noexcept { return carried_; }

 private:
  /// One direction; x and the result (T, B, ...), `inside` (T, B, 1).
  ir::ValId recurrence(const std::string& name, ir::ValId x, Recurrence kind, std::int64_t states,
                       ir::ValId inside, bool reverse);
  ir::ValId state_space(ir::ValId u, std::int64_t states, ir::ValId inside, bool reverse);
  ir::ValId continued(ir::ValId a, ir::ValId u, ir::ValId inside);
  /// The input with the state of that name that an earlier piece left.
  ir::ValId earlier(const char* state, DType dtype, const ir::Extents& shape);
  void keep_last(const char* state, ir::ValId value);

  ir::Builder& b_;
  ir::ValId seed_;
  std::string prefix_;
  std::vector<ParameterSpec> parameters_;
  std::vector<ir::ValId> values_;
  bool carries_ = false;
  std::vector<Carried> carried_;
};

/// The size of the last axis. UsageError unless it is a number.
std::int64_t channels(const ir::Builder& builder, ir::ValId x);

/// The first value of a parameter: a function of (spec, seed) alone.
Tensor initial_value(const ParameterSpec& spec, std::uint64_t seed);

}  // namespace segfuse::nn
