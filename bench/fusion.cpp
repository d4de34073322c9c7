// Fused kernels on the CPU: the workloads of the design's table by shape and type, beside a copy of
// as many bytes in the same run; what the first run costs with and without compiled code on disk.
// Times are of the processor (over all threads, divided by their number), the shortest of several.
//   segfuse_bench_fusion [threads [part of a name]]
// ms is a run that writes into given memory; fresh_ms the same with outputs that are allocated.

#include <fmt/core.h>
#include <stdlib.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>

#include "base/rng.h"
#include "base/thread_pool.h"
#include "compiler/autodiff.h"
#include "engine/executable.h"
#include "ir/builder.h"
#include "ir/interpret/interpreter.h"

namespace {

using namespace segfuse;
using ir::Builder;
using ir::Extent;
using ir::Extents;
using ir::ValId;

double milliseconds_of(int threads, const std::function<void()>& what) {
  timespec before{}, after{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &before);
  what();
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &after);
  const double seconds = static_cast<double>(after.tv_sec - before.tv_sec) +
                         1e-9 * static_cast<double>(after.tv_nsec - before.tv_nsec);
  return 1e3 * seconds / threads;
}

double best_of(int repeats, int threads, const std::function<void()>& what) {
  what();
  double best = 1e300;
  for (int i = 0; i < repeats; ++i) best = std::min(best, milliseconds_of(threads, what));
  return best;
}

/// A program in the making. Values of half types are computed in f32.
struct Making {
  explicit Making(DType type) : b(f), dtype(type) {}
  ir::Fusion f{"workload"};
  Builder b;
  DType dtype;
  Extent rows() { return f.symbol("R"); }
  Extent columns() { return f.symbol("C"); }
  ValId input(const std::string& name, const Extents& shape) {
    return b.cast(f.add_input(name, dtype, shape), DType::kF32);
  }
  void output(ValId val, const std::string& name) { f.add_output(b.cast(val, dtype), name); }
};

struct Workload {
  const char* name;
  std::function<void(Making&)> build;
};

ValId rms_norm(Making& m, ValId x, ValId scale) {
  const ValId mean = m.b.mean(m.b.square(x), {1}, true);
  return m.b.mul(m.b.mul(x, m.b.rsqrt(m.b.add(mean, m.b.constant(1e-6)))), scale);
}

std::vector<Workload> workloads() {
  auto matrix = [](Making& m, const char* name = "x") {
    return m.input(name, {m.rows(), m.columns()});
  };
  auto vector = [](Making& m, const char* name) { return m.input(name, {m.columns()}); };
  return {
      {"pointwise",
       [=](Making& m) {
         const ValId x = m.b.add(matrix(m), vector(m, "bias"));
         m.output(m.b.mul(x, m.b.sigmoid(x)), "y");
       }},
      {"softmax", [=](Making& m) { m.output(m.b.softmax(matrix(m), -1), "y"); }},
      {"layer norm",
       [=](Making& m) {
         const ValId x = matrix(m);
         const ValId scale = vector(m, "scale");
         m.output(m.b.layer_norm(x, scale, vector(m, "shift")), "y");
       }},
      {"RMS norm",
       [=](Making& m) {
         const ValId x = matrix(m);
         m.output(rms_norm(m, x, vector(m, "scale")), "y");
       }},
      {"add and norm",
       [=](Making& m) {
         const ValId x = m.b.add(matrix(m), matrix(m, "residual"));
         m.output(x, "sum");
         m.output(rms_norm(m, x, vector(m, "scale")), "y");
       }},
      {"layer norm backward",
       [=](Making& m) {
         const ValId x = matrix(m);
         const ValId scale = vector(m, "scale");
         const ValId shift = vector(m, "shift");
         const ValId y[] = {m.b.layer_norm(x, scale, shift)};
         const ValId g[] = {matrix(m, "g")};
         const ValId wrt[] = {x, scale, shift};
         for (const ValId gradient : compiler::vjp(m.f, y, g, wrt)) m.output(gradient, "");
       }},
      {"column sum", [=](Making& m) { m.output(m.b.sum(matrix(m), {0}), "y"); }},
      {"transpose and scale",
       [=](Making& m) {
         m.output(m.b.mul(m.b.permute(matrix(m), {1, 0}), m.b.constant(0.5)), "y");
       }},
      {"instance norm",
       [=](Making& m) {
         const ValId x = matrix(m);  // a row is one channel of one image
         const auto moments = m.b.welford(x, {1}, true);
         const ValId variance = m.b.div(moments.m2, m.b.extent(m.columns()));
         const ValId inverse = m.b.rsqrt(m.b.add(variance, m.b.constant(1e-5)));
         m.output(m.b.mul(m.b.sub(x, moments.mean), inverse), "y");
       }},
  };
}

