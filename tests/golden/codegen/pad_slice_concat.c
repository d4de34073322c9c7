// Kernel k0: cpu.
void k0(void *const *buffers, const int64_t *sizes, int64_t begin, int64_t end,
        void *scratch) {
  const float *const b0 = (const float *)buffers[0];  // input f32
  float *const b1 = (float *)buffers[1];  // output f32
  const int64_t n0 = sizes[0];  // floordiv(T - 4092, 4096) + 2
  const int64_t n1 = sizes[1];  // T + 5
  const int64_t n2 = sizes[2];  // -T - 2
  const int64_t n3 = sizes[3];  // T
  const int64_t n4 = sizes[4];  // B
  (void)scratch;
  for (int64_t p = begin; p < end; ++p) {
    {
      const int64_t j_end = sf_min(p % n0 * 4096 + 4096, n1);
      int64_t j = p % n0 * 4096;
      for (; j + SF_LANES <= j_end; j += SF_LANES) {
        const sf_bool m0 = sf_all_bool(sf_inside(p / n0 - 1, n4)) & sf_within(sf_lanes_i64(j) - 2, n3);
        const sf_f32 v0 = sf_select_f32(m0, sf_load_f32_in(b0 + p / n0 * n3 + j + n2, m0), sf_all_f32(1.5f));
        sf_store_f32(b1 + p / n0 * n1 + j, v0);
      }
      for (; j < j_end; j += SF_LANES) {
        const int64_t lanes = sf_min(j_end - j, SF_LANES);
        const sf_bool m1 = sf_all_bool(sf_inside(p / n0 - 1, n4)) & sf_within(sf_lanes_i64(j) - 2, n3) & sf_lanes_below(lanes);
        const sf_f32 v0 = sf_select_f32(m1, sf_load_f32_in(b0 + p / n0 * n3 + j + n2, m1), sf_all_f32(1.5f));
        sf_store_f32_n(b1 + p / n0 * n1 + j, v0, lanes);
      }
    }
  }
}

// Kernel k1: cpu.
void k1(void *const *buffers, const int64_t *sizes, int64_t begin, int64_t end,
        void *scratch) {
  const float *const b0 = (const float *)buffers[0];  // input f32
  const float *const b1 = (const float *)buffers[1];  // input f32
  float *const b2 = (float *)buffers[2];  // output f32
  const int64_t n0 = sizes[0];  // T
  const int64_t n1 = sizes[1];  // floordiv(T - 1, 2048) + 1
  const int64_t n2 = sizes[2];  // 2*T
  const int64_t n3 = sizes[3];  // T + 5
  const int64_t n4 = sizes[4];  // -T
  (void)scratch;
  for (int64_t p = begin; p < end; ++p) {
    const int64_t v3 = 0;
    const int64_t v5 = n0;
    {
      const int64_t j_end = sf_min(p % n1 * 4096 + 4096, n2);
      int64_t j = p % n1 * 4096;
      for (; j + SF_LANES <= j_end; j += SF_LANES) {
        const sf_bool m0 = sf_within(sf_lanes_i64(j), n0);
        const sf_f32 v0 = sf_load_f32_in(b0 + p / n1 * n3 + j + 1, m0);
        const sf_bool m1 = sf_within(sf_lanes_i64(j) + n4, n0);
        const sf_f32 v1 = sf_load_f32_in(b1 + p / n1 * n0 + j + n4, m1);
        const sf_i64 v2 = sf_lanes_i64(j) + n4;
        const sf_bool v4 = sf_ge_i64(v2, sf_all_i64(v3));
        const sf_bool v6 = sf_lt_i64(v2, sf_all_i64(v5));
        const sf_bool v7 = sf_logical_and_bool(v4, v6);
        const sf_f32 v8 = sf_select_f32(v7, v1, v0);
        sf_store_f32(b2 + p / n1 * n2 + j, v8);
      }
      for (; j < j_end; j += SF_LANES) {
        const int64_t lanes = sf_min(j_end - j, SF_LANES);
        const sf_bool m2 = sf_within(sf_lanes_i64(j), n0) & sf_lanes_below(lanes);
        const sf_f32 v0 = sf_load_f32_in(b0 + p / n1 * n3 + j + 1, m2);
        const sf_bool m3 = sf_within(sf_lanes_i64(j) + n4, n0) & sf_lanes_below(lanes);
        const sf_f32 v1 = sf_load_f32_in(b1 + p / n1 * n0 + j + n4, m3);
        const sf_i64 v2 = sf_lanes_i64(j) + n4;
        const sf_bool v4 = sf_ge_i64(v2, sf_all_i64(v3));
        const sf_bool v6 = sf_lt_i64(v2, sf_all_i64(v5));
        const sf_bool v7 = sf_logical_and_bool(v4, v6);
        const sf_f32 v8 = sf_select_f32(v7, v1, v0);
        sf_store_f32_n(b2 + p / n1 * n2 + j, v8, lanes);
      }
    }
  }
}
