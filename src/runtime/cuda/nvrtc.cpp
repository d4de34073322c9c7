#include "runtime/cuda/nvrtc.h"

#include <fmt/core.h>

#include <cstdlib>
#include <filesystem>
#include <utility>

#include "base/os/python_packages.h"
#include "base/os/shared_library.h"
#include "segfuse/error.h"

namespace segfuse::runtime::cuda {
namespace {

using Program = void*;

struct Nvrtc {
  int (*version)(int*, int*);
  int (*create)(Program*, const char*, const char*, int, const char* const*, const char* const*);
  int (*compile)(Program, int, const char* const*);
  int (*destroy)(Program*);
  int (*log_size)(Program, std::size_t*);
  int (*log)(Program, char*);
  int (*cubin_size)(Program, std::size_t*);
  int (*cubin)(Program, char*);
  int (*ptx_size)(Program, std::size_t*);
  int (*ptx)(Program, char*);
  const char* (*error_string)(int);
};
constexpr int kInvalidOption = 5;  // NVRTC_ERROR_INVALID_OPTION

std::vector<std::string> candidates() {
  std::vector<std::string> names;
  if (const char* named = ::secure_getenv("SEGFUSE_NVRTC")) names.emplace_back(named);
  for (const char* name : {"libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so"})
    names.emplace_back(name);
  std::vector<std::string> folders;
  if (const char* home = ::secure_getenv("CUDA_HOME"))
    folders.push_back(fmt::format("{}/lib64", home));
  folders.emplace_back("/usr/local/cuda/lib64");
  for (const std::string& folder : folders)
    for (const char* name : {"libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so"})
      names.push_back(fmt::format("{}/{}", folder, name));
  for (std::string& file : files_of_python_packages(
           {"nvidia/cu13/lib/libnvrtc.so.13", "nvidia/cuda_nvrtc/lib/libnvrtc.so.12"}))
    names.push_back(std::move(file));
  return names;
}

/// NVRTC looks for its second library by name alone; one beside it is found when it is open
/// already.
void open_builtins(const std::filesystem::path& library) {
  if (!library.has_parent_path()) return;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(library.parent_path(), error)) {
    const std::string path = entry.path().string();
    if (entry.path().filename().string().rfind("libnvrtc-builtins.so", 0) == 0)
      SharedLibrary::open_first({path});
  }
}

Nvrtc open_nvrtc() {
  static const auto& library = *new SharedLibrary(SharedLibrary::open_first(candidates()));
  if (!library)
    throw DeviceError(fmt::format(
        "CUDA: the run-time compiler libnvrtc cannot be opened ({}); install the CUDA toolkit or "
        "the Python package nvidia-cuda-nvrtc, or set SEGFUSE_NVRTC to the library's path",
        library.error()));
  open_builtins(library.name());
  Nvrtc n{};
  library.load("nvrtcVersion", n.version);
  library.load("nvrtcCreateProgram", n.create);
  library.load("nvrtcCompileProgram", n.compile);
  library.load("nvrtcDestroyProgram", n.destroy);
  library.load("nvrtcGetProgramLogSize", n.log_size);
  library.load("nvrtcGetProgramLog", n.log);
  library.load("nvrtcGetCUBINSize", n.cubin_size);
  library.load("nvrtcGetCUBIN", n.cubin);
  library.load("nvrtcGetPTXSize", n.ptx_size);
  library.load("nvrtcGetPTX", n.ptx);
  library.load("nvrtcGetErrorString", n.error_string);
  return n;
}

const Nvrtc& nvrtc() {
  static const Nvrtc opened = open_nvrtc();
  return opened;
}

/// Destroys the program when done.
struct ProgramOwner {
  Program program = nullptr;
  ~ProgramOwner() {
    if (program != nullptr) nvrtc().destroy(&program);
  }
};

std::string log_of(Program program) {
  std::size_t size = 0;
  nvrtc().log_size(program, &size);
  std::string log(size, '\0');
  nvrtc().log(program, log.data());
  while (!log.empty() && log.back() == '\0') log.pop_back();
  return log;
}

}  // namespace

std::string nvrtc_version() {
  int major = 0;
  int minor = 0;
  nvrtc().version(&major, &minor);
  return fmt::format("{}.{}", major, minor);
}

Compiled compile_cubin(std::string_view name, const std::string& source,
                       const std::vector<std::string>& defines, std::string_view architecture,
                       const std::vector<std::string>& include_folders) {
  const Nvrtc& n = nvrtc();
  std::vector<std::string> options = {fmt::format("--gpu-architecture={}", architecture),
                                      "--std=c++17", "--ptxas-options=-v"};
  for (const std::string& define : defines) options.push_back("-D" + define);
  for (const std::string& folder : include_folders) options.push_back("-I" + folder);
  std::vector<const char*> pointers;
  for (const std::string& option : options) pointers.push_back(option.c_str());

  ProgramOwner owner;
  const std::string file = fmt::format("{}.cu", name);
  int result = n.create(&owner.program, source.c_str(), file.c_str(), 0, nullptr, nullptr);
  if (result == 0)
    result = n.compile(owner.program, static_cast<int>(pointers.size()), pointers.data());
  if (result == kInvalidOption)
    throw DeviceError(
        fmt::format("CUDA: NVRTC {} does not know the architecture {}; install a newer one",
                    nvrtc_version(), architecture));
  if (result != 0)
    throw InternalError(fmt::format("CUDA: {} does not compile for {}: {}\n{}", file, architecture,
                                    n.error_string(result), log_of(owner.program)));
  Compiled compiled;
  std::size_t size = 0;
  n.cubin_size(owner.program, &size);
  compiled.cubin.resize(size);
  n.cubin(owner.program, compiled.cubin.data());
  compiled.report = log_of(owner.program);
  if (n.ptx_size(owner.program, &size) == 0 && size > 1) {
    compiled.ptx.resize(size);
    if (n.ptx(owner.program, compiled.ptx.data()) != 0) compiled.ptx.clear();
    while (!compiled.ptx.empty() && compiled.ptx.back() == '\0') compiled.ptx.pop_back();
  }
  return compiled;
}

}  // namespace segfuse::runtime::cuda
