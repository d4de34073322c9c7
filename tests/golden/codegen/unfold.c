// Kernel k0: cpu.
void k0(void *const *buffers, const int64_t *sizes, int64_t begin, int64_t end,
        void *scratch) {
  const float *const b0 = (const float *)buffers[0];  // input f32
  float *const b1 = (float *)buffers[1];  // output f32
  const int64_t n0 = sizes[0];  // T - 2
  const int64_t n1 = sizes[1];  // T
  (void)scratch;
  for (int64_t p = begin; p < end; ++p) {
    {
      const int64_t j_end = 3;
      int64_t j = 0;
      for (; j + SF_LANES <= j_end; j += SF_LANES) {
        const sf_f32 v0 = sf_load_f32(b0 + p % n0 + p / n0 * n1 + j);
        const sf_f32 v1 = sf_erf_f32(v0);
        sf_store_f32(b1 + p * 3 + j, v1);
      }
      for (; j < j_end; j += SF_LANES) {
        const int64_t lanes = sf_min(j_end - j, SF_LANES);
        const sf_f32 v0 = sf_load_f32_n(b0 + p % n0 + p / n0 * n1 + j, lanes);
        const sf_f32 v1 = sf_erf_f32(v0);
        sf_store_f32_n(b1 + p * 3 + j, v1, lanes);
      }
    }
  }
}
