#pragma once
// Energies of the bands of windows, many windows at a time: each has a lane of a vector.

#include <cstdint>
#include <span>
#include <vector>

namespace segfuse::data {

/// Weights of neighbouring bins.
struct Band {
  std::size_t first_bin = 0;
  std::vector<float> weights;
};

/// The spectrum of `size` real numbers, of 2^a 5^b with a of 2 or more, or b of 0: a complex
/// transform of half that size by steps of radix 5, then 2 where 4 does not divide what is left,
/// then 4.
struct FourierTables {
  explicit FourierTables(std::size_t size);

  std::size_t size = 0;
  std::vector<std::uint32_t> place;    ///< of each complex input in what the first step takes
  std::vector<std::uint32_t> radices;  ///< of the steps
  std::vector<float> cosine, sine;     ///< of the steps, by turns of a circle of size / 2
  std::vector<float> real_cosine, real_sine;  ///< that part the spectra of even and odd numbers
};

/// Scratch memory of band_energies(); any content.
using BandWork = std::vector<float>;

/// energies[b * n + w] of band b of window w, of n. A window has taper.size() samples, at most
/// tables.size, that are tapered and followed by zeros. Its energies do not depend on the others.
void band_energies(const FourierTables& tables, std::span<const float> taper,
                   std::span<const Band> bands, std::span<const float* const> windows,
                   BandWork& work, std::span<float> energies);

}  // namespace segfuse::data
