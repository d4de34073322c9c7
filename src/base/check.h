#pragma once
// Invariant checks. They stay on in release builds; the message is only built on failure.

#include <fmt/core.h>

#include "segfuse/error.h"

/// Throws InternalError when `condition` is false. The condition must have no effects. The file is
/// named without its folder, so that objects do not depend on where the tree lies.
#define SEGFUSE_CHECK(condition, ...)                                                            \
  do {                                                                                           \
    if (!(condition)) [[unlikely]]                                                               \
      throw ::segfuse::InternalError(::fmt::format("{}:{}: {} does not hold: {}", __FILE_NAME__, \
                                                   __LINE__, #condition,                         \
                                                   ::fmt::format(__VA_ARGS__)));                 \
  } while (false)
