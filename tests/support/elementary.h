#pragma once
// The elementary functions, their exact values and the error bounds that docs/codegen.md states.

#include <cmath>
#include <fstream>
#include <map>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

#include "support/source_dir.h"

namespace segfuse::test {

template <class Wide>
struct Elementary {
  std::string op;
  Wide (*exact)(Wide);
};

/// Functions of one operand that are not rounded exactly, in a type wider than what is tested.
template <class Wide>
std::vector<Elementary<Wide>> elementary_functions() {
  return {
      {"exp", [](Wide x) { return std::exp(x); }},
      {"exp2", [](Wide x) { return std::exp2(x); }},
      {"expm1", [](Wide x) { return std::expm1(x); }},
      {"log", [](Wide x) { return std::log(x); }},
      {"log1p", [](Wide x) { return std::log1p(x); }},
      {"rsqrt", [](Wide x) { return 1 / std::sqrt(x); }},
      {"sin", [](Wide x) { return std::sin(x); }},
      {"cos", [](Wide x) { return std::cos(x); }},
      {"tanh", [](Wide x) { return std::tanh(x); }},
      {"sigmoid", [](Wide x) { return 1 / (1 + std::exp(-x)); }},
      {"softplus",
       [](Wide x) { return std::max(x, Wide{0}) + std::log1p(std::exp(-std::abs(x))); }},
      {"erf", [](Wide x) { return std::erf(x); }},
  };
}

/// The bounds of docs/codegen.md in units of the last place, by "exp_f32". Rows look like
/// "| exp | 1.1 | 1.3 |", with f32 before f64.
inline std::map<std::string, double> documented_bounds() {
  std::ifstream file(SEGFUSE_SOURCE_DIR "/docs/codegen.md");
  std::map<std::string, double> bounds;
  bool inside = false;
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with("<!-- bounds")) inside = true;
    if (line.starts_with("<!-- end")) inside = false;
    std::istringstream row(line);
    std::string bar, name;
    double f32 = 0, f64 = 0;
    if (!inside || !(row >> bar >> name >> bar >> f32 >> bar >> f64)) continue;
    bounds[name + "_f32"] = f32;
    bounds[name + "_f64"] = f64;
  }
  if (bounds.empty()) throw std::runtime_error("docs/codegen.md has no table of bounds");
  return bounds;
}

}  // namespace segfuse::test
