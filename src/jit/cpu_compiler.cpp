#include "jit/cpu_compiler.h"

#include <fmt/core.h>

#include <atomic>
#include <cstdlib>
#include <future>
#include <list>
#include <unordered_map>
#include <utility>

#include "base/code/code_store.h"
#include "base/code/made_kernels.h"
#include "base/mutex.h"
#include "base/os/python_packages.h"
#include "base/os/shared_library.h"
#include "jit/clang_module.h"
#include "segfuse/version.h"

namespace segfuse::jit {
namespace {

constexpr const char* kModule = "libsegfuse_clang.so";

/// Opened once; the table or the reason why there is none.
struct Module {
  const SegfuseClangTable* table = nullptr;
  std::string reason;
};

Module open_module() {
  Module module;
#if defined(__x86_64__)
  std::vector<std::string> names;
  if (const char* named = ::secure_getenv("SEGFUSE_CLANG"); named != nullptr && *named != '\0') {
    names.emplace_back(named);
  } else {
    for (const auto& place : places_of_module(&kModule, kModule)) names.push_back(place.string());
    for (std::string& file : files_of_python_packages({"segfuse_jit/libsegfuse_clang.so"}))
      names.push_back(std::move(file));
    names.emplace_back(kModule);
  }
  const SharedLibrary library = SharedLibrary::open_first_lazily(names);
  if (!library) {
    module.reason = fmt::format(
        "the compiler of generated CPU code cannot be opened: {}; install it (pip install "
        "segfuse-jit), or build segfuse where the packages libclang-19-dev and llvm-19-dev are "
        "installed; SEGFUSE_CLANG may name its file",
        library.error());
    return module;
  }
  try {
    SegfuseClangEntry entry = nullptr;
    library.load("segfuse_clang", entry);
    module.table = entry();
  } catch (const DeviceError& error) {
    module.reason = error.what();
  }
  if (module.table != nullptr && module.table->version != kSegfuseClangVersion) {
    module.reason = fmt::format("{} is of another version of segfuse ({} instead of {})",
                                library.name(), module.table->version, kSegfuseClangVersion);
    module.table = nullptr;
  }
#else
  module.reason = "machine code is generated for x86-64 only";
#endif
  return module;
}

std::atomic<bool> ends{false};  ///< the process, and with it the statics of LLVM

const Module& clang_module() {
  static const auto& opened = *new Module(open_module());
  static const struct End {  // after LLVM's, and so before them
    ~End() { ends = true; }
  } end;
  return opened;
}

/// What compile() of the module hands over.
struct Results {
  std::string object;
  std::string remarks;
  std::string error;
  unsigned line = 0;

  static void on_object(void* sink, const char* bytes, std::size_t size) {
    static_cast<Results*>(sink)->object.assign(bytes, size);
  }
  static void on_message(void* sink, int kind, unsigned line, const char* text, std::size_t size) {
    auto& results = *static_cast<Results*>(sink);
    if (kind == kSegfuseClangRemark)
      results.remarks += fmt::format("{}: {}\n", line, std::string_view(text, size));
    if (kind != kSegfuseClangError || !results.error.empty()) return;
    results.error.assign(text, size);
    results.line = line;
  }
};

Results run_clang(const CSource& source, const CpuTarget& target, bool remarks) {
  if (ends)
    throw UsageError(fmt::format(
        "kernel '{}' cannot be compiled while the process ends; run its program once before that, "
        "or choose the back end 'loops'",
        source.name));
  SegfuseClangRequest request{};
  request.text = source.text.c_str();
  request.size = source.text.size();
  request.cpu = target.cpu.c_str();
  request.features = target.features.c_str();
  request.vector_bits = target.vector_bits;
  request.remarks = remarks ? 1 : 0;
  Results results;
  const SegfuseClangSink sink{&results, Results::on_object, Results::on_message};
  if (clang_module().table->compile(&request, &sink) == 0)
    throw CompileError(source, results.line, results.error);
  return results;
}

CpuTarget this_machine(const SegfuseClangTable& table) {
  CpuTarget target{table.host_cpu(), table.host_features(), 0};
  const std::string list = "," + target.features + ",";
  if (list.find(",+avx512f,") != std::string::npos) target.vector_bits = 512;
  return target;
}

/// Modules by text, the least recently used at the end. A module that is being made has its place
/// already, and a caller that asks for it waits.
class CachedCompiler final : public CpuCompiler {
 public:
  explicit CachedCompiler(CpuCompilerOptions options)
      : host_(this_machine(*clang_module().table)),
        target_(options.target.value_or(host_)),
        version_(clang_module().table->compiler()),
        capacity_(std::max<std::size_t>(1, options.capacity)),
        store_(options.store ? std::move(options.store) : CodeStore::nowhere()) {}

