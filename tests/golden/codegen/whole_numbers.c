// Kernel k0: cpu.
void k0(void *const *buffers, const int64_t *sizes, int64_t begin, int64_t end,
        void *scratch) {
  const int32_t *const b0 = (const int32_t *)buffers[0];  // input i32
  int32_t *const b1 = (int32_t *)buffers[1];  // output i32
  const int64_t n0 = sizes[0];  // B*T
  (void)scratch;
  for (int64_t p = begin; p < end; ++p) {
    sf_i32 r0[4];
    SF_EACH(4, r0[u] = sf_all_i32((-2147483647 - 1));)
    {
      const int64_t j_end = n0;
      int64_t j = 0;
      for (; j + 4 * SF_LANES <= j_end; j += 4 * SF_LANES) {
        sf_i32 v0[4];
        SF_EACH(4, v0[u] = sf_load_i32(b0 + (j + u * SF_LANES));)
        SF_EACH(4, r0[u] = sf_maximum_i32(r0[u], v0[u]);)
      }
      for (; j < j_end; j += SF_LANES) {
        const int64_t lanes = sf_min(j_end - j, SF_LANES);
        const sf_i32 v0 = sf_load_i32_n(b0 + j, lanes);
        r0[0] = sf_maximum_i32(r0[0], sf_select_i32(sf_lanes_below(lanes), v0, sf_all_i32((-2147483647 - 1))));
      }
    }
    r0[0] = sf_maximum_i32(r0[0], r0[1]);
    r0[0] = sf_maximum_i32(r0[0], r0[2]);
    r0[0] = sf_maximum_i32(r0[0], r0[3]);
    const int32_t v1 = sf_join_max_i32(r0[0]);
    b1[0] = v1;
  }
}

// Kernel k1: cpu.
void k1(void *const *buffers, const int64_t *sizes, int64_t begin, int64_t end,
        void *scratch) {
  const int32_t *const b1 = (const int32_t *)buffers[0];  // input i32
  int32_t *const b2 = (int32_t *)buffers[1];  // output i32
  int32_t *const b3 = (int32_t *)buffers[2];  // output i32
  int32_t *const w4 = (int32_t *)buffers[3];  // output i32
  const int64_t n0 = sizes[0];  // T
  const int64_t n1 = sizes[1];  // B
  char *row_memory = (char *)scratch;
  int32_t *const c0 = (int32_t *)row_memory;  // row i32
  row_memory += (n0 * 4 + 63) / 64 * 64;
  for (int64_t p = begin; p < end; ++p) {
    sf_i32 r0[4];
    sf_i32 r1[4];
    const int32_t v0 = 2147483647;
    {
      const int64_t j_end = n0;
      int64_t j = 0;
      for (; j + SF_LANES <= j_end; j += SF_LANES) {
        sf_store_i32(c0 + j, sf_all_i32(v0));
      }
      for (; j < j_end; j += SF_LANES) {
        const int64_t lanes = sf_min(j_end - j, SF_LANES);
        sf_store_i32_n(c0 + j, sf_all_i32(v0), lanes);
      }
    }
    for (int64_t i = p * 64; i < sf_min(p * 64 + 64, n1); ++i) {
      SF_EACH(4, r0[u] = sf_all_i32(1);)
      SF_EACH(4, r1[u] = sf_all_i32(0);)
      {
        const int64_t j_end = n0;
        int64_t j = 0;
        for (; j + 4 * SF_LANES <= j_end; j += 4 * SF_LANES) {
          sf_i32 v1[4];
          SF_EACH(4, v1[u] = sf_load_i32(b1 + i * n0 + (j + u * SF_LANES));)
          sf_i32 v2[4];
          SF_EACH(4, v2[u] = sf_mul_i32(v1[u], v1[u]);)
          SF_EACH(4, r0[u] = sf_mul_i32(r0[u], v2[u]);)
          SF_EACH(4, r1[u] = sf_add_i32(r1[u], v1[u]);)
          sf_i32 v3[4];
          SF_EACH(4, v3[u] = sf_load_i32(c0 + (j + u * SF_LANES));)
          sf_i32 v4[4];
          SF_EACH(4, v4[u] = sf_minimum_i32(v3[u], v1[u]);)
          SF_EACH(4, sf_store_i32(c0 + (j + u * SF_LANES), v4[u]);)
        }
        for (; j < j_end; j += SF_LANES) {
          const int64_t lanes = sf_min(j_end - j, SF_LANES);
          const sf_i32 v1 = sf_load_i32_n(b1 + i * n0 + j, lanes);
          const sf_i32 v2 = sf_mul_i32(v1, v1);
          r0[0] = sf_mul_i32(r0[0], sf_select_i32(sf_lanes_below(lanes), v2, sf_all_i32(1)));
          r1[0] = sf_add_i32(r1[0], sf_select_i32(sf_lanes_below(lanes), v1, sf_all_i32(0)));
          const sf_i32 v3 = sf_load_i32_n(c0 + j, lanes);
          const sf_i32 v4 = sf_minimum_i32(v3, v1);
          sf_store_i32_n(c0 + j, v4, lanes);
        }
      }
      r0[0] = sf_mul_i32(r0[0], r0[1]);
      r0[0] = sf_mul_i32(r0[0], r0[2]);
      r0[0] = sf_mul_i32(r0[0], r0[3]);
      const int32_t v5 = sf_join_prod_i32(r0[0]);
      r1[0] = sf_add_i32(r1[0], r1[1]);
      r1[0] = sf_add_i32(r1[0], r1[2]);
      r1[0] = sf_add_i32(r1[0], r1[3]);
      const int32_t v6 = sf_join_sum_i32(r1[0]);
      b2[i] = v5;
      b3[i] = v6;
    }
    {
      const int64_t j_end = n0;
      int64_t j = 0;
      for (; j + SF_LANES <= j_end; j += SF_LANES) {
        const sf_i32 v7 = sf_load_i32(c0 + j);
        sf_store_i32(w4 + p * n0 + j, v7);
      }
      for (; j < j_end; j += SF_LANES) {
        const int64_t lanes = sf_min(j_end - j, SF_LANES);
        const sf_i32 v7 = sf_load_i32_n(c0 + j, lanes);
        sf_store_i32_n(w4 + p * n0 + j, v7, lanes);
      }
    }
  }
}

