// Kernel k0: cpu.
void k0(void *const *buffers, const int64_t *sizes, int64_t begin, int64_t end,
        void *scratch) {
  const float *const b0 = (const float *)buffers[0];  // input f32
  const float *const b1 = (const float *)buffers[1];  // input f32
  float *const b2 = (float *)buffers[2];  // output f32
  const int64_t n0 = sizes[0];  // floordiv(T - 1, 4096) + 1
  const int64_t n1 = sizes[1];  // T
  (void)scratch;
  for (int64_t p = begin; p < end; ++p) {
    {
      const int64_t j_end = sf_min(p % n0 * 4096 + 4096, n1);
      int64_t j = p % n0 * 4096;
      for (; j + SF_LANES <= j_end; j += SF_LANES) {
        const sf_f32 v0 = sf_load_f32(b0 + p / n0 * n1 + j);
        const sf_f32 v1 = sf_load_f32(b1 + j);
        const sf_f32 v2 = v0 + v1;
        const sf_f32 v3 = sf_tanh_f32(v2);
        sf_store_f32(b2 + p / n0 * n1 + j, v3);
      }
      for (; j < j_end; j += SF_LANES) {
        const int64_t lanes = sf_min(j_end - j, SF_LANES);
        const sf_f32 v0 = sf_load_f32_n(b0 + p / n0 * n1 + j, lanes);
        const sf_f32 v1 = sf_load_f32_n(b1 + j, lanes);
        const sf_f32 v2 = v0 + v1;
        const sf_f32 v3 = sf_tanh_f32(v2);
        sf_store_f32_n(b2 + p / n0 * n1 + j, v3, lanes);
      }
    }
  }
}
