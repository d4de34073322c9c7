#define INPUT float
#define SPACE as_float
#include "support/emulator/crf_kernels.h"

void segfuse::testing::add_float_kernels() {
  add_any_size("float");
  add_all_shapes<Best>("float");
  Best::add_shape<385, 8, 1, true, 16>("float");
}
