// Kernel k0: cpu.
void k0(void *const *buffers, const int64_t *sizes, int64_t begin, int64_t end,
        void *scratch) {
  const float *const b0 = (const float *)buffers[0];  // input f32
  float *const b1 = (float *)buffers[1];  // output f32
  const int64_t n0 = sizes[0];  // T
  const int64_t n1 = sizes[1];  // B
  (void)scratch;
  for (int64_t p = begin; p < end; ++p) {
    {
      const int64_t j_end = sf_min(p * 4096 + 4096, n0);
      int64_t j = p * 4096;
      for (; j + 4 * SF_LANES <= j_end; j += 4 * SF_LANES) {
        sf_f64 r0[4];
        SF_EACH(4, r0[u] = sf_all_f64(0.0);)
        for (int64_t r = 0; r < n1; ++r) {
          sf_f32 v0[4];
          SF_EACH(4, v0[u] = sf_load_f32(b0 + (j + u * SF_LANES) + r * n0);)
          SF_EACH(4, r0[u] = sf_sum_step(r0[u], v0[u]);)
        }
        sf_f32 v1[4];
        SF_EACH(4, v1[u] = sf_sum(r0[u]);)
        SF_EACH(4, sf_store_f32(b1 + (j + u * SF_LANES), v1[u]);)
      }
      for (; j < j_end; j += SF_LANES) {
        const int64_t lanes = sf_min(j_end - j, SF_LANES);
        sf_f64 r0;
        r0 = sf_all_f64(0.0);
        for (int64_t r = 0; r < n1; ++r) {
          const sf_f32 v0 = sf_load_f32_n(b0 + j + r * n0, lanes);
          r0 = sf_sum_step(r0, v0);
        }
        const sf_f32 v1 = sf_sum(r0);
        sf_store_f32_n(b1 + j, v1, lanes);
      }
    }
  }
}
