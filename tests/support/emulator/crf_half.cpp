#define INPUT Half
#define SPACE as_half
#include "support/emulator/crf_kernels.h"

void segfuse::testing::add_half_kernels() {
  add_any_size("Half");
  Best::add_shape<2, 1, 3, true>("Half");
}
