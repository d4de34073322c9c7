#pragma once
// The worker threads of a Context, for those who need nothing else of it.

namespace segfuse {

class Context;
class ThreadPool;

ThreadPool& pool_of(const Context& context);

}  // namespace segfuse
