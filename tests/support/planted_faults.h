#pragma once
// Ten faults of numbers, each with a program that shows it: in the program or in what it is given,
// or in a kernel for one of its operations, which tests plant.

#include <string>
#include <vector>

#include "segfuse/doctor/numerics.h"

namespace segfuse::testing {

struct PlantedFault {
  std::string name;
  std::string program;  ///< with values where the fault is one of values
  NumericsFault fault;
  std::string operation;
  std::string statement;      ///< part of it
  std::string cause;          ///< part of it
  std::string sentence = "";  ///< part of it
};

/// Of kernels: the programs are right.
inline std::vector<PlantedFault> faults_of_kernels() {
  return {{"UnorderedSum",
           R"(fusion "energy" {
  %0 = input "x" : f32[3, 1000]
  %1 = exp(%0) : f32[3, 1000]
  %2 = sum(%1) {axes=[1]} : f32[3]
  %3 = log(%2) : f32[3]
  output %3
}
)",
           NumericsFault::kNondeterminism, "sum", "%2 = sum(%1)", "fixed order"},
          {"RunningSumOfManyFrames",
           R"(fusion "end of the last segment" {
  %0 = input "seconds" : f32[1, 100000]
  %1 = abs(%0) : f32[1, 100000]
  %2 = sum(%1) {axes=[1]} : f32[1]
  %3 = sqrt(%2) : f32[1]
  output %3
}
#: seconds = 0.1*100000
)",
           NumericsFault::kError, "sum", "%2 = sum(%1)", "loses digits"},
          {"UnwrittenTail",
           R"(fusion "residual" {
  %0 = input "x" : f32[5, 7]
  %1 = tanh(%0) : f32[5, 7]
  %2 = add(%0, %1) : f32[5, 7]
  output %2
}
)",
           NumericsFault::kUnwritten, "add", "%2 = add(%0, %1)", "a tail"},
          {"WrongStride",
           R"(fusion "features" {
  %0 = input "x" : f32[40, 24]
  %1 = sigmoid(%0) : f32[40, 24]
  %2 = permute(%1) {perm=[1, 0]} : f32[24, 40]
  %3 = neg(%2) : f32[24, 40]
  output %3
}
)",
           NumericsFault::kError, "permute", "permute(", "a stride"}};
}

/// Of programs and of what they are given.
inline std::vector<PlantedFault> faults_of_programs() {
  return {{"InfinityTimesZeroMask",
           R"(fusion "masked scores" {
  %0 = input "scores" : f32[2, 4]
  %1 = input "mask" : f32[2, 4]
  %2 = square(%0) : f32[2, 4]
  %3 = mul(%2, %1) : f32[2, 4]
  %4 = sum(%3) {axes=[1]} : f32[2]
  output %4
}
#: scores = 1 2 -inf 3 0.5*4
#: mask = 1 1 0 1 1*4
)",
           NumericsFault::kNaN, "mul", "%3 = mul(%2, %1)", "where(mask, x, 0)"},
          {"LogSumExpOfMinusInfinity",
           R"(fusion "written out logsumexp" {
  %0 = input "x" : f32[2, 3]
  %1 = max(%0) {axes=[1]} : f32[2]
  %2 = broadcast(%1) {axes=[0], shape=[2, 3]} : f32[2, 3]
  %3 = sub(%0, %2) : f32[2, 3]
  %4 = exp(%3) : f32[2, 3]
  %5 = sum(%4) {axes=[1]} : f32[2]
  %6 = log(%5) : f32[2]
  %7 = add(%6, %1) : f32[2]
  output %7
}
#: x = 1 -inf 2 -inf*3
)",
           NumericsFault::kNaN, "sub", "%3 = sub(%0, %2)", "use logsumexp"},
          {"OverflowInExp",
           R"(fusion "softmax without its maximum" {
  %0 = input "x" : f32[2, 3]
  %1 = exp(%0) : f32[2, 3]
  %2 = sum(%1) {axes=[1]} : f32[2]
  %3 = broadcast(%2) {axes=[0], shape=[2, 3]} : f32[2, 3]
  %4 = div(%1, %3) : f32[2, 3]
  output %4
}
#: x = 1 2 3 80 89 1
)",
           NumericsFault::kInfinity, "exp", "%1 = exp(%0)", "88.72"},
          {"NaNWeight",
           R"(fusion "linear" {
  %0 = input "x" : f32[4, 3]
  %1 = input "weight" : f32[3, 2]
  %2 = matmul(%0, %1) {transpose_a=0, transpose_b=0} : f32[4, 2]
  %3 = relu(%2) : f32[4, 2]
  output %3
}
#: weight = 1 2 3 4 nan 6
)",
           NumericsFault::kNaN, "input", "\"weight\"", "look at what made them",
           "'weight' holds NaN at [2, 0]; matmul reads it first"},
          {"LabelOutOfRange",
           R"(fusion "loss" {
  %0 = input "emission" : f32[2, 3, 3]
  %1 = input "transition" : f32[1, 3, 3]
  %2 = input "duration" : f32[4, 3]
  %3 = input "initial" : f32[3]
  %4 = input "final" : f32[3]
  %5 = input "lengths" : i64[2]
  %6 = input "labels" : i32[2, 3]
  %7 = input "starts" : bool[2, 3]
  %8 = neg(%0) : f32[2, 3, 3]
  %9 = semicrf_loss(%8, %1, %2, %3, %4, %5, %6, %7) : f32[2]
  %10 = sum(%9) {axes=[0]} : f32[]
  output %10
}
#: lengths = 3 2
#: labels = 0 1 2 2 3 -1
#: starts = 1*6
)",
           NumericsFault::kIndex, "semicrf_loss", "%9 = semicrf_loss", "padding of -1",
           "label 3 is out of range: labels are less than 3, at [1, 1]"},
          {"DivisionByZeroCount",
           R"(fusion "masked mean" {
  %0 = input "x" : f32[2, 4]
  %1 = input "inside" : bool[2, 4]
  %2 = constant {value=0, dtype=f32} : f32[]
  %3 = broadcast(%2) {axes=[], shape=[2, 4]} : f32[2, 4]
  %4 = where(%1, %0, %3) : f32[2, 4]
  %5 = sum(%4) {axes=[1]} : f32[2]
  %6 = cast(%1) {dtype=f32} : f32[2, 4]
  %7 = sum(%6) {axes=[1]} : f32[2]
  %8 = div(%5, %7) : f32[2]
  output %8
}
#: inside = 1 1 0 0 0*4
)",
           NumericsFault::kNaN, "div", "%8 = div(%5, %7)", "maximum(count, 1)"}};
}

}  // namespace segfuse::testing
