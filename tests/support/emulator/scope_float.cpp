#define INPUT float
#define SPACE tools_as_float
#include "support/emulator/scope_kernels.h"

void segfuse::testing::add_float_scope_kernels() { ADD_TYPED("float") }
