// Records the operations of a PyTorch program below autograd, and reduces their results in batches.
//
// It does what the dispatch mode of numerics.py does, without Python for each operation. It is
// compiled against the PyTorch that is there (compiled.py), since PyTorch's C++ interface differs
// between releases. All operations of the threads that include `KEY` come to `watched`. What they
// read and wrote is kept until `finish`, as far as it fits into a budget; then `next` gives the
// records whose results are not finite, oldest first, and `clear` forgets all.

#include <pthread.h>

#include <recorder/place.h>
#include <recorder/results.h>
#include <recorder/state.h>

namespace recorder {
namespace {

const Facts& facts_of(State& s, const c10::OperatorHandle& op) {
  const void* key = &op.schema();
  {
    const std::lock_guard lock(s.mutex);
    const auto found = s.facts.find(key);
    if (found != s.facts.end()) return found->second;
  }
  Facts facts;
  {
    const py::gil_scoped_acquire gil;
    const auto told =
        s.facts_of(op.operator_name().name, op.operator_name().overload_name)
            .cast<std::tuple<bool, bool, bool, bool, bool, bool, std::vector<size_t>>>();
    std::tie(facts.view, facts.unwritten, facts.reads, facts.cast, facts.adds, facts.makes,
             facts.written) = told;
  }
  const auto& name = op.operator_name();
  facts.owned = name.name.starts_with("aten::");
  facts.rule = rule_of(name.name, name.overload_name);
  const std::lock_guard lock(s.mutex);
  return s.facts.emplace(key, std::move(facts)).first->second;
}

uint64_t this_thread() { return uint64_t(pthread_self()); }

void note_origin(State& s, const c10::OperatorHandle& op, int place, int module) {
  const int64_t sequence = int64_t(at::sequence_number::peek()) - 1;
  if (sequence < 0) return;
  if (s.origins.empty()) s.origins.resize(MOST_NODES);
  Origin& origin = s.origins[size_t(sequence) % MOST_NODES];
  if (origin.sequence == sequence) {
    if (origin.thread != this_thread()) origin.known = false;
    return;
  }
  origin = {sequence, this_thread(), true, op, place, module};
}

// The name of a node of Python's is made with the GIL, so before the lock.
template <class Node>
std::string name_of_python(const Node& node) {
  if (!node || std::string_view(typeid(*node).name()).find("PyNode") == std::string_view::npos) {
    return {};
  }
  return node->name();
}

template <class Node>
int node_name(State& s, Node& node, const std::string& of_python) {
  if (!of_python.empty()) {
    const auto [found, is_new] = s.python_nodes.emplace(of_python, int(s.node_names.size()));
    if (is_new) s.node_names.push_back(of_python);
    return found->second;
  }
  const auto [found, is_new] =
      s.nodes.emplace(std::type_index(typeid(node)), int(s.node_names.size()));
  if (is_new) s.node_names.push_back(node.name());
  return found->second;
}

// Records are used again with the room that their lists have.
Record& new_record(State& s) {
  if (s.used == s.records.size()) s.records.emplace_back();
  return s.records[s.used++];
}

void remember_operands(State& s, Record& record, const Call& call) {
  record.operands.reserve(4);
  for (size_t i = 0; i < call.arguments.size(); ++i) {
    bool is_written = false;
    for (const size_t w : call.facts.written) is_written = is_written || w == i;
    each_tensor(call.arguments[i], [&](const Tensor& tensor, int position) {
      bool overwritten = is_written;
      for (const auto& other : call.written) {
        overwritten = overwritten || other.unsafeGetTensorImpl() == tensor.unsafeGetTensorImpl();
      }
      record.operands.push_back(
          {weak_of(tensor), key_of(tensor), int(i), position, version_of(tensor), overwritten});
      if (!s.unwritten.empty()) {
        const auto found = s.unwritten.find(key_of(tensor));
        if (found != s.unwritten.end() && (!overwritten || call.facts.adds)) {
          record.unwritten = found->second.second;
        }
      }
    });
  }
}

// Copies the arguments, with tensors of their own in place of those that autograd counts.
void keep_arguments(Record& record, Call& call) {
  record.arguments.assign(call.arguments.begin(), call.arguments.end());
  for (auto& value : record.arguments) {
    if (value.isTensor() && is_plain(value.toTensor())) value = detached(value.toTensor());
  }
}

void look(State& s, const c10::OperatorHandle& op, const torch::jit::Stack& stack, Call& call) {
  const size_t returns = op.schema().returns().size();
  c10::SmallVector<Tensor, 4> results(call.written.begin(), call.written.end());
  c10::SmallVector<From, 4> from(call.from.begin(), call.from.end());
  const size_t first = stack.size() - returns;
  for (size_t i = first; i < stack.size(); ++i) {
    each_tensor(stack[i], [&](const Tensor& tensor, int position) {
      for (const auto& other : results) {
        if (other.unsafeGetTensorImpl() == tensor.unsafeGetTensorImpl()) return;
      }
      results.push_back(tensor);
      from.push_back({call.written.empty() ? int(i - first) : -1, position});
    });
  }
  const auto node = torch::autograd::get_current_node();
  const std::string of_python = name_of_python(node);
  const std::lock_guard lock(s.mutex);
  forget_operands(s, call);
  if (call.facts.unwritten) {
    for (const auto& tensor : results) {
      s.bounds.forget(tensor);
      s.unwritten.insert_or_assign(key_of(tensor), std::pair(weak_of(tensor), call.place));
    }
    return;
  }
  if (!node && at::GradMode::is_enabled()) note_origin(s, op, call.place, call.module);
  bool any = false;
  for (const auto& tensor : results) any = any || has_numbers(tensor);
  const bool casts = call.facts.cast && !any;
  if (!any && !casts && !call.facts.reads) return;
  ++s.operations;
  const Bound bound = results.size() == 1 ? bound_of(s, call, results[0], from[0]) : Bound();
  Record& record = new_record(s);
  record.number = ++s.number;
  record.step = s.step;
  record.op = op;
  record.phase = node ? "backward" : s.phase;
  record.place = call.place;
  record.module = call.module;
  if (node) {
    record.node = node_name(s, *node, of_python);
    record.sequence = int64_t(node->sequence_nr());
  }
  if (any && bound.known() && !bound.assumed) {
    add_proven(s, record, results[0], !call.written.empty(), bound);
    return;
  }
  remember_operands(s, record, call);
  if (casts || call.facts.reads) {
    record.kind = casts ? Kind::cast : Kind::read;
    results.clear();
    for (const auto& value : call.arguments) {
      each_tensor(value, [&](const Tensor& tensor, int) { results.push_back(tensor); });
    }
  }
  record.results.reserve(results.size());
  const Site site{&call.facts, call.place};
  for (size_t i = 0; i < results.size(); ++i) {
    if (!has_numbers(results[i])) continue;
    if (record.kind != Kind::operation) {
      add_result(s, record, results[i], Role::operand, false, {}, nullptr);
    } else {
      const bool is_written = i < call.written.size();
      add_result(s, record, results[i], Role::result, is_written,
                 results.size() == 1 ? bound : bound_of(s, call, results[i], from[i]),
                 call.facts.owned ? &site : nullptr, is_written && from[i].item >= 0);
    }
  }
  keep_arguments(record, call);
  record.before = std::move(call.before);
  s.kept_bytes += record.bytes;
  if (s.kept_bytes > s.keep_bytes) let_go(s);
  after_enqueue(s);
}

// What the operation overwrites, where that is small and on the CPU.
Tensor copy_of(const Facts& facts, const c10::OperatorHandle& op,
               const std::vector<Tensor>& written) {
  if (!facts.makes || written.size() != 1 || !has_numbers(written[0])) return {};
  if (!written[0].is_cpu() || written[0].numel() > SMALL) return {};
  if (op.schema().arguments()[facts.written[0]].is_out()) return {};
  const Below below;
  return written[0].detach().clone();
}

void watched(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  State& s = state();
  const auto after = keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, KEY);
  if (!s.on || s.paused || keys.has(c10::DispatchKey::Python)) {
    op.redispatchBoxed(after, stack);  // tensors of other kinds dispatch again to such as count
    return;
  }
  const Facts& facts = facts_of(s, op);
  if (facts.view) {
    if (!facts.written.empty()) {  // a collective: what it writes arrives later
      const size_t count = op.schema().arguments().size();
      std::vector<Tensor> written;
      for (const size_t i : facts.written) {
        const c10::IValue& argument = *(stack->end() - std::ptrdiff_t(count - i));
        each_tensor(argument, [&](const Tensor& t, int) { written.push_back(t); });
      }
      const std::lock_guard lock(s.mutex);
      before_write(s, written);
      for (const auto& tensor : written) s.written.erase(key_of(tensor));
    }
    const c10::impl::ExcludeDispatchKeyGuard inside(KEY);
    op.redispatchBoxed(after, stack);
    return;
  }
  if (facts.reads && is_finite_on_host(stack->back())) {
    {
      const c10::impl::ExcludeDispatchKeyGuard inside(KEY);
      op.redispatchBoxed(after, stack);
    }
    const std::lock_guard lock(s.mutex);
    ++s.operations;
    ++s.number;
    return;
  }
  Call call{facts, -1, module_stack.empty() ? -1 : module_stack.back().second, {}, {}, {}, {}};
  if (Py_IsInitialized() && PyGILState_GetThisThreadState() != nullptr) {
    const py::gil_scoped_acquire gil;
    call.place = place_here(s);
    if (s.used >= MOST_RECORDS) s.on_full();
  }
  const size_t count = op.schema().arguments().size();
  call.arguments.assign(stack->end() - std::ptrdiff_t(count), stack->end());
  for (size_t i = 0; i < facts.written.size(); ++i) {
    each_tensor(call.arguments[facts.written[i]], [&](const Tensor& t, int position) {
      call.written.push_back(t);
      call.from.push_back({int(i), position});
    });
  }
  if (!call.written.empty()) {
    const std::lock_guard lock(s.mutex);
    before_write(s, call.written);
  }
  call.before = copy_of(facts, op, call.written);
  {
    const c10::impl::ExcludeDispatchKeyGuard inside(KEY);
    op.redispatchBoxed(after, stack);
  }
  look(s, op, *stack, call);
}

// --- for Python ---

void start(py::object facts, py::object kind, py::object result, py::object full, int64_t keep,
           uintptr_t magnitudes, int bounds) {
  State& s = state();
  static const bool registered = [] {
    auto* library = new torch::Library(torch::Library::IMPL, "_", KEY, __FILE__, __LINE__);
    library->fallback(torch::CppFunction::makeFromBoxedFunction<&watched>());
    pthread_atfork(nullptr, nullptr, [] { state().on = false; });
    return true;
  }();
  (void)registered;
  s.facts_of = std::move(facts);
  s.kind_of = std::move(kind);
  s.on_result = std::move(result);
  s.on_full = std::move(full);
  s.keep_bytes = keep;
  s.magnitudes = reinterpret_cast<decltype(s.magnitudes)>(magnitudes);
  s.number = s.operations = 0;
  s.step = 1;
  s.phase = "forward";
  s.stream.reset();
  s.many_streams = s.paused = s.cpu = s.cuda = false;
  s.unwritten.clear();
  s.bounds = Bounds();
  s.bounds.mode = Bounds::Mode(bounds);
  s.guesses.clear();
  s.guess_of.clear();
  s.origins.clear();
  s.facts.clear();
  s.on = true;
  c10::impl::tls_set_dispatch_key_included(KEY, true);
}

void stop() {
  state().on = false;
  c10::impl::tls_set_dispatch_key_included(KEY, false);
}

// With `bounded`, what operations have left there need not be read again.
int expect(int arrival, const std::vector<py::object>& tensors, const py::object& guard,
           bool bounded) {
  State& s = state();
  const int place = place_here(s);
  const std::lock_guard lock(s.mutex);
  Record& record = new_record(s);
  record.place = place;
  record.number = s.number;
  record.step = s.step;
  record.kind = Kind::arrival;
  record.arrival = arrival;
  record.phase = "forward";
  if (!guard.is_none()) {
    const Tensor own = detached(THPVariable_Unpack(guard.ptr()));
    meet_stream(s, own);
    record.guard = enqueue(s, own);
  }
  const Site site{nullptr, place};
  for (size_t i = 0; i < tensors.size(); ++i) {
    const Tensor& tensor = THPVariable_Unpack(tensors[i].ptr());
    if (!has_numbers(tensor)) continue;
    const auto found = s.written.find(key_of(tensor));
    if (found != s.written.end() && found->second >= 0) {  // the operation's reduction is this one
      record.results.push_back({Tensor(),
                                weak_of(tensor),
                                key_of(tensor),
                                tensor.scalar_type(),
                                {},
                                false,
                                0,
                                found->second});
    } else {
      const Bound bound = bounded ? s.bounds.of(tensor) : Bound();
      add_result(s, record, tensor, Role::arrival, false, bound, &site);
      record.results.back().tensor = Tensor();
      record.results.back().covers = false;
      after_enqueue(s);
    }
    record.results.back().shape = tensor.sizes().vec();
    record.results.back().version = int64_t(i);  // which of the names is its own
  }
  return int(s.used);
}

// Waits until all reductions have arrived.
void finish() {
  State& s = state();
  const std::lock_guard lock(s.mutex);
  reduce_bounded(s);
  reduce(s);
  s.values.assign(size_t(s.slots), 0.0);
  for (const auto& [slot, magnitude] : s.on_host) s.values[size_t(slot)] = magnitude;
  s.on_host.clear();
  const Below below;
  std::vector<bool> done(s.reduced.size());
  for (size_t i = 0; i < s.reduced.size(); ++i) {
    if (done[i]) continue;
    const OnStream on(s.reduced[i].stream);
    std::vector<Tensor> parts;
    std::vector<int> slots;
    for (size_t j = i; j < s.reduced.size(); ++j) {
      const auto& other = s.reduced[j];
      if (done[j] || other.stream != s.reduced[i].stream ||
          other.values.scalar_type() != s.reduced[i].values.scalar_type()) {
        continue;
      }
      done[j] = true;
      parts.push_back(other.values.narrow(0, 0, int64_t(other.slots.size())));
      slots.insert(slots.end(), other.slots.begin(), other.slots.end());
    }
    const Tensor host = at::cat(parts).cpu().to(at::kDouble).contiguous();
    const double* values = host.const_data_ptr<double>();
    for (size_t k = 0; k < slots.size(); ++k) s.values[size_t(slots[k])] = values[k];
  }
  s.reduced.clear();
  s.open.clear();
  s.broken = Tensor();
  s.broken_on_host = false;
  s.bounds.settle(s.values, settle_guesses(s));
  s.next = 0;
}

void clear() {
  State& s = state();
  const std::lock_guard lock(s.mutex);
  for (size_t i = 0; i < s.used; ++i) s.records[i].forget();
  s.used = 0;
  s.next = s.first_kept = 0;
  s.kept_bytes = 0;
  s.slots = 0;
  // Guesses that were not tested prove nothing.
  if (!s.pending.list.empty() || !s.bounded.list.empty()) s.bounds.forget_all();
  s.pending.clear();
  s.bounded.clear();
  s.reduced.clear();
  s.open.clear();
  s.written.clear();
  for (auto i = s.unwritten.begin(); i != s.unwritten.end();) {
    i = i->second.first.expired() ? s.unwritten.erase(i) : std::next(i);
  }
}

bool is_interesting(const State& s, const Record& record, const py::dict& marks, bool all) {
  if (all) return true;
  for (const auto& result : record.results) {
    if (!std::isfinite(s.values[size_t(result.slot)])) return true;
    if (result.covers && !marks.empty() &&
        marks.contains(reinterpret_cast<uintptr_t>(result.key))) {
      return true;
    }
  }
  return false;
}

py::object func_of(const c10::OperatorHandle& op) {
  return py::make_tuple(op.operator_name().name, op.operator_name().overload_name);
}

py::object origin_of(State& s, int64_t sequence) {
  if (sequence < 0 || s.origins.empty()) return py::none();
  const Origin& origin = s.origins[size_t(sequence) % MOST_NODES];
  if (origin.sequence != sequence || !origin.known) return py::none();
  return py::make_tuple(func_of(*origin.op), place_at(s, origin.place),
                        module_at(s, origin.module));
}

py::list arguments_of(const Record& record) {
  py::list out;
  if (!record.op) return out;
  const auto& names = record.op->schema().arguments();
  for (size_t i = 0; i < record.arguments.size(); ++i) {
    const auto& value = record.arguments[i];
    if (value.isTensor() && !value.toTensor().defined()) continue;  // an optional one
    const auto& standard = names[i].default_value();
    const bool given = !standard || !(value.type()->isSubtypeOf(*standard->type())) ||
                       (!value.isTensor() && !(value == *standard));
    if (given) out.append(py::make_tuple(i, torch::jit::toPyObject(value)));
  }
  return out;
}

py::dict told(State& s, const Record& record) {
  py::dict out;
  out["number"] = record.number;
  out["step"] = record.step;
  out["kind"] = int(record.kind);
  out["arrival"] = record.arrival;
  out["guard"] = record.guard < 0 ? 0.0 : s.values[size_t(record.guard)];
  out["phase"] = record.phase;
  out["place"] = place_at(s, record.place);
  out["module"] = module_at(s, record.module);
  out["node"] = record.node < 0 ? std::string() : s.node_names[size_t(record.node)];
  out["origin"] = origin_of(s, record.sequence);
  out["func"] = record.op ? func_of(*record.op) : py::object(py::none());
  out["arguments"] = arguments_of(record);
  out["kept"] = record.kept;
  out["before"] =
      record.before.defined() ? torch::jit::toPyObject(record.before) : py::object(py::none());
  out["unwritten"] = place_at(s, record.unwritten);
  py::list operands, results;
  for (const auto& operand : record.operands) {
    operands.append(py::make_tuple(operand.argument, operand.position,
                                   reinterpret_cast<uintptr_t>(operand.key), operand.version,
                                   operand.overwritten));
  }
  for (const auto& result : record.results) {
    // The reference is Python's StorageWeakRef's from here on.
    auto* weak = WeakStorage(result.storage).release();
    results.append(py::make_tuple(
        result.tensor.defined() ? torch::jit::toPyObject(result.tensor) : py::object(py::none()),
        reinterpret_cast<uintptr_t>(result.key),
        result.tensor.defined() ? result.tensor.sizes().vec() : result.shape,
        torch::jit::toPyObject(IValue(at::empty({0}, result.dtype))).attr("dtype"), result.covers,
        reinterpret_cast<uintptr_t>(weak), result.version, s.values[size_t(result.slot)]));
  }
  out["operands"] = operands;
  out["results"] = results;
  return out;
}

py::object next(const py::dict& marks, bool all) {
  State& s = state();
  while (s.next < s.used) {
    const Record& record = s.records[s.next++];
    if (is_interesting(s, record, marks, all)) {
      const Below below;
      return told(s, record);
    }
  }
  return py::none();
}

}  // namespace
}  // namespace recorder

