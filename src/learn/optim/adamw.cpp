#include "learn/optim/adamw.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "ir/builder.h"

namespace segfuse::optim {

using ir::ValId;

ir::Fusion adamw_update(const std::vector<nn::ParameterSpec>& parameters,
                        const AdamWConfig& config) {
  ir::Fusion fusion("adamw");
  ir::Builder b(fusion);
  auto scalar = [&](const char* name) { return fusion.add_input(name, DType::kF32, {}); };
  const ValId rate = scalar("rate");
  const ValId clip = scalar("clip");
  const ValId correction1 = scalar("correction1");
  const ValId correction2 = scalar("correction2");
  auto update = [&](ValId input, ValId value) {
    fusion.add_output(value);
    fusion.add_alias(value, input);
  };
  auto blend = [&](ValId old, ValId fresh, double keep) {
    return b.add(b.mul(old, b.constant(keep)), b.mul(fresh, b.constant(1 - keep)));
  };
  for (const nn::ParameterSpec& spec : parameters) {
    const ir::Extents shape(spec.shape.begin(), spec.shape.end());
    auto tensor = [&](const std::string& prefix) {
      return fusion.add_input(prefix + spec.name, DType::kF32, shape);
    };
    const ValId p = tensor("");
    const ValId g = b.mul(tensor("gradient."), clip);
    const ValId m_in = tensor("m.");
    const ValId v_in = tensor("v.");
    const ValId m = blend(m_in, g, config.beta1);
    const ValId v = blend(v_in, b.square(g), config.beta2);
    const ValId spread = b.add(b.sqrt(b.mul(v, correction2)), b.constant(config.epsilon));
    ValId step = b.div(b.mul(m, correction1), spread);
    if (spec.decay) step = b.add(step, b.mul(p, b.constant(config.weight_decay)));
    const ValId next = b.sub(p, b.mul(step, rate));
    update(p, next);
    update(m_in, m);
    update(v_in, v);
    if (config.average > 0) {
      const ValId mean = tensor("mean.");
      update(mean, blend(mean, next, config.average));
    }
  }
  return fusion;
}

double learning_rate(const ScheduleConfig& config, std::int64_t step) {
  if (step < config.warmup_steps)
    return config.peak * static_cast<double>(step + 1) / static_cast<double>(config.warmup_steps);
  const auto span = std::max<std::int64_t>(1, config.total_steps - config.warmup_steps);
  const double done =
      std::min(1.0, static_cast<double>(step - config.warmup_steps) / static_cast<double>(span));
  const double cosine = (1 + std::cos(std::numbers::pi * done)) / 2;
  return config.peak * (config.floor + (1 - config.floor) * cosine);
}

}  // namespace segfuse::optim
