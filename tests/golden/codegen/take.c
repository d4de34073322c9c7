// Kernel k0: cpu.
void k0(void *const *buffers, const int64_t *sizes, int64_t begin, int64_t end,
        void *scratch) {
  const int64_t *const b0 = (const int64_t *)buffers[0];  // input i64
  const float *const b1 = (const float *)buffers[1];  // input f32
  float *const b2 = (float *)buffers[2];  // output f32
  int32_t *const status = (int32_t *)buffers[3];
  const int64_t n0 = sizes[0];  // floordiv(T - 1, 4096) + 1
  const int64_t n1 = sizes[1];  // B
  const int64_t n2 = sizes[2];  // T
  (void)scratch;
  for (int64_t p = begin; p < end; ++p) {
    const int64_t v0 = b0[p / n0];
    if (!sf_inside(v0, n1)) sf_report(status, 1);
    {
      const int64_t j_end = sf_min(p % n0 * 4096 + 4096, n2);
      int64_t j = p % n0 * 4096;
      for (; j + SF_LANES <= j_end; j += SF_LANES) {
        const sf_bool m0 = sf_all_bool(sf_inside(v0, n1));
        const sf_f32 v1 = sf_load_f32_in(b1 + j + v0 * n2, m0);
        const sf_f32 v2 = v1 * v1;
        sf_store_f32(b2 + p / n0 * n2 + j, v2);
      }
      for (; j < j_end; j += SF_LANES) {
        const int64_t lanes = sf_min(j_end - j, SF_LANES);
        const sf_bool m1 = sf_all_bool(sf_inside(v0, n1)) & sf_lanes_below(lanes);
        const sf_f32 v1 = sf_load_f32_in(b1 + j + v0 * n2, m1);
        const sf_f32 v2 = v1 * v1;
        sf_store_f32_n(b2 + p / n0 * n2 + j, v2, lanes);
      }
    }
  }
}
