#pragma once
// The error of a call of ranks when one of them was lost and the others may go on.

#include "segfuse/error.h"

namespace segfuse::comm {

/// The sentence is that of the loss. Group::regroup() brings those together that are left.
class RanksChanged : public CommError {
 public:
  using CommError::CommError;
};

}  // namespace segfuse::comm