std::vector<Tensor> inputs_of(const ir::Fusion& f, std::int64_t rows, std::int64_t columns,
                              Rng& rng) {
  std::vector<Tensor> all;
  for (const ir::Input& input : f.inputs()) {
    const ir::Val& val = f.val(input.val);
    Shape shape;
    for (const Extent& size : val.shape)
      shape.push_back(size.evaluate([&](ir::SymbolId id) {
        return f.storage().symbols[id.index].name == "R" ? rows : columns;
      }));
    // A period of its own is enough: kernels do not look for repetitions.
    Tensor part(DType::kF32, {std::min<std::int64_t>(num_elements(shape), 65521)});
    for (float& x : part.span<float>()) x = static_cast<float>(-2 + 4 * rng.uniform());
    const Tensor rounded = part.to(val.dtype);
    Tensor tensor(val.dtype, shape);
    auto* to = static_cast<std::byte*>(tensor.data());
    for (std::size_t at = 0; at < tensor.bytes(); at += rounded.bytes())
      std::memcpy(to + at, rounded.data(), std::min(rounded.bytes(), tensor.bytes() - at));
    all.push_back(std::move(tensor));
  }
  return all;
}

/// Largest difference from the interpreter, over 1 or the size of the result, with few rows.
double error_of(const ir::Fusion& f, engine::Executable& program, std::int64_t columns, Rng& rng) {
  const std::vector<Tensor> inputs = inputs_of(f, 5, columns, rng);
  const std::vector<Tensor> exact = ir::interpret(f, inputs);
  const std::vector<Tensor> found = program.run(inputs);
  double worst = 0;
  for (std::size_t o = 0; o < found.size(); ++o)
    for (std::int64_t i = 0; i < found[o].size(); ++i)
      worst = std::max(worst, std::abs(found[o].at(i) - exact[o].at(i)) /
                                  std::max(1.0, std::abs(exact[o].at(i))));
  return worst;
}

/// The same program writing over inputs that nobody reads.
ir::Fusion into_given(const ir::Fusion& program) {
  ir::Fusion f = program;
  const std::vector<ir::Output> outputs = f.outputs();
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    const ir::Val& val = f.val(outputs[i].val);
    f.add_alias(outputs[i].val, f.add_input(fmt::format("given{}", i), val.dtype, val.shape));
  }
  return f;
}

class Bench {
 public:
  Bench(int threads, std::string part)
      : threads_(threads), part_(std::move(part)), pool_(threads) {}

  void measure(const Workload& workload, DType dtype, std::int64_t rows, std::int64_t columns) {
    const std::string name =
        fmt::format("{} {} {}x{}", workload.name, name_of(dtype), rows, columns);
    if (name.find(part_) == name.npos) return;
    Making m(dtype);
    workload.build(m);
    const ir::Fusion given = into_given(m.f);
    engine::Executable program(m.f, pool_);
    engine::Executable over(given, pool_);
    const double error = error_of(m.f, program, columns, rng_);
    const std::vector<Tensor> fresh_inputs = inputs_of(m.f, rows, columns, rng_);
    const std::vector<Tensor> inputs = inputs_of(given, rows, columns, rng_);
    std::size_t bytes = 0;
    for (const Tensor& input : inputs) bytes += input.bytes();  // outputs are among them
    const double ms = best_of(kRepeats, threads_, [&] { (void)over.run(inputs); });
    const double fresh = best_of(kRepeats, threads_, [&] { (void)program.run(fresh_inputs); });
    const double copy = copy_ms(bytes);
    rows_.push_back({{"name", name},
                     {"device", "cpu"},
                     {"threads", threads_},
                     {"ms", ms},
                     {"error", error},
                     {"reference_ms", copy},
                     {"of_copy", copy / ms},
                     {"GB/s", static_cast<double>(bytes) / ms * 1e-6},
                     {"fresh_ms", fresh}});
  }

