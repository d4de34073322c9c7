// Kernel k0: cpu.
void k0(void *const *buffers, const int64_t *sizes, int64_t begin, int64_t end,
        void *scratch) {
  const double *const b0 = (const double *)buffers[0];  // input f64
  double *const b1 = (double *)buffers[1];  // output f64
  const int64_t n0 = sizes[0];  // B*T
  (void)scratch;
  for (int64_t p = begin; p < end; ++p) {
    {
      const int64_t j_end = sf_min(p * 4096 + 4096, n0);
      int64_t j = p * 4096;
      for (; j + SF_LANES <= j_end; j += SF_LANES) {
        const sf_f64 v0 = sf_load_f64(b0 + j);
        const sf_f64 v1 = sf_floor_f64(v0);
        const sf_f64 v2 = sf_pow_f64(v1, v0);
        sf_store_f64(b1 + j, v2);
      }
      for (; j < j_end; j += SF_LANES) {
        const int64_t lanes = sf_min(j_end - j, SF_LANES);
        const sf_f64 v0 = sf_load_f64_n(b0 + j, lanes);
        const sf_f64 v1 = sf_floor_f64(v0);
        const sf_f64 v2 = sf_pow_f64(v1, v0);
        sf_store_f64_n(b1 + j, v2, lanes);
      }
    }
  }
}
