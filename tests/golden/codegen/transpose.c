// Kernel k0: cpu.
void k0(void *const *buffers, const int64_t *sizes, int64_t begin, int64_t end,
        void *scratch) {
  const float *const b0 = (const float *)buffers[0];  // input f32
  float *const b1 = (float *)buffers[1];  // output f32
  const int64_t n0 = sizes[0];  // floordiv(B - 1, 4096) + 1
  const int64_t n1 = sizes[1];  // floordiv(T - 1, 32) + 1
  const int64_t n2 = sizes[2];  // T
  const int64_t n3 = sizes[3];  // B
  (void)scratch;
  for (int64_t p = begin; p < end; ++p) {
    for (int64_t i = (p / n0) % n1 * 32; i < sf_min((p / n0) % n1 * 32 + 32, n2); ++i) {
      {
        const int64_t j_end = sf_min(p % n0 * 4096 + 4096, n3);
        int64_t j = p % n0 * 4096;
        for (; j + SF_LANES <= j_end; j += SF_LANES) {
          const sf_f32 v0 = sf_load_f32_strided(b0 + i + j * n2, n2, SF_LANES);
          const sf_f32 v1 = sf_exp_f32(v0);
          sf_store_f32(b1 + i * n3 + j, v1);
        }
        for (; j < j_end; j += SF_LANES) {
          const int64_t lanes = sf_min(j_end - j, SF_LANES);
          const sf_f32 v0 = sf_load_f32_strided(b0 + i + j * n2, n2, lanes);
          const sf_f32 v1 = sf_exp_f32(v0);
          sf_store_f32_n(b1 + i * n3 + j, v1, lanes);
        }
      }
    }
  }
}
