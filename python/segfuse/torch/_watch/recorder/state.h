// What the recorder knows, and what it asks of tensors.

#pragma once

#include <ATen/Functions.h>
#include <ATen/SequenceNumber.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/flat_hash_map.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>
#include <recorder/bounds.h>
#include <recorder/rules.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/library.h>
#include <algorithm>
#include <atomic>
#include <cmath>
#include <limits>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <typeinfo>
#include <unordered_map>
#include <vector>

namespace py = pybind11;

namespace torch::jit {
py::object toPyObject(c10::IValue ivalue);
}

namespace recorder {

constexpr auto KEY =
    c10::DispatchKey::Fake;  // below autograd, and PyTorch registers nothing for it
constexpr int64_t BATCH_BYTES = 256 << 20;
constexpr int64_t BOUNDED_BYTES = 256 << 20;  // of results that are read only if a guess was wrong
constexpr size_t BATCH_TENSORS = 100;
constexpr size_t MOST_RECORDS = 16384;
constexpr size_t MOST_NODES = 1 << 17;
constexpr int64_t SMALL = 1 << 16;

// Facts of an operator, from operation.py and its schema.
struct Facts {
  c10::OperatorHandle op;
  bool view = false, unwritten = false, reads = false, cast = false, adds = false, makes = false;
  bool owned = false;  // by PyTorch: it finishes on its stream
  Rule rule = nullptr;
  std::vector<size_t> written;
  size_t arguments = 0, returns = 0;
  std::vector<size_t> holders;  // the arguments that may be tensors or lists of them
};

// The tensor is kept (`kept`), or it is in a list among the arguments, or nothing is kept of it.
struct Result {
  StorageImpl* key;
  int slot;  // of its magnitude; negative if it is finite for certain
  at::ScalarType dtype;
  bool covers;
  int kept = -1;
  int argument = -1, item = -1;
  int64_t version = 0;
  WeakStorage weak{c10::intrusive_ptr<StorageImpl>()};  // of what is in a list or was let go
};

struct Operand {
  StorageImpl* key;
  int64_t version;
  int argument, position;
  bool overwritten;
};

struct KeptAt {
  int place;  // among the arguments; -1 for results
  Kept kept;
};

enum class Kind { operation, read, cast, arrival };

struct Range {
  size_t first = 0, end = 0;
};

struct Record {
  int64_t number = 0;
  int64_t step = 0;
  Kind kind = Kind::operation;
  const Facts* facts = nullptr;
  const char* phase = "";
  int place = -1, module = -1, node = -1;
  int64_t sequence = -1;
  Range arguments, kept, operands, results;  // of the lists of State
  Tensor before;
  int unwritten = -1;
  int64_t bytes = 0;
  int arrival = -1;
  int guard = -1;
};

struct Origin {
  int64_t sequence = -1;
  uint64_t thread = 0;
  const Facts* facts = nullptr;  // null: it is not known
  int place = -1, module = -1;
};

// What will be reduced: memory that a kernel reads as it lies there, or else a tensor.
struct Pending {
  int slot;
  float most;  // what it is assumed not to exceed; NaN: nothing is assumed
  at::ScalarType type;
  c10::Storage storage;
  int64_t first;  // byte
  int64_t count;
  Tensor tensor;

  StorageImpl* key() const { return storage ? storage.unsafeGetStorageImpl() : key_of(tensor); }
  int64_t bytes() const { return count * int64_t(c10::elementSize(type)); }
  const void* data() const { return static_cast<const char*>(storage.data()) + first; }
};

// Where a result comes from: an operator (null: where numbers arrive), and a line.
using Site = std::pair<const void*, int>;

struct Guess {
  int slot;
  float most;
  Site site;
};

// Results that will be reduced, and which memory they are in.
struct Queue {
  std::vector<Pending> list;
  int64_t bytes = 0;
  uint64_t seen[16] = {};  // a bit for each storage, by a hash

