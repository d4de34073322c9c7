// Kernel k0: cpu.
void k0(void *const *buffers, const int64_t *sizes, int64_t begin, int64_t end,
        void *scratch) {
  const float *const b0 = (const float *)buffers[0];  // input f32
  int64_t *const b1 = (int64_t *)buffers[1];  // output i64
  const int64_t n0 = sizes[0];  // T
  (void)scratch;
  for (int64_t p = begin; p < end; ++p) {
    sf_f32 r0[2];
    sf_i64 r0_at[2];
    SF_EACH(2, r0[u] = sf_all_f32(-SF_INFINITY);)
    SF_EACH(2, r0_at[u] = sf_all_i64(0x7FFFFFFFFFFFFFFF);)
    {
      const int64_t j_end = n0;
      int64_t j = 0;
      for (; j + 2 * SF_LANES <= j_end; j += 2 * SF_LANES) {
        sf_f32 v0[2];
        SF_EACH(2, v0[u] = sf_load_f32(b0 + p * n0 + (j + u * SF_LANES));)
        SF_EACH(2, sf_argmax_step_f32(&r0[u], &r0_at[u], v0[u], sf_lanes_i64(j + u * SF_LANES), sf_all_bool(1));)
      }
      for (; j < j_end; j += SF_LANES) {
        const int64_t lanes = sf_min(j_end - j, SF_LANES);
        const sf_f32 v0 = sf_load_f32_n(b0 + p * n0 + j, lanes);
        sf_argmax_step_f32(&r0[0], &r0_at[0], v0, sf_lanes_i64(j), sf_lanes_below(lanes));
      }
    }
    sf_argmax_step_f32(&r0[0], &r0_at[0], r0[1], r0_at[1], sf_all_bool(1));
    int64_t r0_position;
    const float r0_best = sf_argmax_join_f32(r0[0], r0_at[0], &r0_position);
    const int64_t v2 = r0_position;
    (void)r0_best;
    b1[p] = v2;
  }
}

// Kernel k1: cpu.
void k1(void *const *buffers, const int64_t *sizes, int64_t begin, int64_t end,
        void *scratch) {
  const float *const b0 = (const float *)buffers[0];  // input f32
  int64_t *const b1 = (int64_t *)buffers[1];  // output i64
  const int64_t n0 = sizes[0];  // T
  const int64_t n1 = sizes[1];  // B
  (void)scratch;
  for (int64_t p = begin; p < end; ++p) {
    {
      const int64_t j_end = sf_min(p * 4096 + 4096, n0);
      int64_t j = p * 4096;
      for (; j + 2 * SF_LANES <= j_end; j += 2 * SF_LANES) {
        sf_f32 r0[2];
        sf_i64 r0_at[2];
        SF_EACH(2, r0[u] = sf_all_f32(-SF_INFINITY);)
        SF_EACH(2, r0_at[u] = sf_all_i64(0x7FFFFFFFFFFFFFFF);)
        for (int64_t r = 0; r < n1; ++r) {
          sf_f32 v0[2];
          SF_EACH(2, v0[u] = sf_load_f32(b0 + (j + u * SF_LANES) + r * n0);)
          SF_EACH(2, sf_argmax_step_f32(&r0[u], &r0_at[u], v0[u], sf_all_i64(r), sf_all_bool(1));)
        }
        sf_i64 v2[2];
        SF_EACH(2, v2[u] = sf_select_i64(sf_eq_i64(r0_at[u], sf_all_i64(0x7FFFFFFFFFFFFFFF)), sf_all_i64(0), r0_at[u]);)
        SF_EACH(2, sf_store_i64(b1 + (j + u * SF_LANES), v2[u]);)
      }
      for (; j < j_end; j += SF_LANES) {
        const int64_t lanes = sf_min(j_end - j, SF_LANES);
        sf_f32 r0;
        sf_i64 r0_at;
        r0 = sf_all_f32(-SF_INFINITY);
        r0_at = sf_all_i64(0x7FFFFFFFFFFFFFFF);
        for (int64_t r = 0; r < n1; ++r) {
          const sf_f32 v0 = sf_load_f32_n(b0 + j + r * n0, lanes);
          sf_argmax_step_f32(&r0, &r0_at, v0, sf_all_i64(r), sf_all_bool(1));
        }
        const sf_i64 v2 = sf_select_i64(sf_eq_i64(r0_at, sf_all_i64(0x7FFFFFFFFFFFFFFF)), sf_all_i64(0), r0_at);
        sf_store_i64_n(b1 + j, v2, lanes);
      }
    }
  }
}
