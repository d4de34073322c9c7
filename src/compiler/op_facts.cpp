#include "compiler/op_facts.h"

namespace segfuse::compiler {

using ir::Op;

namespace {

constexpr int kLoad = 8;     ///< what a load of something near is worth
constexpr int kMemory = 16;  ///< a write and a read of memory

}  // namespace

bool rounds_once(Op op) {
  switch (op) {
    case Op::neg:
    case Op::abs:
    case Op::sign:
    case Op::square:
    case Op::sqrt:
    case Op::reciprocal:
    case Op::relu:
    case Op::floor:
    case Op::ceil:
    case Op::round:
    case Op::is_nan:
    case Op::is_finite:
    case Op::add:
    case Op::sub:
    case Op::mul:
    case Op::div:
    case Op::maximum:
    case Op::minimum:
    case Op::fmod:
    case Op::eq:
    case Op::ne:
    case Op::lt:
    case Op::le:
    case Op::gt:
    case Op::ge:
    case Op::where:
    case Op::cast: return true;
    default: return false;
  }
}

int instructions_of(Op op) {
  switch (op) {
    case Op::div:
    case Op::sqrt:
    case Op::rsqrt:
    case Op::reciprocal: return 4;
    case Op::exp:
    case Op::exp2:
    case Op::sigmoid:
    case Op::tanh: return 16;
    case Op::expm1:
    case Op::log:
    case Op::log1p:
    case Op::sin:
    case Op::cos:
    case Op::softplus:
    case Op::erf:
    case Op::fmod: return 24;
    case Op::pow:
    case Op::random_uniform: return 48;
    default: return 1;
  }
}

bool costs_more_than_a_load(Op op) { return instructions_of(op) > kLoad; }

bool costs_less_than_memory(Op op) { return instructions_of(op) <= kMemory; }

}  // namespace segfuse::compiler
