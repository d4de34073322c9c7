#define INPUT BFloat16
#define SPACE as_bfloat16
#include "support/emulator/crf_kernels.h"

void segfuse::testing::add_bfloat16_kernels() {
  add_any_size("BFloat16");
  Best::add_shape<2, 1, 3, true>("BFloat16");
}
