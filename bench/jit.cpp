// How long generated text takes to become machine code: by clang, from disk, from memory. Prints
// one JSON list of rows; times are the least of several, reference_ms is clang's for an empty
// function.
//   segfuse_bench_jit [threads]
//   segfuse_bench_jit FILE.c ...   times the compilation of these texts, and prints remarks

#include <fmt/core.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <ctime>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/os/file.h"
#include "jit/cpu_compiler.h"

namespace {

using namespace segfuse;
using Clock = std::chrono::steady_clock;

double milliseconds_since(Clock::time_point start) {
  return std::chrono::duration<double, std::milli>(Clock::now() - start).count();
}

double milliseconds_since(std::clock_t start) {
  return 1e3 * static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC;
}

template <class Start, class F>
double least(int repeats, Start&& now, F&& work) {
  double best = 1e300;
  for (int repeat = 0; repeat < repeats; ++repeat) {
    const auto start = now();
    work();
    best = std::min(best, milliseconds_since(start));
  }
  return best;
}

constexpr const char* kHead =
    "(void *const *buffers, const long *sizes, long begin, long end, void *scratch) {\n";

std::string pointwise() {
  return std::string("void f") + kHead +
         "  const float *a = buffers[0], *b = buffers[1]; float *y = buffers[2];\n"
         "  for (long i = begin; i < end; ++i) y[i] = (a[i] > 0 ? a[i] : 0.1f * a[i]) + b[i];\n}\n";
}

/// Two sums over a row, then a pass with an exponential, by vectors.
std::string row_norm() {
  return std::string(
             "typedef float v16 __attribute__((vector_size(64), aligned(4)));\n"
             "typedef int i16 __attribute__((vector_size(64)));\n"
             "static inline v16 splat(float x) { return x - (v16){}; }\n"
             "static inline v16 load(const float *p, long n) {\n"
             "  if (n >= 16) return *(const v16 *)p;\n"
             "  v16 r = {}; for (long i = 0; i < n; ++i) r[i] = p[i]; return r; }\n"
             "static inline void store(float *p, long n, v16 v) {\n"
             "  if (n >= 16) *(v16 *)p = v; else for (long i = 0; i < n; ++i) p[i] = v[i]; }\n"
             "static inline float sum(v16 v) {\n"
             "  float s = 0; for (int i = 0; i < 16; ++i) s += v[i]; return s; }\n"
             "static inline v16 exp16(v16 x) {\n"
             "  v16 n = __builtin_elementwise_roundeven(x * 1.44269504f);\n"
             "  v16 r = x - n * 0.693147180f, p = splat(0.0083f);\n"
             "  p = p * r + 0.0416f; p = p * r + 0.1666f; p = p * r + 0.5f; p = p * r + 1.0f;\n"
             "  p = p * r + 1.0f;\n"
             "  return p * (v16)((__builtin_convertvector(n, i16) + 127) << 23); }\n"
             "void f") +
         kHead +
         "  const float *x = buffers[0], *scale = buffers[1], *shift = buffers[2];\n"
         "  float *y = buffers[3]; const long n = sizes[0];\n"
         "  for (long row = begin; row < end; ++row) {\n"
         "    const float *in = x + row * n; float *out = y + row * n;\n"
         "    v16 s = {}, q = {};\n"
         "    for (long i = 0; i < n; i += 16) { v16 v = load(in + i, n - i); s += v; }\n"
         "    const float mean = sum(s) / (float)n;\n"
         "    for (long i = 0; i < n; i += 16) { v16 v = load(in + i, n - i) - mean; q += v * v; "
         "}\n"
         "    const float inverse = 1.0f / __builtin_sqrtf(sum(q) / (float)n + 1e-5f);\n"
         "    for (long i = 0; i < n; i += 16) {\n"
         "      v16 v = (load(in + i, n - i) - mean) * inverse;\n"
         "      v = v * load(scale + i, n - i) + load(shift + i, n - i);\n"
         "      store(out + i, n - i, v / (1.0f + exp16(-v))); }\n  }\n}\n";
}

std::string long_chain() {
  std::string text = std::string("void f") + kHead +
                     "  const float *a = buffers[0]; float *y = buffers[1];\n"
                     "  for (long i = begin; i < end; ++i) {\n    float v = a[i];\n";
  for (int i = 0; i < 200; ++i) text += fmt::format("    v = v * {}.5f + {}.25f;\n", i % 7, i % 3);
  return text + "    y[i] = v;\n  }\n}\n";
}

struct Sample {
  std::string name;
  std::string text;
};

std::shared_ptr<jit::CpuCompiler> opened(const std::filesystem::path& folder) {
  std::string reason;
  auto compiler =
      jit::open_cpu_compiler(&reason, {.store = std::make_shared<const CodeStore>(folder)});
  if (compiler == nullptr) throw DeviceError(reason);
  return compiler;
}

/// Ways to get the code of a text, all but clang's.
void time_caches(const Sample& sample, nlohmann::ordered_json& rows, double reference) {
  const jit::CSource source{sample.name, sample.text};
  const auto folder =
      std::filesystem::temp_directory_path() / fmt::format("segfuse_bench_jit_{}", ::getpid());
  const auto add = [&](const std::string& what, double ms) {
    rows.push_back({{"name", what + ", " + sample.name},
                    {"device", "cpu"},
                    {"threads", 1},
                    {"ms", ms},
                    {"error", 0},
                    {"reference_ms", reference}});
  };
  int number = 0;
  add("clang and kept on disk", least(15, std::clock, [&] {
        opened(folder)->compile({sample.name, fmt::format("{}// {}\n", sample.text, ++number)});
      }));
  opened(folder)->compile(source);
  add("from disk", least(50, Clock::now, [&] { opened(folder)->compile(source); }));
  const auto compiler = opened(folder);
  compiler->compile(source);
  add("from memory", least(50, Clock::now, [&] { compiler->compile(source); }));
  const std::string object = compiler->compile_object(source, compiler->target());
  add("placed", least(50, Clock::now, [&] { const jit::CpuCode code(sample.name, object); }));
  std::filesystem::remove_all(folder);
}

int time_files(int count, char** names) {
  const auto compiler = opened("");
  for (int i = 0; i < count; ++i) {
    const jit::CSource source{names[i], read_file(names[i])};
    std::size_t bytes = 0;
    const double ms = least(10, std::clock, [&] {
      bytes = compiler->compile_object(source, compiler->target()).size();
    });
    fmt::print("{}: {:.2f} ms, {} bytes\n{}", names[i], ms, bytes, compiler->vector_report(source));
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc > 1 && std::string_view(argv[1]).ends_with(".c")) return time_files(argc - 1, argv + 1);
  auto rows = nlohmann::ordered_json::array();
  auto start = std::clock();
  std::string reason;
  const auto compiler = jit::open_cpu_compiler(&reason);
  if (compiler == nullptr) {  // built without clang
    fmt::print("[]\n");
    return 0;
  }
  const double open = milliseconds_since(start);
  start = std::clock();
  compiler->compile({"first", pointwise()});
  const double first = milliseconds_since(start);
  const auto by_clang = [&](const std::string& text) {
    return least(30, std::clock,
                 [&] { compiler->compile_object({"sample", text}, compiler->target()); });
  };
  const double reference = by_clang("void f(void) {}\n");
  const auto add = [&](const std::string& name, double ms) {
    rows.push_back({{"name", name},
                    {"device", "cpu"},
                    {"threads", 1},
                    {"ms", ms},
                    {"error", 0},
                    {"reference_ms", reference}});
  };
  add("opening clang, once", open);
  add("first text, pointwise", first);
  add("clang, empty function", reference);
  const std::vector<Sample> samples = {
      {"pointwise", pointwise()}, {"row norm", row_norm()}, {"chain of 200", long_chain()}};
  for (const Sample& sample : samples) add("clang, " + sample.name, by_clang(sample.text));
  for (const Sample& sample : samples) time_caches(sample, rows, reference);
  fmt::print("{}\n", rows.dump());
}
