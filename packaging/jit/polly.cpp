// The distribution's clang names Polly, a plugin that it has in a library of its own. Nothing of it
// is used: an empty plugin stands in for it.
#include <llvm/Passes/PassPlugin.h>

llvm::PassPluginLibraryInfo getPollyPluginInfo() {
  return {LLVM_PLUGIN_API_VERSION, "Polly", "", [](llvm::PassBuilder&) {}};
}
