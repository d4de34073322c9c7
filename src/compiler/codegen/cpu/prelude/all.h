#pragma once
#include "compiler/codegen/cpu/prelude/memory.h"

#include "compiler/codegen/cpu/prelude/arithmetic.h"
#include "compiler/codegen/cpu/prelude/casts.h"
#include "compiler/codegen/cpu/prelude/math_f32.h"
#include "compiler/codegen/cpu/prelude/math_f64.h"
#include "compiler/codegen/cpu/prelude/reduce.h"
#include "compiler/codegen/cpu/prelude/transpose.h"
#include "compiler/codegen/cpu/prelude/types.h"
