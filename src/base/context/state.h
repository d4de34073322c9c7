#pragma once
// The state of a Context.

#include <map>
#include <memory>
#include <typeindex>

#include "base/mutex.h"
#include "base/thread_pool.h"
#include "segfuse/context.h"

namespace segfuse {

class CodeStore;

struct Context::State {
  explicit State(Options given);

  /// What a module above keeps in a context, one object of each type; made when it is first asked
  /// for.
  template <class Part>
  Part& part() {
    const MutexLock lock(mutex);
    std::shared_ptr<void>& found = parts[typeid(Part)];
    if (!found) found = std::make_shared<Part>();
    return *static_cast<Part*>(found.get());
  }
  /// Made when it is first asked for, so that a context without loops starts no thread.
  ThreadPool& pool();

  const Options options;
  const std::shared_ptr<const CodeStore> code;

 private:
  Mutex mutex;
  std::unique_ptr<ThreadPool> threads SEGFUSE_GUARDED_BY(mutex);
  std::map<std::type_index, std::shared_ptr<void>> parts SEGFUSE_GUARDED_BY(mutex);
};

}  // namespace segfuse
