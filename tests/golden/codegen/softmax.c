// Kernel k0: cpu.
void k0(void *const *buffers, const int64_t *sizes, int64_t begin, int64_t end,
        void *scratch) {
  const float *const b0 = (const float *)buffers[0];  // input f32
  float *const b1 = (float *)buffers[1];  // output f32
  const int64_t n0 = sizes[0];  // T
  (void)scratch;
  for (int64_t p = begin; p < end; ++p) {
    sf_f32 r0[4];
    sf_f64 r1[4];
    SF_EACH(4, r0[u] = sf_all_f32(-SF_INFINITY);)
    {
      const int64_t j_end = n0;
      int64_t j = 0;
      for (; j + 4 * SF_LANES <= j_end; j += 4 * SF_LANES) {
        sf_f32 v0[4];
        SF_EACH(4, v0[u] = sf_load_f32(b0 + p * n0 + (j + u * SF_LANES));)
        SF_EACH(4, r0[u] = sf_maximum_f32(r0[u], v0[u]);)
      }
      for (; j < j_end; j += SF_LANES) {
        const int64_t lanes = sf_min(j_end - j, SF_LANES);
        const sf_f32 v0 = sf_load_f32_n(b0 + p * n0 + j, lanes);
        r0[0] = sf_maximum_f32(r0[0], sf_select_f32(sf_lanes_below(lanes), v0, sf_all_f32(-SF_INFINITY)));
      }
    }
    r0[0] = sf_maximum_f32(r0[0], r0[1]);
    r0[0] = sf_maximum_f32(r0[0], r0[2]);
    r0[0] = sf_maximum_f32(r0[0], r0[3]);
    const float v1 = sf_join_max_f32(r0[0]);
    SF_EACH(4, r1[u] = sf_all_f64(0.0);)
    {
      const int64_t j_end = n0;
      int64_t j = 0;
      for (; j + 4 * SF_LANES <= j_end; j += 4 * SF_LANES) {
        sf_f32 v2[4];
        SF_EACH(4, v2[u] = sf_load_f32(b0 + p * n0 + (j + u * SF_LANES));)
        sf_f32 v3[4];
        SF_EACH(4, v3[u] = v2[u] - v1;)
        sf_f32 v4[4];
        SF_EACH(4, v4[u] = sf_exp_f32(v3[u]);)
        SF_EACH(4, r1[u] = sf_sum_step(r1[u], v4[u]);)
      }
      for (; j < j_end; j += SF_LANES) {
        const int64_t lanes = sf_min(j_end - j, SF_LANES);
        const sf_f32 v2 = sf_load_f32_n(b0 + p * n0 + j, lanes);
        const sf_f32 v3 = v2 - v1;
        const sf_f32 v4 = sf_exp_f32(v3);
        r1[0] = sf_sum_step(r1[0], sf_select_f32(sf_lanes_below(lanes), v4, sf_all_f32(0)));
      }
    }
    r1[0] += r1[1];
    r1[0] += r1[2];
    r1[0] += r1[3];
    const float v5 = (float)sf_join_sum_f64(r1[0]);
    {
      const int64_t j_end = n0;
      int64_t j = 0;
      for (; j + SF_LANES <= j_end; j += SF_LANES) {
        const sf_f32 v6 = sf_load_f32(b0 + p * n0 + j);
        const sf_f32 v7 = v6 - v1;
        const sf_f32 v8 = sf_exp_f32(v7);
        const sf_f32 v9 = v8 / v5;
        sf_store_f32(b1 + p * n0 + j, v9);
      }
      for (; j < j_end; j += SF_LANES) {
        const int64_t lanes = sf_min(j_end - j, SF_LANES);
        const sf_f32 v6 = sf_load_f32_n(b0 + p * n0 + j, lanes);
        const sf_f32 v7 = v6 - v1;
        const sf_f32 v8 = sf_exp_f32(v7);
        const sf_f32 v9 = v8 / v5;
        sf_store_f32_n(b1 + p * n0 + j, v9, lanes);
      }
    }
  }
}
