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
#include <llvm/ADT/StringExtras.h>
#include <llvm/ADT/StringMap.h>
#include <llvm/Analysis/TargetTransformInfo.h>
#include <llvm/IR/DiagnosticInfo.h>
#include <llvm/IR/DiagnosticPrinter.h>
#include <llvm/IR/LegacyPassManager.h>
#include <llvm/IR/Module.h>
#include <llvm/MC/TargetRegistry.h>
#include <llvm/Passes/PassBuilder.h>
#include <llvm/Support/CommandLine.h>
#include <llvm/Support/ErrorHandling.h>
#include <llvm/Support/TargetSelect.h>
#include <llvm/Support/VirtualFileSystem.h>
#include <llvm/Support/raw_ostream.h>
#include <llvm/Target/TargetMachine.h>
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
/// thread that comes to such a call is left standing there, with its stack, forever.
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
constexpr const char* kLlvmFlags[] = {"-unroll-runtime=false"};

void initialise() {
  static std::once_flag once;
  std::call_once(once, [] {
    llvm::InitializeNativeTarget();
    llvm::InitializeNativeTargetAsmPrinter();
    llvm::InitializeNativeTargetAsmParser();
    std::vector<const char*> arguments(1, "segfuse");
    arguments.insert(arguments.end(), std::begin(kLlvmFlags), std::end(kLlvmFlags));
    llvm::cl::ParseCommandLineOptions(static_cast<int>(arguments.size()), arguments.data());
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

/// LLVM's passes, in its notation. Texts come in vectors, unrolled, of functions that are always
/// inlined, so a few passes find what there is; all of -O2 takes twice their time and finds nothing
/// more. docs/performance_notes.md says what those are for that look dispensable.
#define SEGFUSE_INSTCOMBINE "instcombine<max-iterations=1;no-use-loop-info;no-verify-fixpoint>"
#define SEGFUSE_SIMPLIFY "simplifycfg<hoist-common-insts;sink-common-insts>"
constexpr const char* kPasses =
    "function(sroa<preserve-cfg>,early-cse),always-inline,globaldce,cgscc(inline),ipsccp,"
    "function(sroa<modify-cfg>,loop(loop-rotate,loop-unroll-full),sroa<modify-cfg>"
    "," SEGFUSE_SIMPLIFY "," SEGFUSE_INSTCOMBINE "," SEGFUSE_SIMPLIFY
    ",early-cse<memssa>,jump-threading,bdce,loop-mssa(loop-rotate,licm),"
    "loop-vectorize," SEGFUSE_INSTCOMBINE "," SEGFUSE_SIMPLIFY ")";
#undef SEGFUSE_INSTCOMBINE
#undef SEGFUSE_SIMPLIFY
/// For texts with functions that are never inlined (transpositions), which gain by all of them.
constexpr const char* kAllPasses = "default<O2>";

const char* passes_for(const llvm::Module& module) {
  for (const llvm::Function& function : module)
    if (!function.isDeclaration() && function.hasFnAttribute(llvm::Attribute::NoInline))
      return kAllPasses;
  return kPasses;
}

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

void optimise(llvm::Module& module, llvm::TargetMachine& machine) {
  llvm::LoopAnalysisManager loops;
  llvm::FunctionAnalysisManager functions;
  llvm::CGSCCAnalysisManager graphs;
  llvm::ModuleAnalysisManager modules;
  llvm::PassBuilder builder(&machine);
  builder.registerModuleAnalyses(modules);
  builder.registerCGSCCAnalyses(graphs);
  builder.registerFunctionAnalyses(functions);
  builder.registerLoopAnalyses(loops);
  builder.crossRegisterProxies(loops, functions, graphs, modules);
  llvm::ModulePassManager passes;
  llvm::cantFail(builder.parsePassPipeline(passes, passes_for(module)));
  passes.run(module, modules);
}

void on_diagnostic(const llvm::DiagnosticInfo* info, void* messages) {
  if (info->getSeverity() != llvm::DS_Error) return;
  std::string text;
  llvm::raw_string_ostream stream(text);
  llvm::DiagnosticPrinterRawOStream printer(stream);
  info->print(printer);
  static_cast<Messages*>(messages)->say(kSegfuseClangError, 0, text);
}

/// Code for a module as clang made it.
bool generate(llvm::Module& module, clang::CompilerInstance& compiler, Messages& messages,
              llvm::SmallVectorImpl<char>& object) {
  module.getContext().setDiagnosticHandlerCallBack(on_diagnostic, &messages);
  std::string error;
  const llvm::Target* target = llvm::TargetRegistry::lookupTarget(module.getTargetTriple(), error);
  if (target == nullptr) return messages.say(kSegfuseClangError, 0, error), false;
  const clang::TargetOptions& options = compiler.getTargetOpts();
  const std::unique_ptr<llvm::TargetMachine> machine(target->createTargetMachine(
      module.getTargetTriple(), options.CPU, llvm::join(options.Features, ","),
      llvm::TargetOptions(), llvm::Reloc::PIC_, std::nullopt, llvm::CodeGenOptLevel::Default));
  optimise(module, *machine);
  llvm::legacy::PassManager passes;
  passes.add(llvm::createTargetTransformInfoWrapperPass(machine->getTargetIRAnalysis()));
  llvm::raw_svector_ostream stream(object);
  if (machine->addPassesToEmitFile(passes, stream, nullptr, llvm::CodeGenFileType::ObjectFile))
    return messages.say(kSegfuseClangError, 0, "no object files for this target"), false;
  passes.run(module);
  return !messages.failed();
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
  if (request.remarks != 0) {  // the vectorisers are asked, both of them: all passes of -O2
    clang::EmitObjAction action;
    return compiler.ExecuteAction(action) && !messages.failed();
  }
  compiler.getCodeGenOpts().DisableLLVMPasses = 1;
  clang::EmitLLVMOnlyAction action;
  if (!compiler.ExecuteAction(action) || messages.failed()) return false;
  const std::unique_ptr<llvm::Module> module = action.takeModule();
  return generate(*module, compiler, messages, object);
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

const char* compiler_name() { return "clang " CLANG_VERSION_STRING; }

const char* flags() {
  static const auto& joined = *new std::string([] {
    std::string text = std::string(kPasses) + " " + kAllPasses;
    for (const char* flag : kLlvmFlags) text += std::string(" ") + flag;
    for (const char* flag : kFlags) text += std::string(" ") + flag;
    return text;
  }());
  return joined.c_str();
}

const char* host_cpu() {
  static const auto& name = *new std::string(llvm::sys::getHostCPUName().str());
  return name.c_str();
}

const char* host_features() {
  static const auto& features = *new std::string([] {
    std::vector<std::string> list;
    for (const auto& feature : llvm::sys::getHostCPUFeatures())
      list.push_back((feature.second ? "+" : "-") + feature.first().str());
    std::ranges::sort(list, {}, [](const std::string& name) { return name.substr(1); });
    std::string joined;
    for (const std::string& name : list) joined += (joined.empty() ? "" : ",") + name;
    return joined;
  }());
  return features.c_str();
}

}  // namespace

extern "C" __attribute__((visibility("default"))) const SegfuseClangTable* segfuse_clang() {
  static constexpr SegfuseClangTable table = {kSegfuseClangVersion, compiler_name, flags, host_cpu,
                                              host_features,        compile};
  return &table;
}
