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

const Facts& ask_facts(State& s, const c10::OperatorHandle& op) {
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

// Each thread remembers what it asked for since the start.
const Facts& facts_of(State& s, const c10::OperatorHandle& op) {
  thread_local ska::flat_hash_map<const void*, const Facts*> known;
  thread_local uint64_t start = 0;
  if (const uint64_t now = s.starts; now != start) {
    known.clear();
    start = now;
  }
  const Facts*& facts = known[&op.schema()];
  if (facts == nullptr) facts = &ask_facts(s, op);
  return *facts;
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
  const auto [found, is_new] = s.nodes.emplace(&typeid(node), int(s.node_names.size()));
  if (is_new) s.node_names.push_back(node.name());
  return found->second;
}

// Records are used again with the room that their lists have.
Record& new_record(State& s) {
  s.met.reset();
  if (s.used == s.records.size()) s.records.emplace_back();
  return s.records[s.used++];
}

void remember_operands(State& s, Record& record, const Call& call, const Handles& written) {
  const auto& arguments = call.lists.arguments;
  for (size_t i = 0; i < arguments.size(); ++i) {
    bool is_written = false;
    for (const size_t w : call.facts.written) is_written = is_written || w == i;
    each_tensor(arguments[i], [&](const Tensor& tensor, int position) {
      const bool overwritten = is_written || written.has(tensor);
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

void keep_arguments(Record& record, const Call& call) {
  int place = 0;
  for (const auto& value : call.lists.arguments) {
    if (value.isTensor() && is_plain(value.toTensor())) {
      record.kept.emplace_back(place, Kept(value.toTensor()));
      record.arguments.emplace_back();
    } else {
      record.arguments.push_back(value);
    }
    ++place;
  }
}

// Adds what is on the stack to what the operation wrote in place, each once.
void add_returned(const c10::OperatorHandle& op, const torch::jit::Stack& stack,
                  const Handles& written, Lists& lists) {
  const size_t first = stack.size() - op.schema().returns().size();
  const bool in_place = !lists.written.empty();
  for (size_t i = first; i < stack.size(); ++i) {
    each_tensor(stack[i], [&](const Tensor& tensor, int position) {
      if (in_place && written.has(tensor)) return;
      lists.results.push_back(&tensor);
      lists.from.push_back({in_place ? -1 : int(i - first), position});
    });
  }
}

void look(State& s, const c10::OperatorHandle& op, const torch::jit::Stack& stack, Call& call) {
  std::vector<const Tensor*>& results = call.lists.results;
  const size_t count_written = call.lists.written.size();
  const Handles written(call.lists.written);
  add_returned(op, stack, written, call.lists);
  const auto node = torch::autograd::get_current_node();
  const std::string of_python = name_of_python(node);
  const Lock lock(s);
  forget_operands(s, call);
  if (call.facts.unwritten) {
    for (const Tensor* tensor : results) {
      s.bounds.forget(*tensor);
      s.unwritten.insert_or_assign(key_of(*tensor), std::pair(weak_of(*tensor), call.place));
    }
    return;
  }
  if (!node && at::GradMode::is_enabled()) note_origin(s, op, call.place, call.module);
  bool any = false;
  for (const Tensor* tensor : results) any = any || has_numbers(*tensor);
  const bool casts = call.facts.cast && !any;
  if (!any && !casts && !call.facts.reads) return;
  ++s.operations;
  const Bound bound =
      results.size() == 1 ? bound_of(s, call, *results[0], call.lists.from[0]) : Bound();
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
    add_proven(s, record, *results[0], count_written > 0, bound);
    return;
  }
  remember_operands(s, record, call, written);
  if (casts || call.facts.reads) {
    record.kind = casts ? Kind::cast : Kind::read;
    results.clear();
    for (const auto& value : call.lists.arguments) {
      each_tensor(value, [&](const Tensor& tensor, int) { results.push_back(&tensor); });
    }
  }
  const Site site{&call.facts, call.place};
  for (size_t i = 0; i < results.size(); ++i) {
    const Tensor& result = *results[i];
    if (!has_numbers(result)) continue;
    if (record.kind != Kind::operation) {
      add_result(s, record, result, Role::operand, false, {}, nullptr);
    } else {
      const bool is_written = i < count_written;
      const From& from = call.lists.from[i];
      add_result(s, record, result, Role::result, is_written,
                 results.size() == 1 ? bound : bound_of(s, call, result, from),
                 call.facts.owned ? &site : nullptr, is_written && from.item >= 0);
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
               const std::vector<const Tensor*>& written) {
  if (!facts.makes || written.size() != 1 || !has_numbers(*written[0])) return {};
  if (!written[0]->is_cpu() || written[0]->numel() > SMALL) return {};
  if (op.schema().arguments()[facts.written[0]].is_out()) return {};
  const Below below;
  return written[0]->detach().clone();
}

void redispatch(const c10::OperatorHandle& op, c10::DispatchKeySet after,
                torch::jit::Stack* stack) {
  const c10::impl::ExcludeDispatchKeyGuard inside(KEY);
  op.redispatchBoxed(after, stack);
}

// What a collective writes arrives later.
void before_collective(State& s, const c10::OperatorHandle& op, const Facts& facts,
                       const torch::jit::Stack& stack) {
  const size_t count = op.schema().arguments().size();
  std::vector<const Tensor*> written;
  for (const size_t i : facts.written) {
    const IValue& argument = *(stack.end() - std::ptrdiff_t(count - i));
    each_tensor(argument, [&](const Tensor& t, int) { written.push_back(&t); });
  }
  const Lock lock(s);
  before_write(s, written);
  for (const Tensor* tensor : written) s.written.erase(key_of(*tensor));
}

int place_of_call(State& s) {
  PyThreadState* const thread = Py_IsInitialized() ? PyGILState_GetThisThreadState() : nullptr;
  if (thread == nullptr) return -1;
  if (runs_no_python(thread) && s.used < MOST_RECORDS) return s.no_place;
  const Gil gil(thread);
  const int place = place_here(s);
  if (s.used >= MOST_RECORDS) s.on_full();
  return place;
}

// Lists with room, for the thread's next call.
thread_local Lists spare_lists;

void watched(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  State& s = state();
  const auto after = keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, KEY);
  if (!s.on || s.paused || keys.has(c10::DispatchKey::Python)) {
    op.redispatchBoxed(after, stack);  // tensors of other kinds dispatch again to such as count
    return;
  }
  const Facts& facts = facts_of(s, op);
  if (facts.view) {
    if (!facts.written.empty()) before_collective(s, op, facts, *stack);
    redispatch(op, after, stack);
    return;
  }
  if (facts.reads && is_finite_on_host(stack->back())) {
    redispatch(op, after, stack);
    const Lock lock(s);
    ++s.operations;
    ++s.number;
    return;
  }
  Call call{facts,
            place_of_call(s),
            module_stack.empty() ? -1 : module_stack.back().second,
            std::move(spare_lists),
            {}};
  Lists& lists = call.lists;
  lists.arguments.assign(stack->end() - std::ptrdiff_t(op.schema().arguments().size()),
                         stack->end());
  for (size_t i = 0; i < facts.written.size(); ++i) {
    each_tensor(lists.arguments[facts.written[i]], [&](const Tensor& t, int position) {
      lists.written.push_back(&t);
      lists.from.push_back({int(i), position});
    });
  }
  lists.results = lists.written;
  if (!lists.written.empty()) {
    const Lock lock(s);
    before_write(s, lists.written);
  }
  call.before = copy_of(facts, op, lists.written);
  redispatch(op, after, stack);
  look(s, op, *stack, call);
  lists.clear();
  spare_lists = std::move(lists);
}

// Views of PyTorch's own are not looked at, so they need not come by.
void let_views_through(torch::Library& library) {
  const auto aliases = [](const c10::Argument& argument) {
    return argument.alias_info() != nullptr && !argument.alias_info()->isWrite();
  };
  const auto writes = [](const c10::Argument& argument) {
    return argument.alias_info() != nullptr && argument.alias_info()->isWrite();
  };
  for (const auto& name : c10::Dispatcher::singleton().getAllOpNames()) {
    const auto op = c10::Dispatcher::singleton().findSchema(name);
    if (!op || !name.name.starts_with("aten::")) continue;
    const auto& arguments = op->schema().arguments();
    const auto& returns = op->schema().returns();
    if (std::any_of(returns.begin(), returns.end(), aliases) &&
        std::none_of(arguments.begin(), arguments.end(), writes)) {
      library.impl(c10::toString(name).c_str(), torch::CppFunction::makeFallthrough());
    }
  }
}

// --- for Python ---

void start(py::object facts, py::object kind, py::object result, py::object full, int64_t keep,
           uintptr_t magnitudes, int bounds) {
  State& s = state();
  static const bool registered = [] {
    auto* library = new torch::Library(torch::Library::IMPL, "_", KEY, __FILE__, __LINE__);
    library->fallback(torch::CppFunction::makeFromBoxedFunction<&watched>());
    let_views_through(*new torch::Library(torch::Library::IMPL, "aten", KEY, __FILE__, __LINE__));
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
  ++s.starts;
  s.no_place = number_of(s, PlaceKey{nullptr, 0, nullptr, 0});
  s.on = true;
  c10::impl::tls_set_dispatch_key_included(KEY, true);
}

void stop() {
  state().on = false;
  c10::impl::tls_set_dispatch_key_included(KEY, false);
}

// With `bounded`, what operations have left there need not be read again.
int expect(int arrival, const py::list& tensors, const py::object& guard, bool bounded) {
  State& s = state();
  const int place = place_here(s);
  const Lock lock(s);
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
  int64_t number = -1;
  for (const py::handle object : tensors) {
    ++number;
    const Tensor& tensor = THPVariable_Unpack(object.ptr());
    if (!has_numbers(tensor)) continue;
    StorageImpl* const key = key_of(tensor);
    const auto found = s.written.find(key);
    if (found != s.written.end() && found->second.slot >= 0 && (found->second.read || bounded)) {
      // The operation's reduction is this one.
      record.results.emplace_back(tensor, key, false, found->second.slot);
    } else {
      const Bound bound = bounded ? s.bounds.of(tensor) : Bound();
      if (bound.known() && !bound.assumed) continue;
      add_result(s, record, tensor, Role::arrival, false, bound, &site);
      record.results.back().covers = false;
      after_enqueue(s);
    }
    record.results.back().version = number;  // which of the names is its own
  }
  return int(s.used);
}

// Waits until all reductions have arrived.
void finish() {
  State& s = state();
  const Lock lock(s);
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
    const Tensor all = parts.size() == 1 ? parts[0] : at::cat(parts);
    const Tensor host = all.cpu().to(at::kDouble).contiguous();
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
  const Lock lock(s);
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
  s.on_host.clear();
  s.guesses.clear();
  s.broken = Tensor();
  s.broken_on_host = false;
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
  auto kept = record.kept.begin();
  for (size_t i = 0; i < record.arguments.size(); ++i) {
    if (kept != record.kept.end() && kept->first == int(i)) {
      out.append(py::make_tuple(i, torch::jit::toPyObject(kept->second.tensor())));
      ++kept;
      continue;
    }
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
    const Tensor tensor = result.kept.tensor();
    results.append(py::make_tuple(
        tensor.defined() ? torch::jit::toPyObject(tensor) : py::object(py::none()),
        reinterpret_cast<uintptr_t>(result.key),
        tensor.defined() ? tensor.sizes().vec() : result.kept.shape(),
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
  module.def("is_on", [] { return state().on.load(); });
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
  module.def("set_phase",
             [](bool optimizer) { state().phase = optimizer ? "optimizer" : "forward"; });
  module.def("set_step", [](int64_t step) { state().step = step; });
  module.def("pending", [] { return state().used > 0; });
  module.def("operations", [] { return state().operations; });
  module.def("devices", [] { return std::pair(state().cpu, state().cuda); });
}
