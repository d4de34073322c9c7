// libsegfuse_clang: C text in, an object file out, by clang and LLVM in this process.
// The only file that sees their headers.

#include <clang/Basic/Diagnostic.h>
#include <clang/Basic/FileManager.h>
#include <clang/Basic/SourceManager.h>
#include <clang/Basic/Version.h>
#include <clang/CodeGen/CodeGenAction.h>
#include <clang/Frontend/CompilerInstance.h>
#include <clang/Frontend/CompilerInvocation.h>
#include <llvm/ADT/SmallVector.h>
#include <llvm/ADT/StringMap.h>
#include <llvm/Support/CommandLine.h>
#include <llvm/Support/ErrorHandling.h>
#include <llvm/Support/TargetSelect.h>
#include <llvm/Support/VirtualFileSystem.h>
#include <llvm/Support/raw_ostream.h>
#include <llvm/TargetParser/Host.h>

#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <exception>
#include <future>
#include <memory>
#include <mutex>
#include <string>
#include <system_error>
#include <vector>

#include "jit/clang_module.h"

namespace {

constexpr const char* kFile = "kernel.c";
constexpr std::size_t kStackBytes = std::size_t{16} << 20;

/// Hands errors and remarks on; other diagnostics are not for us.
class Messages : public clang::DiagnosticConsumer {
 public:
  explicit Messages(const SegfuseClangSink& results) : results_(results) {}

  void HandleDiagnostic(clang::DiagnosticsEngine::Level level,
                        const clang::Diagnostic& info) override {
    DiagnosticConsumer::HandleDiagnostic(level, info);
    const bool error = level >= clang::DiagnosticsEngine::Error;
    if (!error && level != clang::DiagnosticsEngine::Remark) return;
    llvm::SmallString<128> text;
    info.FormatDiagnostic(text);
    unsigned line = 0;
    if (info.hasSourceManager() && info.getLocation().isValid())
      line = info.getSourceManager().getPresumedLoc(info.getLocation()).getLine();
    say(error ? kSegfuseClangError : kSegfuseClangRemark, line, text);
  }

  void say(SegfuseClangKind kind, unsigned line, llvm::StringRef text) {
    failed_ |= kind == kSegfuseClangError;
    results_.message(results_.sink, kind, line, text.data(), text.size());
  }
  bool failed() const { return failed_; }

