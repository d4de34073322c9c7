#include "learn/data/features/bands.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "base/check.h"
#include "base/code/simd_targets.h"

// Vectors of four floats gain nothing over the baseline's.
#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_SSE4 | HWY_AVX3_DL | SEGFUSE_NO_SVE)
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "learn/data/features/bands.cpp"
#include <hwy/foreach_target.h>
// After foreach_target.h:
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace segfuse::data::HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;

/// Some windows in the lanes of vectors.
template <class D>
class Windows {
 public:
  Windows(const FourierTables& tables, BandWork& work)
      : tables_(tables), half_(tables.size / 2), lanes_(hn::Lanes(D())) {
    work.resize((2 * half_ + half_ + 1) * lanes_ + kAlign);
    const auto address = reinterpret_cast<std::uintptr_t>(work.data()) / sizeof(float);
    values_ = work.data() + (kAlign - address % kAlign) % kAlign;
    power_ = values_ + 2 * half_ * lanes_;
  }

  void load(std::span<const float> taper, const float* const* windows, std::size_t n) {
    std::fill_n(values_, 2 * half_ * lanes_, 0.0F);
    for (std::size_t l = 0; l < n; ++l)
      for (std::size_t i = 0; i < taper.size(); ++i)
        values_[(2 * tables_.place[i / 2] + i % 2) * lanes_ + l] = windows[l][i] * taper[i];
  }

  void transform() {
    std::size_t m = 1;
    for (const std::uint32_t radix : tables_.radices) {
      const std::size_t turn = half_ / (m * radix);
      for (std::size_t first = 0; first < half_; first += m * radix)
        for (std::size_t j = 0; j < m; ++j) step(radix, first + j, m, j * turn);
      m *= radix;
    }
  }

  void find_power() {
    const Vec half = hn::Set(d_, 0.5F);
    const Complex all = at(0);
    set_power(0, hn::Add(all.re, all.im), hn::Zero(d_));
    set_power(half_, hn::Sub(all.re, all.im), hn::Zero(d_));
    for (std::size_t k = 1; k <= half_ / 2; ++k) {
      const Complex p = at(k);
      const Complex q = at(half_ - k);
      const Complex even{hn::Add(p.re, q.re), hn::Sub(p.im, q.im)};
      const Complex odd{hn::Sub(p.re, q.re), hn::Add(p.im, q.im)};
      const Turned t = turned(odd, tables_.real_cosine[k - 1], tables_.real_sine[k - 1]);
      set_power(k, hn::Mul(hn::Sub(hn::Add(even.re, t.rr), t.ii), half),
                hn::Mul(hn::Add(even.im, t.im), half));
      set_power(half_ - k, hn::Mul(hn::Sub(hn::Add(even.re, t.ii), t.rr), half),
                hn::Mul(hn::Sub(t.im, even.im), half));
    }
  }

  void sum(const Band& band, float* energies, std::size_t n) const {
    Vec sum = hn::Zero(d_);
    for (std::size_t i = 0; i < band.weights.size(); ++i)
      sum = hn::Add(sum, hn::Mul(hn::Set(d_, band.weights[i]),
                                 hn::Load(d_, power_ + (band.first_bin + i) * lanes_)));
    float all[hn::MaxLanes(D())];
    hn::StoreU(sum, d_, all);
    std::copy_n(all, n, energies);
  }

 private:
  static constexpr std::size_t kAlign = 16;  // floats
  using Vec = hn::Vec<D>;
  struct Complex {
    Vec re, im;
  };
  /// A product with cosine and sine, whose real part is rr - ii.
  struct Turned {
    Vec rr, ii, im;
  };

  Complex at(std::size_t k) const {
    const float* value = values_ + 2 * k * lanes_;
    return {hn::Load(d_, value), hn::Load(d_, value + lanes_)};
  }
  void set(std::size_t k, Vec re, Vec im) {
    float* value = values_ + 2 * k * lanes_;
    hn::Store(re, d_, value);
    hn::Store(im, d_, value + lanes_);
  }
  void set_power(std::size_t bin, Vec re, Vec im) {
    hn::Store(hn::Add(hn::Mul(re, re), hn::Mul(im, im)), d_, power_ + bin * lanes_);
  }
  Turned turned(Complex x, float cosine, float sine) const {
    const Vec c = hn::Set(d_, cosine);
    const Vec s = hn::Set(d_, sine);
    return {hn::Mul(x.re, c), hn::Mul(x.im, s), hn::Add(hn::Mul(x.im, c), hn::Mul(x.re, s))};
  }
  Turned turned(std::size_t k, std::size_t turn) const {
    return turned(at(k), tables_.cosine[turn], tables_.sine[turn]);
  }

