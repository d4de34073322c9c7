#pragma once

#include <string>

#include "segfuse/error.h"

namespace segfuse::test {

/// What a call that is refused says.
template <class Call>
std::string message_of(Call call) {
  try {
    call();
  } catch (const Error& error) {
    return error.what();
  }
  return "nothing was thrown";
}

}  // namespace segfuse::test