 private:
  const SegfuseClangSink& results_;
  bool failed_ = false;
};

enum class End { kDone, kFailed, kStands };

/// One compilation, on a thread of its own. LLVM gives up on some texts by a call that may not
/// return. It has no exceptions, and global lists of it may hold on to objects on its stack. So a
/// thread that comes to such a call is left standing there, with its stack, for ever.
struct Call {
  const SegfuseClangRequest* request;  // of the caller, who waits until `ended` is set
  const SegfuseClangSink* results;
  std::promise<End> ended;
};
thread_local Call* current = nullptr;

void on_fatal_error(void*, const char* reason, bool) {
  if (current == nullptr) return;  // of somebody else's: LLVM goes on to end the process
  current->results->message(current->results->sink, kSegfuseClangError, 0, reason,
                            std::strlen(reason));
  current->ended.set_value(End::kStands);
  while (true) ::pause();
}

/// For LLVM as a whole: loops of unknown length are not unrolled, which is half of the time of some
/// compilations; who wants it asks for it in the text (#pragma clang loop unroll_count).
constexpr const char* kLlvmFlag = "-unroll-runtime=false";

void initialise() {
  static std::once_flag once;
  std::call_once(once, [] {
    llvm::InitializeNativeTarget();
    llvm::InitializeNativeTargetAsmPrinter();
    llvm::InitializeNativeTargetAsmParser();
    const char* const arguments[] = {"segfuse", kLlvmFlag};
    llvm::cl::ParseCommandLineOptions(2, arguments);
    llvm::install_fatal_error_handler(on_fatal_error);
  });
}

/// For every text and target.
constexpr const char* kFlags[] = {
    "-triple", "x86_64-unknown-linux-gnu", "-emit-obj", "-main-file-name", kFile, "-x", "c",
    "-std=gnu17", "-fgnuc-version=4.2.1", "-nostdsysteminc", "-nobuiltininc", "-w", "-ferror-limit",
    "1", "-discard-value-names", "-disable-llvm-verifier",
    // Position-independent, and nothing but calls leaves the object: what our loader takes.
    "-mrelocation-model", "pic", "-pic-level", "2", "-fvisibility=hidden", "-fno-common",
    "-mframe-pointer=none", "-ffp-contract=off", "-O2", "-vectorize-loops", "-vectorize-slp"};

std::vector<std::string> arguments(const SegfuseClangRequest& request) {
  std::vector<std::string> list(std::begin(kFlags), std::end(kFlags));
  list.insert(list.end(), {"-target-cpu", request.cpu});
  llvm::SmallVector<llvm::StringRef, 128> features;
  llvm::StringRef(request.features).split(features, ',', -1, false);
  for (const llvm::StringRef feature : features) {
    list.emplace_back("-target-feature");
    list.push_back(feature.str());
  }
  if (request.vector_bits > 0)
    list.push_back("-mprefer-vector-width=" + std::to_string(request.vector_bits));
  if (request.remarks != 0)
    for (const char* kind : {"-Rpass=", "-Rpass-missed=", "-Rpass-analysis="})
      list.push_back(std::string(kind) + "loop-vectorize|slp-vectorizer");
  list.emplace_back(kFile);
  return list;
}

bool run(const SegfuseClangRequest& request, Messages& messages,
         llvm::SmallVectorImpl<char>& object) {
  clang::CompilerInstance compiler;
  compiler.createDiagnostics(&messages, false);
  const std::vector<std::string> texts = arguments(request);
  std::vector<const char*> pointers;
  for (const std::string& text : texts) pointers.push_back(text.c_str());
  if (!clang::CompilerInvocation::CreateFromArgs(compiler.getInvocation(), pointers,
                                                 compiler.getDiagnostics()))
    return false;
  compiler.createDiagnostics(&messages, false);  // again, by the options that were just read
  // There is this one file, and nothing of the machine's to include.
  auto files = llvm::makeIntrusiveRefCnt<llvm::vfs::InMemoryFileSystem>();
  files->addFile(kFile, 0, llvm::MemoryBuffer::getMemBufferCopy({request.text, request.size}));
  compiler.createFileManager(files);
  compiler.setVerboseOutputStream(std::make_unique<llvm::raw_null_ostream>());
  compiler.setOutputStream(std::make_unique<llvm::raw_svector_ostream>(object));
  clang::EmitObjAction action;
  return compiler.ExecuteAction(action) && !messages.failed();
}

void* run_call(void* argument) {
  auto* const call = static_cast<std::shared_ptr<Call>*>(argument);
  current = call->get();
  const SegfuseClangSink& results = *current->results;
  Messages messages(results);
  llvm::SmallVector<char, 0> object;  // outlives the compiler, which writes to it
  bool done = false;
  try {
    done = run(*current->request, messages, object);
    if (done) results.object(results.sink, object.data(), object.size());
  } catch (const std::exception& error) {  // no memory
    done = false;
    messages.say(kSegfuseClangError, 0, error.what());
  }
  if (!done && !messages.failed())
    messages.say(kSegfuseClangError, 0, "the compiler failed and said nothing");
  current->ended.set_value(done ? End::kDone : End::kFailed);
  current = nullptr;
  delete call;
  return nullptr;
}

int compile(const SegfuseClangRequest* request, const SegfuseClangSink* results) {
  initialise();
  const auto call = std::make_shared<Call>(Call{request, results, {}});
  std::future<End> ended = call->ended.get_future();
  pthread_attr_t attributes;
  pthread_attr_init(&attributes);
  pthread_attr_setstacksize(&attributes, kStackBytes);  // whatever the caller's is
  auto argument = std::make_unique<std::shared_ptr<Call>>(call);
  pthread_t thread;
  const int failed = pthread_create(&thread, &attributes, run_call, argument.get());
  pthread_attr_destroy(&attributes);
  if (failed == 0) {
    static_cast<void>(argument.release());
    const End end = ended.get();
    end == End::kStands ? pthread_detach(thread) : pthread_join(thread, nullptr);
    return end == End::kDone ? 1 : 0;
  }
  const std::string reason = "no thread can be started: " + std::generic_category().message(failed);
  results->message(results->sink, kSegfuseClangError, 0, reason.data(), reason.size());
  return 0;
}

const char* compiler_name() {
  static const std::string name = "clang " CLANG_VERSION_STRING;
  return name.c_str();
}

const char* flags() {
  static const std::string joined = [] {
    std::string text = kLlvmFlag;
    for (const char* flag : kFlags) text += std::string(" ") + flag;
    return text;
  }();
  return joined.c_str();
}

const char* host_cpu() {
  static const std::string name = llvm::sys::getHostCPUName().str();
  return name.c_str();
}

const char* host_features() {
  static const std::string features = [] {
    std::vector<std::string> list;
    for (const auto& feature : llvm::sys::getHostCPUFeatures())
      list.push_back((feature.second ? "+" : "-") + feature.first().str());
    std::ranges::sort(list, {}, [](const std::string& name) { return name.substr(1); });
    std::string joined;
    for (const std::string& name : list) joined += (joined.empty() ? "" : ",") + name;
    return joined;
  }();
  return features.c_str();
}

}  // namespace

extern "C" __attribute__((visibility("default"))) const SegfuseClangTable* segfuse_clang() {
  static constexpr SegfuseClangTable table = {kSegfuseClangVersion, compiler_name, flags, host_cpu,
                                              host_features,        compile};
  return &table;
}
