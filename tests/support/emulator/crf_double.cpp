#define INPUT double
#define SPACE as_double
#include "support/emulator/crf_kernels.h"

void segfuse::testing::add_double_kernels() {
  add_any_size("double");
  add_all_shapes<Best>("double");
  add_all_shapes<Sum>("double");
  ADD_TO("semicrf_labels", count_labels)
  ADD_TO("semicrf_labels", best_pointers)
  ADD_TO("semicrf_labels", pack_labels)
}