  /// The first run: everything from the program's text to results, with an empty folder for
  /// compiled code and with a full one.
  void measure_first(const Workload& workload, DType dtype) {
    const std::string name = fmt::format("first run of {} {}", workload.name, name_of(dtype));
    if (name.find(part_) == name.npos) return;
    Making m(dtype);
    workload.build(m);
    const std::vector<Tensor> inputs = inputs_of(m.f, 8, 4096, rng_);
    std::string folder = (std::filesystem::temp_directory_path() / "segfuse_XXXXXX").string();
    if (mkdtemp(folder.data()) == nullptr) return;
    setenv("XDG_CACHE_HOME", folder.c_str(), 1);
    auto first = [&] {
      engine::Executable program(m.f, pool_);
      (void)program.run(inputs);
    };
    double cold = 1e300;
    double cached = 1e300;
    for (int i = 0; i < 3; ++i) {
      std::filesystem::remove_all(folder);
      cold = std::min(cold, milliseconds_of(1, first));
      cached = std::min(cached, milliseconds_of(1, first));
    }
    std::filesystem::remove_all(folder);
    unsetenv("XDG_CACHE_HOME");
    rows_.push_back({{"name", name},
                     {"device", "cpu"},
                     {"threads", threads_},
                     {"ms", cold},
                     {"error", 0},
                     {"reference_ms", copy_ms(std::size_t{1} << 27)},
                     {"cached_ms", cached}});
  }

  const nlohmann::ordered_json& rows() const { return rows_; }

 private:
  static constexpr int kRepeats = 7;

  /// A copy that reads and writes as many bytes together, by the same threads.
  double copy_ms(std::size_t bytes) {
    const std::size_t half = std::max<std::size_t>(bytes / 2, 64);
    if (half > from_.bytes()) {  // memory of the same kind as the workloads'
      from_ = Tensor::zeros(DType::kBool, {static_cast<std::int64_t>(half)});
      to_ = from_.clone();
    }
    const auto* from = static_cast<const std::byte*>(from_.data());
    auto* to = static_cast<std::byte*>(to_.data());
    return best_of(kRepeats, threads_, [&] {
      pool_.for_ranges(
          static_cast<std::int64_t>(half), 1 << 20, [&](std::int64_t begin, std::int64_t end) {
            std::memcpy(to + begin, from + begin, static_cast<std::size_t>(end - begin));
          });
    });
  }

  int threads_;
  std::string part_;
  ThreadPool pool_;
  Rng rng_{std::uint64_t{20261122}, 9};
  Tensor from_{DType::kBool, {0}}, to_{DType::kBool, {0}};
  nlohmann::ordered_json rows_ = nlohmann::ordered_json::array();
};

}  // namespace

int main(int argc, char** argv) {
  Bench bench(argc > 1 ? std::atoi(argv[1]) : 1, argc > 2 ? argv[2] : "");
  constexpr std::int64_t kSweep = 1 << 22;  // elements
  for (const Workload& workload : workloads()) {
    bench.measure_first(workload, DType::kF32);
    const bool images = workload.name == std::string_view("instance norm");
    for (const DType dtype : {DType::kF32, DType::kBF16})
      bench.measure(workload, dtype, 4096, images ? 56 * 56 : 4096);
    for (const std::int64_t columns : {1, 2, 3, 8, 16, 31, 39, 64, 127, 1000, 50257, 152064})
      bench.measure(workload, DType::kF32, kSweep / columns, columns);
  }
  fmt::print("{}\n", bench.rows().dump(1));
  return 0;
}
