// Kernel k0: cpu.
void k0(void *const *buffers, const int64_t *sizes, int64_t begin, int64_t end,
        void *scratch) {
  const uint16_t *const b0 = (const uint16_t *)buffers[0];  // input f16
  const uint16_t *const b1 = (const uint16_t *)buffers[1];  // input bf16
  uint16_t *const b2 = (uint16_t *)buffers[2];  // output f16
  uint16_t *const b3 = (uint16_t *)buffers[3];  // output bf16
  uint16_t *const b4 = (uint16_t *)buffers[4];  // output f16
  const int64_t n0 = sizes[0];  // T
  (void)scratch;
  for (int64_t p = begin; p < end; ++p) {
    sf_f64 r0[4];
    SF_EACH(4, r0[u] = sf_all_f64(0.0);)
    {
      const int64_t j_end = n0;
      int64_t j = 0;
      for (; j + 4 * SF_LANES <= j_end; j += 4 * SF_LANES) {
        sf_f32 v0[4];
        SF_EACH(4, v0[u] = sf_load_f16(b0 + p * n0 + (j + u * SF_LANES));)
        sf_f32 v1[4];
        SF_EACH(4, v1[u] = v0[u];)
        SF_EACH(4, r0[u] = sf_sum_step(r0[u], v1[u]);)
        sf_f32 v2[4];
        SF_EACH(4, v2[u] = sf_load_bf16(b1 + p * n0 + (j + u * SF_LANES));)
        sf_f32 v3[4];
        SF_EACH(4, v3[u] = sf_round_f16(v2[u]);)
        sf_f32 v4[4];
        SF_EACH(4, v4[u] = sf_round_f16(v0[u] * v3[u]);)
        sf_f32 v5[4];
        SF_EACH(4, v5[u] = sf_round_f16(sf_tanh_f32(v4[u]));)
        SF_EACH(4, sf_store_f16(b2 + p * n0 + (j + u * SF_LANES), v5[u]);)
        sf_f32 v6[4];
        SF_EACH(4, v6[u] = sf_round_bf16(v5[u]);)
        SF_EACH(4, sf_store_bf16(b3 + p * n0 + (j + u * SF_LANES), v6[u]);)
      }
      for (; j < j_end; j += SF_LANES) {
        const int64_t lanes = sf_min(j_end - j, SF_LANES);
        const sf_f32 v0 = sf_load_f16_n(b0 + p * n0 + j, lanes);
        const sf_f32 v1 = v0;
        r0[0] = sf_sum_step(r0[0], sf_select_f32(sf_lanes_below(lanes), v1, sf_all_f32(0)));
        const sf_f32 v2 = sf_load_bf16_n(b1 + p * n0 + j, lanes);
        const sf_f32 v3 = sf_round_f16(v2);
        const sf_f32 v4 = sf_round_f16(v0 * v3);
        const sf_f32 v5 = sf_round_f16(sf_tanh_f32(v4));
        sf_store_f16_n(b2 + p * n0 + j, v5, lanes);
        const sf_f32 v6 = sf_round_bf16(v5);
        sf_store_bf16_n(b3 + p * n0 + j, v6, lanes);
      }
    }
    r0[0] += r0[1];
    r0[0] += r0[2];
    r0[0] += r0[3];
    const float v7 = (float)sf_join_sum_f64(r0[0]);
    const float v8 = sf_first_f32(sf_round_f16(sf_all_f32(v7)));
    sf_store_f16_n(b4 + p, sf_all_f32(v8), 1);
  }
}
