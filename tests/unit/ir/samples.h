#pragma once
// Fusions that several tests of the IR use.

#include <string>
#include <vector>

#include "ir/builder.h"
#include "segfuse/error.h"

namespace segfuse::ir {

/// What `action` throws as E, or "" if it throws nothing.
template <class E, class Action>
std::string message_of(Action action) {
  try {
    action();
  } catch (const E& error) {
    return error.what();
  }
  return "";
}

/// Layer norm over [B, T, 8] with a convolution of stride 2, an alias and dead code: symbols,
/// divided sizes, several results, constants and all kinds of attributes.
inline Fusion sample() {
  Fusion f("sample");
  Builder b(f);
  const Extent batch = f.symbol("B");
  const Extent time = f.symbol("T");
  const ValId x = f.add_input("x", DType::kF32, {batch, time, 8});
  const ValId scale = f.add_input("scale", DType::kF32, {8});
  const ValId shift = f.add_input("shift", DType::kF32, {8});
  const ValId seed = f.add_input("seed", DType::kI64, {2});
  const ValId state = f.add_input("state", DType::kF32, {batch, time, 8});
  const ValId normal = b.layer_norm(x, scale, shift);
  const ValId dropped = b.dropout(normal, seed, 0.25);
  const ValId windows = b.unfold(b.pad_axis(dropped, 1, 1, 1), 1, 3, 2, 1);
  const ValId flat = b.reshape(windows, {batch, f.val(windows).shape[1], 24});
  f.add_output(b.sum(flat, {2}), "y");
  f.add_output(b.add(state, dropped), "new state");
  f.add_alias(f.outputs()[1].val, state);
  b.log(b.exp(x));  // dead
  return f;
}

}  // namespace segfuse::ir
