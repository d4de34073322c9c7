/* A program that knows nothing of segfuse runs one that segfuse has written in C.

     segfuse compile examples/layer_norm.sf --emit=c --out layer_norm.c
     cc -std=c11 -O2 -I. examples/ahead_of_time.c layer_norm.c -o ahead_of_time -lm
     ./ahead_of_time B T IN OUT

   IN has x, scale and shift as floats, one after the other; OUT gets y. */
#include <stdio.h>
#include <stdlib.h>

#include "layer_norm.h"

#define CHANNELS 256

static int fail(const char *what) {
  fprintf(stderr, "ahead_of_time: %s\n", what);
  return 2;
}

/* Memory for so many floats, filled from the file if there is one. */
static float *floats(size_t count, FILE *from) {
  float *const values = malloc((count > 0 ? count : 1) * sizeof *values);
  if (values != NULL && from != NULL && fread(values, sizeof *values, count, from) != count) {
    free(values);
    return NULL;
  }
  return values;
}

int main(int argc, char **argv) {
  if (argc != 5) return fail("call it with B, T, the file to read and the file to write");
  const int64_t b = strtoll(argv[1], NULL, 10);
  const int64_t t = strtoll(argv[2], NULL, 10);

  /* The program says how much memory it needs between its kernels, and refuses what cannot be. */
  size_t bytes = 0;
  int code = layer_norm_workspace(b, t, &bytes);
  if (code != LAYER_NORM_OK) return fail(layer_norm_message(code));

  FILE *const in = fopen(argv[3], "rb");
  if (in == NULL) return fail("the input cannot be opened");
  const size_t count = (size_t)b * (size_t)t * CHANNELS;
  float *const x = floats(count, in);
  float *const scale = floats(CHANNELS, in);
  float *const shift = floats(CHANNELS, in);
  float *const y = floats(count, NULL);
  void *const workspace = malloc(bytes > 0 ? bytes : 1);
  fclose(in);

  code = LAYER_NORM_MISSING_ARRAY;
  if (x != NULL && scale != NULL && shift != NULL && y != NULL && workspace != NULL)
    code = layer_norm(b, t, x, scale, shift, y, workspace, bytes);
  if (code != LAYER_NORM_OK) return fail(layer_norm_message(code));

  FILE *const out = fopen(argv[4], "wb");
  if (out == NULL || fwrite(y, sizeof *y, count, out) != count || fclose(out) != 0)
    return fail("the output cannot be written");
  printf("%lld x %lld rows of %d\n", (long long)b, (long long)t, CHANNELS);
  free(workspace);
  free(y);
  free(shift);
  free(scale);
  free(x);
  return 0;
}
