// Kernel k0: cpu.
void k0(void *const *buffers, const int64_t *sizes, int64_t begin, int64_t end,
        void *scratch) {
  const float *const b0 = (const float *)buffers[0];  // input f32
  const uint8_t *const b1 = (const uint8_t *)buffers[1];  // input bool
  float *const b2 = (float *)buffers[2];  // output f32
  double *const b3 = (double *)buffers[3];  // output f64
  uint8_t *const b4 = (uint8_t *)buffers[4];  // output bool
  const int64_t n0 = sizes[0];  // B*T
  (void)scratch;
  for (int64_t p = begin; p < end; ++p) {
    const float v1 = 0.25f;
    {
      const int64_t j_end = sf_min(p * 4096 + 4096, n0);
      int64_t j = p * 4096;
      for (; j + SF_LANES <= j_end; j += SF_LANES) {
        const sf_f32 v0 = sf_load_f32(b0 + j);
        const sf_bool v2 = sf_lt_f32(v0, sf_all_f32(v1));
        const sf_bool v3 = sf_load_bool(b1 + j);
        const sf_bool v4 = sf_logical_xor_bool(v2, v3);
        const sf_f32 v5 = sf_select_f32(v4, v0, sf_all_f32(v1));
        sf_store_f32(b2 + j, v5);
        const sf_f64 v6 = sf_f64_from_bool(v4);
        sf_store_f64(b3 + j, v6);
        const sf_bool v7 = sf_logical_not_bool(v4);
        sf_store_bool(b4 + j, v7);
      }
      for (; j < j_end; j += SF_LANES) {
        const int64_t lanes = sf_min(j_end - j, SF_LANES);
        const sf_f32 v0 = sf_load_f32_n(b0 + j, lanes);
        const sf_bool v2 = sf_lt_f32(v0, sf_all_f32(v1));
        const sf_bool v3 = sf_load_bool_n(b1 + j, lanes);
        const sf_bool v4 = sf_logical_xor_bool(v2, v3);
        const sf_f32 v5 = sf_select_f32(v4, v0, sf_all_f32(v1));
        sf_store_f32_n(b2 + j, v5, lanes);
        const sf_f64 v6 = sf_f64_from_bool(v4);
        sf_store_f64_n(b3 + j, v6, lanes);
        const sf_bool v7 = sf_logical_not_bool(v4);
        sf_store_bool_n(b4 + j, v7, lanes);
      }
    }
  }
}
