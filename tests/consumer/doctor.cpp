// segfuse::doctor from outside: what fork() in this process would do.
#include <unistd.h>

#include <cstdio>

#include "segfuse/doctor/fork.h"
#include "segfuse/error.h"
#include "segfuse/version.h"

int main() try {
  std::printf("segfuse %s\n%s", segfuse::version().c_str(),
              segfuse::fork_report_text(segfuse::examine_fork(getpid())).c_str());
  segfuse::examine_fork(-1);
  return 1;
} catch (const segfuse::UsageError& error) {  // thrown by one library, caught behind another
  std::printf("%s\n", error.what());
  return 0;
}
