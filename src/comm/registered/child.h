#pragma once
// Knowing that this process is a forked child: registered memory is not there, and code that holds
// its locks is not either. A page that the kernel wipes on fork tells, after a raw clone too.

namespace segfuse::comm {

/// In a process that was forked (not spawned) after the first call of this function.
bool in_forked_child() noexcept;

/// Throws ForkedChildError there; `what` is what was called. Comes before any lock.
void refuse_in_child(const char* what);

}  // namespace segfuse::comm
