// segfuse._native: calls of programs that are ready, by tensors of PyTorch, with one call from
// Python.
//
// Tensors are read by DLPack's table of C functions for exchange (DLPack 1.3, PyTorch 2.10), which
// is the same for all versions: nothing of PyTorch is linked.

#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "device/on_gpu.h"
#include "programs.h"

namespace segfuse::python {
namespace {

using namespace nb::literals;

/// DLPackExchangeAPI of major version 1.
struct ExchangeTable {
  std::uint32_t major = 0;
  std::uint32_t minor = 0;
  ExchangeTable* former = nullptr;
  void* allocate = nullptr;
  void* from_object = nullptr;
  void* to_object = nullptr;
  int (*view)(void* object, nb::dlpack::dltensor*) = nullptr;
  int (*current_stream)(int device_type, std::int32_t device, void** stream) = nullptr;
};

constexpr std::size_t kMaxKnown = 4096;
constexpr std::uintptr_t kLegacyStream = 1;

/// What a call is given, and what it is found by.
struct Arguments {
  std::string key;  ///< the device, types, ranks and sizes
  std::vector<void*> addresses;
  int device = -1;
};

using AxisOrder = std::vector<std::size_t>;

class QuickCalls {
 public:
  /// `types`: the classes whose objects `table` reads. `make(size, stride, dtype)` gives a tensor
  /// on the device that `current_device()` tells. `orders`: how each input's axes are put in order
  /// for the program; none: as they are. `doubtful`: the inputs that may be a negated view.
  QuickCalls(const nb::capsule& table, nb::tuple types, int device_type, nb::object make,
             nb::object current_device, std::vector<AxisOrder> orders,
             std::vector<std::size_t> doubtful)
      : table_(static_cast<const ExchangeTable*>(table.data("dlpack_exchange_api"))),
        types_(std::move(types)),
        device_type_(device_type),
        make_(std::move(make)),
        current_device_(std::move(current_device)),
        orders_(std::move(orders)),
        doubtful_(std::move(doubtful)) {}

  /// Whether the table is one that is understood.
  static bool reads(const nb::capsule& table) {
    const auto* found = static_cast<const ExchangeTable*>(table.data("dlpack_exchange_api"));
    return found != nullptr && found->major == 1 && found->view != nullptr &&
           found->current_stream != nullptr;
  }

  /// The results; None where add() may make such a call known, False where a call with such tensors
  /// cannot be.
  nb::object call(const nb::tuple& tensors) {
    Arguments given;
    if (!read(tensors, given)) return nb::bool_(false);
    const auto found = known_.find(given.key);
    if (found == known_.end()) return nb::none();
    // Another thread may forget or replace it whenever Python runs.
    const std::shared_ptr<const KnownCall> known = found->second;
    if (known->planned == nullptr || current_device() != given.device) return nb::bool_(false);
    void* stream = nullptr;
    if (table_->current_stream(device_type_, given.device, &stream) != 0) nb::raise_python_error();
    if (stream == nullptr) stream = reinterpret_cast<void*>(kLegacyStream);
    nb::list results;
    for (const MadeTensor& output : known->outputs) {
      nb::object made = make_(output.size, output.stride, output.dtype);
      nb::dlpack::dltensor view;
      if (table_->view(made.ptr(), &view) != 0) nb::raise_python_error();
      given.addresses.push_back(address_of(view));
      results.append(std::move(made));
    }
    DeviceFunction& function = function_of(known->program);
    bool done = false;
    {
      const nb::gil_scoped_release release;
      done = function.run(*known->planned, given.addresses, stream);
    }
    return done ? nb::object(std::move(results)) : nb::object(nb::bool_(false));
  }

  /// Makes calls with tensors like these known: what `program` has prepared for them, and (size,
  /// stride, dtype) of each result.
  void add(const nb::tuple& tensors, nb::object program, const Prepared& prepared,
           const std::vector<std::tuple<nb::object, nb::object, nb::object>>& outputs) {
    Arguments given;
    if (!read(tensors, given)) return;
    if (known_.size() >= kMaxKnown) known_.clear();
    auto known = std::make_shared<KnownCall>();
    for (const auto& [size, stride, dtype] : outputs)
      known->outputs.push_back({size, stride, dtype});
    DeviceFunction& function = function_of(program);
    {
      const nb::gil_scoped_release release;
      known->planned = function.planned(prepared.inputs);
    }
    known->program = std::move(program);
    known_.insert_or_assign(std::move(given.key), std::move(known));
  }