  void step(std::uint32_t radix, std::size_t k, std::size_t m, std::size_t turn) {
    if (radix == 4)
      four(k, m, turn);
    else if (radix == 2)
      two(k, m, turn);
    else
      five(k, m, turn);
  }

  void two(std::size_t k, std::size_t m, std::size_t turn) {
    const Complex a = at(k);
    const Turned t = turned(k + m, turn);
    const Vec re = hn::Sub(t.rr, t.ii);
    set(k, hn::Add(a.re, re), hn::Add(a.im, t.im));
    set(k + m, hn::Sub(a.re, re), hn::Sub(a.im, t.im));
  }

  // The order of the sums is that of kissfft as Debian compiles it, so features have the bits that
  // they had with that library.
  void four(std::size_t k, std::size_t m, std::size_t turn) {
    const Complex a = at(k);
    const Turned b = turned(k + m, turn);
    const Turned c = turned(k + 2 * m, 2 * turn);
    const Turned e = turned(k + 3 * m, 3 * turn);
    const Vec b_re = hn::Sub(b.rr, b.ii);
    const Complex ac{hn::Sub(hn::Add(a.re, c.rr), c.ii), hn::Add(a.im, c.im)};
    const Complex a_c{hn::Sub(hn::Add(a.re, c.ii), c.rr), hn::Sub(a.im, c.im)};
    const Complex be{hn::Add(hn::Sub(b_re, e.ii), e.rr), hn::Add(b.im, e.im)};
    const Complex b_e{hn::Add(hn::Sub(b_re, e.rr), e.ii), hn::Sub(b.im, e.im)};
    set(k, hn::Add(ac.re, be.re), hn::Add(ac.im, be.im));
    set(k + m, hn::Add(a_c.re, b_e.im), hn::Sub(a_c.im, b_e.re));
    set(k + 2 * m, hn::Sub(ac.re, be.re), hn::Sub(ac.im, be.im));
    set(k + 3 * m, hn::Sub(a_c.re, b_e.im), hn::Add(a_c.im, b_e.re));
  }

  static Complex sum(Complex a, Complex b) { return {hn::Add(a.re, b.re), hn::Add(a.im, b.im)}; }
  static Complex difference(Complex a, Complex b) {
    return {hn::Sub(a.re, b.re), hn::Sub(a.im, b.im)};
  }
  Complex scaled(Complex x, float by) const {
    const Vec factor = hn::Set(d_, by);
    return {hn::Mul(x.re, factor), hn::Mul(x.im, factor)};
  }
  Complex turned_whole(std::size_t k, std::size_t turn) const {
    const Turned t = turned(k, turn);
    return {hn::Sub(t.rr, t.ii), t.im};
  }
  /// x - i y and x + i y.
  void set_pair(std::size_t minus, std::size_t plus, Complex x, Complex y) {
    set(minus, hn::Add(x.re, y.im), hn::Sub(x.im, y.re));
    set(plus, hn::Sub(x.re, y.im), hn::Add(x.im, y.re));
  }

