// Energies of bands, against sums over the definition of the spectrum.

#include "learn/data/features/bands.h"

#include <gtest/gtest.h>

#include <cmath>
#include <complex>
#include <numbers>

#include "base/rng.h"

namespace segfuse::data {
namespace {

std::vector<float> noise(std::size_t n, Rng& rng) {
  std::vector<float> values(n);
  for (float& value : values) value = static_cast<float>(rng.normal());
  return values;
}

double power(const std::vector<float>& window, const std::vector<float>& taper, std::size_t size,
             std::size_t bin) {
  std::complex<double> sum = 0;
  for (std::size_t i = 0; i < window.size(); ++i)
    sum += std::polar(
        double{window[i]} * taper[i],
        -2 * std::numbers::pi * static_cast<double>(bin * i) / static_cast<double>(size));
  return std::norm(sum);
}

TEST(Bands, AreSumsOverTheSpectrum) {
  Rng rng(1);
  for (std::size_t size = 2; size <= 1024; size *= 2) {
    const FourierTables tables(size);
    for (const std::size_t length : {size / 2 + 1, size}) {
      const std::vector<float> taper = noise(length, rng);
      std::vector<Band> bands = {{0, {1}}, {size / 2, {2}}};
      const std::size_t first = rng.below(size / 2);
      bands.push_back({first, noise(size / 2 + 1 - first, rng)});
      std::vector<std::vector<float>> windows;
      std::vector<const float*> at;
      for (int w = 0; w < 19; ++w) windows.push_back(noise(length, rng));
      for (const std::vector<float>& window : windows) at.push_back(window.data());
      BandWork work;
      std::vector<float> energies(bands.size() * at.size());
      band_energies(tables, taper, bands, at, work, energies);
      for (std::size_t b = 0; b < bands.size(); ++b)
        for (std::size_t w = 0; w < at.size(); ++w) {
          double sum = 0;
          double all = 0;
          for (std::size_t i = 0; i < bands[b].weights.size(); ++i) {
            const double one = power(windows[w], taper, size, bands[b].first_bin + i);
            sum += double{bands[b].weights[i]} * one;
            all += std::abs(double{bands[b].weights[i]}) * one;
          }
          const double scale = all + static_cast<double>(size);
          EXPECT_NEAR(energies[b * at.size() + w], sum, 1e-5 * scale) << size << " " << b;
        }
    }
  }
}

TEST(Bands, OfAWindowDoNotDependOnTheOthers) {
  Rng rng(2);
  for (const std::size_t size : {std::size_t{256}, std::size_t{512}}) {
    const FourierTables tables(size);
    const std::vector<float> taper = noise(size - 100, rng);
    const std::vector<Band> bands = {{3, noise(20, rng)}, {40, noise(70, rng)}};
    std::vector<std::vector<float>> windows;
    std::vector<const float*> at;
    for (int w = 0; w < 37; ++w) windows.push_back(noise(taper.size(), rng));
    for (const std::vector<float>& window : windows) at.push_back(window.data());
    BandWork work;
    std::vector<float> all(bands.size() * at.size());
    band_energies(tables, taper, bands, at, work, all);
    for (std::size_t n = 1; n <= 17; n += 4)
      for (std::size_t w = 0; w + n <= at.size(); w += n) {
        std::vector<float> some(bands.size() * n);
        band_energies(tables, taper, bands, std::span(at).subspan(w, n), work, some);
        for (std::size_t b = 0; b < bands.size(); ++b)
          for (std::size_t i = 0; i < n; ++i)
            EXPECT_EQ(some[b * n + i], all[b * at.size() + w + i]);
      }
  }
}

}  // namespace
}  // namespace segfuse::data