 private:
  struct MadeTensor {
    nb::object size, stride, dtype;
  };
  struct KnownCall {
    nb::object program;
    std::shared_ptr<DeviceFunction::Planned> planned;  ///< null: these have to be looked at
    std::vector<MadeTensor> outputs;
  };

  static void* address_of(const nb::dlpack::dltensor& view) {
    return static_cast<std::byte*>(view.data) + view.byte_offset;
  }

  int current_device() const { return nb::cast<int>(current_device_()); }

  /// False unless all are plain tensors on one device, without gaps in their order.
  bool read(const nb::tuple& tensors, Arguments& given) const {
    if (tensors.size() != orders_.size()) return false;
    given.key.reserve(32 * orders_.size());
    given.addresses.reserve(orders_.size() + 16);
    for (std::size_t i = 0; i < orders_.size(); ++i)
      if (!read(tensors[i], orders_[i], given)) return false;
    given.key.append(reinterpret_cast<const char*>(&given.device), sizeof given.device);
    for (const std::size_t i : doubtful_)
      if (nb::cast<bool>(nb::handle(tensors[i]).attr("is_neg")())) return false;
    return given.device >= 0;
  }

  bool read(nb::handle tensor, const AxisOrder& order, Arguments& given) const {
    bool plain = false;
    for (const nb::handle type : types_) plain = plain || tensor.type().is(type);
    if (!plain) return false;
    nb::dlpack::dltensor view;
    if (table_->view(tensor.ptr(), &view) != 0) {
      PyErr_Clear();  // what is wrong with it is said where it is looked at
      return false;
    }
    if (view.device.device_type != device_type_) return false;
    if (given.device >= 0 && given.device != view.device.device_id) return false;
    given.device = view.device.device_id;
    const auto rank = static_cast<std::size_t>(view.ndim);
    if (!order.empty() && (order.size() != rank || view.strides == nullptr)) return false;
    given.key.push_back(static_cast<char>(view.dtype.code));
    given.key.push_back(static_cast<char>(view.dtype.bits));
    given.key.push_back(static_cast<char>(rank));
    std::int64_t expected = 1;
    bool dense = true;
    bool empty = false;
    for (std::size_t at = rank; at-- > 0;) {
      const std::size_t axis = order.empty() ? at : order[at];
      const std::int64_t size = view.shape[axis];
      if (size != 1 && view.strides != nullptr && view.strides[axis] != expected) dense = false;
      empty = empty || size == 0;
      expected *= size;
      given.key.append(reinterpret_cast<const char*>(&size), sizeof size);
    }
    given.addresses.push_back(empty ? nullptr : address_of(view));
    return dense || empty;
  }

  const ExchangeTable* table_;
  nb::tuple types_;
  int device_type_;
  nb::object make_;
  nb::object current_device_;
  std::vector<AxisOrder> orders_;
  std::vector<std::size_t> doubtful_;
  std::unordered_map<std::string, std::shared_ptr<const KnownCall>> known_;
};

}  // namespace

void bind_quick_calls(nb::module_& m) {
  nb::class_<QuickCalls>(m, "QuickCalls")
      .def(nb::init<const nb::capsule&, nb::tuple, int, nb::object, nb::object,
                    std::vector<AxisOrder>, std::vector<std::size_t>>(),
           "table"_a, "types"_a, "device_type"_a, "make"_a, "current_device"_a, "orders"_a,
           "doubtful"_a)
      .def_static("reads", &QuickCalls::reads, "table"_a)
      .def("call", &QuickCalls::call, "tensors"_a)
      .def("add", &QuickCalls::add, "tensors"_a, "program"_a, "prepared"_a, "outputs"_a);
}

}  // namespace segfuse::python