  void five(std::size_t k, std::size_t m, std::size_t turn) {
    constexpr double kFifth = 2 * std::numbers::pi / 5;
    const auto cos1 = static_cast<float>(std::cos(kFifth));
    const auto cos2 = static_cast<float>(std::cos(2 * kFifth));
    const auto sin1 = static_cast<float>(std::sin(kFifth));
    const auto sin2 = static_cast<float>(std::sin(2 * kFifth));
    const Complex a = at(k);
    const Complex b = turned_whole(k + m, turn);
    const Complex c = turned_whole(k + 2 * m, 2 * turn);
    const Complex e = turned_whole(k + 3 * m, 3 * turn);
    const Complex f = turned_whole(k + 4 * m, 4 * turn);
    const Complex outer = sum(b, f);
    const Complex inner = sum(c, e);
    const Complex off_outer = difference(b, f);
    const Complex off_inner = difference(c, e);
    const Complex all = sum(a, sum(outer, inner));
    set(k, all.re, all.im);
    set_pair(k + m, k + 4 * m, sum(a, sum(scaled(outer, cos1), scaled(inner, cos2))),
             sum(scaled(off_outer, sin1), scaled(off_inner, sin2)));
    set_pair(k + 2 * m, k + 3 * m, sum(a, sum(scaled(outer, cos2), scaled(inner, cos1))),
             difference(scaled(off_outer, sin2), scaled(off_inner, sin1)));
  }

  const D d_{};
  const FourierTables& tables_;
  std::size_t half_, lanes_;
  float* values_;  // (size / 2, 2, lanes): real and imaginary parts
  float* power_;   // (size / 2 + 1, lanes)
};

template <class D>
void energies_of(const FourierTables& tables, std::span<const float> taper,
                 std::span<const Band> bands, std::span<const float* const> windows, BandWork& work,
                 float* energies) {
  Windows<D> some(tables, work);
  const std::size_t lanes = hn::Lanes(D());
  for (std::size_t w = 0; w < windows.size(); w += lanes) {
    const std::size_t n = std::min(lanes, windows.size() - w);
    some.load(taper, &windows[w], n);
    some.transform();
    some.find_power();
    for (std::size_t b = 0; b < bands.size(); ++b)
      some.sum(bands[b], energies + b * windows.size() + w, n);
  }
}

void energies_of_all(const FourierTables& tables, std::span<const float> taper,
                     std::span<const Band> bands, std::span<const float* const> windows,
                     BandWork& work, float* energies) {
  constexpr std::size_t kLarge = std::size_t{1} << 16;  // memory counts more than time
  if (tables.size > kLarge || windows.size() == 1)
    energies_of<hn::CappedTag<float, 1>>(tables, taper, bands, windows, work, energies);
  else
    energies_of<hn::ScalableTag<float>>(tables, taper, bands, windows, work, energies);
}

}  // namespace
}  // namespace segfuse::data::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace segfuse::data {
namespace {

HWY_EXPORT(energies_of_all);

}  // namespace

FourierTables::FourierTables(std::size_t with) : size(with) {
  const std::size_t half = size / 2;
  for (std::size_t rest = half; rest > 1; rest /= radices.back()) {
    radices.push_back(rest % 4 == 0 ? 4 : rest % 2 == 0 ? 2 : 5);
    SEGFUSE_CHECK(rest % radices.back() == 0, "a transform of {} numbers", size);
  }
  place.resize(half);
  for (std::size_t k = 0; k < half; ++k) {
    std::size_t input = 0;
    std::size_t rest = k;
    std::size_t block = half;
    std::size_t stride = 1;
    for (const std::uint32_t radix : radices) {
      block /= radix;
      input += rest / block * stride;
      rest %= block;
      stride *= radix;
    }
    place[input] = static_cast<std::uint32_t>(k);
  }
  std::ranges::reverse(radices);
  const auto add = [](double phase, std::vector<float>& cosines, std::vector<float>& sines) {
    cosines.push_back(static_cast<float>(std::cos(phase)));
    sines.push_back(static_cast<float>(std::sin(phase)));
  };
  const double turns = static_cast<double>(half);
  for (std::size_t i = 0; i < half; ++i)
    add(-2 * std::numbers::pi * static_cast<double>(i) / turns, cosine, sine);
  for (std::size_t i = 1; i <= half / 2; ++i)
    add(-std::numbers::pi * (static_cast<double>(i) / turns + 0.5), real_cosine, real_sine);
}

void band_energies(const FourierTables& tables, std::span<const float> taper,
                   std::span<const Band> bands, std::span<const float* const> windows,
                   BandWork& work, std::span<float> energies) {
  HWY_DYNAMIC_DISPATCH(energies_of_all)(tables, taper, bands, windows, work, energies.data());
}

}  // namespace segfuse::data
#endif