  std::shared_ptr<const CpuCode> compile(const CSource& source) override {
    if (kernels_are_heard()) tell_kernels({MadeKernels::Language::kC, source.name, source.text});
    std::promise<Code> promise;
    {
      MutexLock lock(mutex_);
      const auto found = places_.find(source.text);
      if (found != places_.end()) {
        ++counters_.hits;
        entries_.splice(entries_.begin(), entries_, found->second);
        const std::shared_future<Code> code = found->second->code;
        lock.unlock();
        return code.get();
      }
      entries_.push_front({source.text, promise.get_future().share(), false});
      places_.emplace(entries_.front().text, entries_.begin());
    }
    Code code;
    bool from_disk = false;
    try {
      code = make(source, from_disk);
    } catch (...) {
      forget(source.text);
      promise.set_exception(std::current_exception());
      throw;
    }
    finish(source.text, from_disk);
    promise.set_value(code);
    return code;
  }

  std::string compile_object(const CSource& source, const CpuTarget& target) const override {
    return run_clang(source, target, false).object;
  }
  std::string vector_report(const CSource& source) const override {
    return run_clang(source, target_, true).remarks;
  }

  const CpuTarget& target() const override { return target_; }
  const CpuTarget& host_target() const override { return host_; }
  const std::string& version() const override { return version_; }
  CpuCompilerCounters counters() const override {
    const MutexLock lock(mutex_);
    return counters_;
  }
  std::filesystem::path object_path(std::string_view text) const override {
    return store_->folder().empty() ? std::filesystem::path()
                                    : store_->path_of(kName, kSuffix, key_of(text));
  }

 private:
  using Code = std::shared_ptr<const CpuCode>;
  static constexpr const char* kName = "cpu";
  static constexpr const char* kSuffix = "o";
  struct Entry {
    std::string text;
    std::shared_future<Code> code;
    bool ready;
  };

  /// All that the object depends on.
  std::string key_of(std::string_view text) const {
    return fmt::format("segfuse {} | {} {} | {}\n{}", segfuse::version(), version_,
                       clang_module().table->flags(), target_.text(), text);
  }

  Code make(const CSource& source, bool& from_disk) const {
    const std::string key = key_of(source.text);
    if (const auto object = store_->get(kName, kSuffix, key)) {
      try {
        Code code = std::make_shared<const CpuCode>(source.name, *object);
        from_disk = true;
        return code;
      } catch (const InternalError&) {
        // Nothing that we wrote; it is made again.
      }
    }
    const std::string object = compile_object(source, target_);
    Code code = std::make_shared<const CpuCode>(source.name, object);
    store_->put(kName, kSuffix, key, object);
    return code;
  }

  void finish(const std::string& text, bool from_disk) {
    const MutexLock lock(mutex_);
    ++(from_disk ? counters_.disk_hits : counters_.compiled);
    places_.at(text)->ready = true;
    for (auto entry = entries_.end(); entries_.size() > capacity_ && entry != entries_.begin();) {
      --entry;
      if (!entry->ready) continue;
      places_.erase(entry->text);
      entry = entries_.erase(entry);
      ++counters_.evicted;
    }
  }

  void forget(const std::string& text) {
    const MutexLock lock(mutex_);
    ++counters_.failed;
    const auto place = places_.find(text);
    const auto entry = place->second;
    places_.erase(place);
    entries_.erase(entry);
  }

  const CpuTarget host_;
  const CpuTarget target_;
  const std::string version_;
  const std::size_t capacity_;
  const std::shared_ptr<const CodeStore> store_;
  mutable Mutex mutex_;
  std::list<Entry> entries_ SEGFUSE_GUARDED_BY(mutex_);
  std::unordered_map<std::string_view, std::list<Entry>::iterator> places_
      SEGFUSE_GUARDED_BY(mutex_);  // keys lie in entries_
  CpuCompilerCounters counters_ SEGFUSE_GUARDED_BY(mutex_);
};

}  // namespace

std::string CpuTarget::text() const {
  return fmt::format("{} {} {}", cpu, vector_bits, features.empty() ? "-" : features);
}

CompileError::CompileError(const CSource& source, unsigned line, std::string message)
    : InternalError(fmt::format("the generated text '{}' does not compile: line {}: {}",
                                source.name, line, message)),
      line_(line),
      message_(std::move(message)),
      text_(source.text) {}

std::shared_ptr<CpuCompiler> open_cpu_compiler(std::string* reason, CpuCompilerOptions options) {
  const Module& module = clang_module();
  if (module.table == nullptr) {
    if (reason != nullptr) *reason = module.reason;
    return nullptr;
  }
  return std::make_shared<CachedCompiler>(std::move(options));
}

}  // namespace segfuse::jit