PYBIND11_MODULE(segfuse_recorder, module) {
  using namespace recorder;
  module.def("start", &start);
  module.def("stop", &stop);
  module.def("finish", &finish, py::call_guard<py::gil_scoped_release>());
  module.def("clear", &clear);
  module.def("next", &next);
  module.def("expect", &expect);
  module.def("enter_module", &enter_module);
  module.def("leave_module", &leave_module);
  module.def("exclude", [](bool on) {
    const bool before = c10::impl::tls_is_dispatch_key_excluded(KEY);
    c10::impl::tls_set_dispatch_key_excluded(KEY, on);
    return before;
  });
  module.def("pause", [](bool on) { state().paused = on; });
  module.def("bound", [](int mode) {  // what wrote unseen may have written anything
    State& s = state();
    const std::lock_guard lock(s.mutex);
    if (mode < s.bounds.mode) s.bounds.mode = Bounds::Mode(mode);
    s.bounds.forget_all();
  });
  module.def("bounded_operators", &bounded_operators);
  module.def("bound_of", [](const py::object& tensor) {
    const Bound bound = state().bounds.of(THPVariable_Unpack(tensor.ptr()));
    return std::pair(bound.value, bound.assumed);
  });
  module.def("counts", [] {
    const Bounds& b = state().bounds;
    return std::tuple(b.proven, b.pending, b.read, b.read_bytes);
  });
  module.def("set_phase", [](std::string phase) { state().phase = std::move(phase); });
  module.def("set_step", [](int64_t step) { state().step = step; });
  module.def("pending", [] { return state().used > 0; });
  module.def("operations", [] { return state().operations; });
  module.def("devices", [] { return std::pair(state().cpu, state().cuda); });
}