  static size_t bit_of(const StorageImpl* key) {
    return size_t((reinterpret_cast<uintptr_t>(key) * 0x9e3779b97f4a7c15ull) >> 54);
  }
  void push(Pending pending) {
    const size_t bit = bit_of(pending.key());
    seen[bit / 64] |= uint64_t{1} << bit % 64;
    bytes += pending.bytes();
    list.push_back(std::move(pending));
  }
  bool has(const StorageImpl* key) const {
    const size_t bit = bit_of(key);
    if ((seen[bit / 64] >> bit % 64 & 1) == 0) return false;
    for (const auto& pending : list) {
      if (pending.key() == key) return true;
    }
    return false;
  }
  void clear() {
    list.clear();
    bytes = 0;
    std::fill(std::begin(seen), std::end(seen), 0);
  }
};

// One of segfuse/doctor/streams.h.
struct MagnitudeOf {
  const void* data;
  uint64_t count;
  float* largest;
  int type;
  float most;
};

// What ended under the lock: it ends after it, because the end of a tensor may ask for the GIL.
struct Garbage {
  std::vector<IValue> values;
  std::vector<Pending> pending;
};

// The last operation that wrote a storage: the slot of its result if it covered it, and whether
// that is read in any case.
struct Written {
  int slot;
  bool read;
};

struct Reduced {
  Tensor values;
  std::vector<int> slots;
  std::optional<c10::Stream> stream;
};

struct PlaceKey {
  PyCodeObject* inner;
  int inner_at;
  PyCodeObject* outer;
  int outer_at;
  bool operator==(const PlaceKey&) const = default;
};

struct HashOfPlace {
  size_t operator()(const PlaceKey& key) const {
    const auto inner = reinterpret_cast<uintptr_t>(key.inner) + size_t(key.inner_at);
    const auto outer = reinterpret_cast<uintptr_t>(key.outer) + size_t(key.outer_at);
    return inner * 0x9e3779b97f4a7c15ull ^ outer;
  }
};

struct ModuleKey {
  PyObject *root, *module;
  auto operator<=>(const ModuleKey&) const = default;
};

// All that is guarded by `mutex`; the GIL is never acquired while it is held.
struct State {
  std::mutex mutex;
  Garbage garbage, spare;
  std::atomic<bool> on{false};
  std::atomic<uint64_t> starts{0};
  std::unordered_map<const void*, Facts> facts;
  std::vector<Record> records;
  std::vector<IValue> arguments;  // of all records; None in place of the tensors that are kept
  std::vector<KeptAt> kept;
  std::vector<Operand> operands;
  std::vector<Result> results;
  size_t next = 0, first_kept = 0;  // of the records
  std::atomic<bool> is_full{false};
  bool all_finite = false;  // all magnitudes that have arrived
  int64_t kept_bytes = 0, keep_bytes = 0;
  int64_t number = 0, operations = 0, step = 1;
  const char* phase = "forward";
  Queue pending, bounded;  // to be read, and to be read if a guess was wrong
  Bounds bounds;
  std::vector<Guess> guesses;
  std::map<Site, float> guess_of;               // where the usual one was wrong; NaN: none holds
  std::vector<std::pair<int, double>> on_host;  // slots and their magnitudes
  Tensor broken;                                // on the device: not 0 if a guess was wrong
  bool broken_on_host = false;
  std::vector<Reduced> reduced;
  std::map<std::pair<int, int64_t>, size_t> open;  // of a device and stream: the last that has room
  int (*magnitudes)(int device, void* stream, const MagnitudeOf* tensors, size_t count,
                    float* broken, int only_if_broken) = nullptr;
  std::vector<MagnitudeOf> wanted;
  std::vector<double> values;
  int slots = 0;
  std::optional<c10::Stream> stream;
  std::optional<c10::Device> met;  // by the record that is being made
  bool many_streams = false, paused = false;
  bool cpu = false, cuda = false;
  std::unordered_map<StorageImpl*, std::pair<WeakStorage, int>> unwritten;
  ska::flat_hash_map<StorageImpl*, Written> written;  // in place
  std::vector<Origin> origins;
  ska::flat_hash_map<const std::type_info*, int> nodes;
  std::unordered_map<std::string, int> python_nodes;
  std::vector<std::string> node_names;

  bool knows_frames = false;

  // Guarded by the GIL.
  ska::flat_hash_map<PyCodeObject*, int> kinds;
  ska::flat_hash_map<PlaceKey, int, HashOfPlace> place_numbers;
  std::vector<PlaceKey> places;
  int no_place = -1;  // of threads that run no Python
  std::map<ModuleKey, int> module_numbers;
  std::vector<std::pair<PyObject*, PyObject*>> modules;  // weak references
  py::object facts_of, kind_of, on_result, on_full;
};

inline State& state() {
  static auto* one = new State;  // never destroyed: threads may come after the interpreter's end
  return *one;
}

struct Lock {
  explicit Lock(State& s) : state(s), guard(s.mutex) {}
  ~Lock() {
    if (state.garbage.values.empty() && state.garbage.pending.empty()) return;
    Garbage taken = std::exchange(state.garbage, std::exchange(state.spare, {}));
    guard.unlock();
    taken.values.clear();
    taken.pending.clear();
    guard.lock();
    state.spare = std::move(taken);  // the room of its lists
  }
  State& state;
  std::unique_lock<std::mutex> guard;
};

inline thread_local std::vector<std::pair<PyObject*, int>> module_stack;

// Own operations: no autograd, no autocast, no modes, not this watch.
struct Below {
  static c10::DispatchKeySet keys() {
    using c10::DispatchKey;
    using c10::DispatchKeySet;
    return c10::autograd_dispatch_keyset_with_ADInplaceOrView | c10::autocast_dispatch_keyset |
           DispatchKeySet({KEY, DispatchKey::Python, DispatchKey::PythonTLSSnapshot,
                           DispatchKey::FuncTorchDynamicLayerBackMode,
                           DispatchKey::FuncTorchDynamicLayerFrontMode});
  }
  c10::impl::ForceDispatchKeyGuard guard{c10::DispatchKeySet(c10::DispatchKey::BackendSelect),
                                         keys()};
};

inline std::optional<c10::Stream> stream_of(const Tensor& tensor) {
  if (tensor.is_cpu()) return std::nullopt;
  return c10::impl::VirtualGuardImpl(tensor.device().type()).getStream(tensor.device());
}

struct OnStream {
  explicit OnStream(const std::optional<c10::Stream>& stream) {
    if (!stream) return;
    impl.emplace(stream->device_type());
    former = impl->exchangeStream(*stream);
  }
  ~OnStream() {
    if (former) impl->exchangeStream(*former);
  }
  std::optional<c10::impl::VirtualGuardImpl> impl;
  std::optional<c10::Stream> former;
};

}  // namespace recorder
