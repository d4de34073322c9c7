// Kernel k0: cpu.
void k0(void *const *buffers, const int64_t *sizes, int64_t begin, int64_t end,
        void *scratch) {
  const float *const b0 = (const float *)buffers[0];  // input f32
  const int64_t *const b1 = (const int64_t *)buffers[1];  // input i64
  float *const b2 = (float *)buffers[2];  // output f32
  const int64_t n0 = sizes[0];  // B*T
  (void)scratch;
  for (int64_t p = begin; p < end; ++p) {
    const int64_t v1 = b1[0];
    const int64_t v2 = b1[1];
    {
      const int64_t j_end = sf_min(p * 4096 + 4096, n0);
      int64_t j = p * 4096;
      for (; j + SF_LANES <= j_end; j += SF_LANES) {
        const sf_f32 v0 = sf_load_f32(b0 + j);
        const sf_f32 v3 = sf_random_uniform(v1, v2, 5, sf_lanes_i64(j));
        const sf_f32 v4 = v0 + v3;
        sf_store_f32(b2 + j, v4);
      }
      for (; j < j_end; j += SF_LANES) {
        const int64_t lanes = sf_min(j_end - j, SF_LANES);
        const sf_f32 v0 = sf_load_f32_n(b0 + j, lanes);
        const sf_f32 v3 = sf_random_uniform(v1, v2, 5, sf_lanes_i64(j));
        const sf_f32 v4 = v0 + v3;
        sf_store_f32_n(b2 + j, v4, lanes);
      }
    }
  }
}