// Kernel k1_2: cpu.
void k1_2(void *const *buffers, const int64_t *sizes, int64_t begin, int64_t end,
          void *scratch) {
  const int32_t *const w0 = (const int32_t *)buffers[0];  // input i32
  int32_t *const b1 = (int32_t *)buffers[1];  // output i32
  const int64_t n0 = sizes[0];  // T
  const int64_t n1 = sizes[1];  // floordiv(B - 1, 64) + 1
  (void)scratch;
  for (int64_t p = begin; p < end; ++p) {
    {
      const int64_t j_end = sf_min(p * 4096 + 4096, n0);
      int64_t j = p * 4096;
      for (; j + 4 * SF_LANES <= j_end; j += 4 * SF_LANES) {
        sf_i32 r0[4];
        SF_EACH(4, r0[u] = sf_all_i32(2147483647);)
        for (int64_t s = 0; s < n1; ++s) {
          sf_i32 v0[4];
          SF_EACH(4, v0[u] = sf_load_i32(w0 + (j + u * SF_LANES) + s * n0);)
          SF_EACH(4, r0[u] = sf_minimum_i32(r0[u], v0[u]);)
        }
        sf_i32 v1[4];
        SF_EACH(4, v1[u] = r0[u];)
        SF_EACH(4, sf_store_i32(b1 + (j + u * SF_LANES), v1[u]);)
      }
      for (; j < j_end; j += SF_LANES) {
        const int64_t lanes = sf_min(j_end - j, SF_LANES);
        sf_i32 r0;
        r0 = sf_all_i32(2147483647);
        for (int64_t s = 0; s < n1; ++s) {
          const sf_i32 v0 = sf_load_i32_n(w0 + j + s * n0, lanes);
          r0 = sf_minimum_i32(r0, v0);
        }
        const sf_i32 v1 = r0;
        sf_store_i32_n(b1 + j, v1, lanes);
      }
    }
  }
}
