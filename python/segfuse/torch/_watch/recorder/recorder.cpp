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

// Whether a value of the type may be a tensor or have some.
bool may_hold(const c10::Type& type) {
  switch (type.kind()) {
    case c10::TypeKind::OptionalType:
    case c10::TypeKind::ListType: return may_hold(*type.containedTypes().at(0));
    case c10::TypeKind::TensorType:
    case c10::TypeKind::AnyType:
    case c10::TypeKind::AnyListType:
    case c10::TypeKind::UnionType:
    case c10::TypeKind::VarType: return true;
    default: return false;
  }
}

const Facts& ask_facts(State& s, const c10::OperatorHandle& op) {
  const void* key = &op.schema();
  {
    const std::lock_guard lock(s.mutex);
    const auto found = s.facts.find(key);
    if (found != s.facts.end()) return found->second;
  }
  Facts facts{op};
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
  const auto& arguments = op.schema().arguments();
  facts.arguments = arguments.size();
  facts.returns = op.schema().returns().size();
  for (size_t i = 0; i < arguments.size(); ++i) {
    if (may_hold(*arguments[i].type())) facts.holders.push_back(i);
  }
  const std::lock_guard lock(s.mutex);
  return s.facts.emplace(key, std::move(facts)).first->second;
}

// What a thread keeps for its next call.
struct Mine {
  ska::flat_hash_map<const void*, const Facts*> facts;  // looked up since the start
  uint64_t start = 0;
  Lists lists;  // with room
  const std::type_info* node = nullptr;
  bool node_is_of_python = false;
};
thread_local Mine this_mine;

const Facts& facts_of(State& s, Mine& mine, const c10::OperatorHandle& op) {
  if (const uint64_t now = s.starts; now != mine.start) {
    mine.facts.clear();
    mine.start = now;
  }
  const Facts*& facts = mine.facts[&op.schema()];
  if (facts == nullptr) facts = &ask_facts(s, op);
  return *facts;
}

uint64_t this_thread() { return uint64_t(pthread_self()); }

void note_origin(State& s, const Call& call) {
  const int64_t sequence = int64_t(at::sequence_number::peek()) - 1;
  if (sequence < 0) return;
  if (s.origins.empty()) s.origins.resize(MOST_NODES);
  Origin& origin = s.origins[size_t(sequence) % MOST_NODES];
  if (origin.sequence == sequence) {
    if (origin.thread != this_thread()) origin.facts = nullptr;
    return;
  }
  origin = {sequence, this_thread(), &call.facts, call.place, call.module};
}

// The name of a node of Python's is made with the GIL, so before the lock.
template <class Node>
std::string name_of_python(Mine& mine, const Node& node) {
  if (!node) return {};
  if (const auto* type = &typeid(*node); mine.node != type) {
    mine.node = type;
    mine.node_is_of_python = std::string_view(type->name()).find("PyNode") != std::string::npos;
  }
  return mine.node_is_of_python ? node->name() : std::string();
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

Record& new_record(State& s) {
  s.met.reset();
  Record& record = s.records.emplace_back();
  if (s.records.size() >= MOST_RECORDS) s.is_full = true;
  record.number = s.number;
  record.step = s.step;
  record.arguments.first = s.arguments.size();
  record.kept.first = s.kept.size();
  record.operands.first = s.operands.size();
  record.results.first = s.results.size();
  return record;
}

void end_record(State& s, Record& record) {
  record.arguments.end = s.arguments.size();
  record.kept.end = s.kept.size();
  record.operands.end = s.operands.size();
  record.results.end = s.results.size();
}

// Tensors that are arguments themselves are kept as memory.
void remember_operands(State& s, Record& record, const Call& call, const Handles& written) {
  for (const size_t i : call.facts.holders) {
    bool is_written = false;
    for (const size_t w : call.facts.written) is_written = is_written || w == i;
    each_tensor(call.lists.arguments[i], [&](const Tensor& tensor, int position) {
      const bool overwritten = is_written || written.has(tensor);
      StorageImpl* const key = key_of(tensor);
      s.operands.push_back({key, version_of(tensor), int(i), position, overwritten});
      if (position < 0) s.kept.push_back({int(i), Kept(tensor)});
      if (!s.unwritten.empty()) {
        const auto found = s.unwritten.find(key);
        if (found != s.unwritten.end() && (!overwritten || call.facts.adds)) {
          record.unwritten = found->second.second;
        }
      }
    });
  }
}

// All arguments but the tensors that are kept; the call has done with them.
void keep_arguments(State& s, const Record& record, Call& call) {
  size_t kept = record.kept.first;
  int place = 0;
  for (auto& value : call.lists.arguments) {
    if (kept < s.kept.size() && s.kept[kept].place == place) {
      s.arguments.emplace_back();
      ++kept;
    } else {
      s.arguments.push_back(std::move(value));
    }
    ++place;
  }
}

// Where a result is: what was written is among the arguments.
void keep_result(State& s, const Record& record, const Call& call, Result& result,
                 const Tensor& tensor, bool is_written, const From& from) {
  if (is_written) {
    const int argument = int(call.facts.written[size_t(from.ret)]);
    if (from.item >= 0) {
      result.argument = argument;
      result.item = from.item;
      result.weak = weak_of(tensor);  // a program may give the tensor other memory
      return;
    }
    for (size_t i = record.kept.first; i < s.kept.size(); ++i) {
      if (s.kept[i].place != argument) continue;
      result.kept = int(i);
      return;
    }
  }
  result.kept = int(s.kept.size());
  s.kept.push_back({-1, Kept(tensor)});
}

// Adds what is on the stack to what the operation wrote in place, each once.
void add_returned(const Facts& facts, const torch::jit::Stack& stack, const Handles& written,
                  Lists& lists) {
  const size_t first = stack.size() - facts.returns;
  const bool in_place = !lists.written.empty();
  for (size_t i = first; i < stack.size(); ++i) {
    each_tensor(stack[i], [&](const Tensor& tensor, int position) {
      if (in_place && written.has(tensor)) return;
      lists.results.push_back(&tensor);
      lists.from.push_back({in_place ? -1 : int(i - first), position});
    });
  }
}

// Of a single result the bound is known.
void add_results(State& s, Record& record, const Call& call, const Bound& of_single) {
  const std::vector<const Tensor*>& results = call.lists.results;
  const size_t count_written = call.lists.written.size();
  const Site site{&call.facts, call.place};
  for (size_t i = 0; i < results.size(); ++i) {
    const Tensor& tensor = *results[i];
    if (!holds_numbers(tensor)) continue;
    const bool is_written = i < count_written;
    const From& from = call.lists.from[i];
    const Bound bound = results.size() == 1 ? of_single : bound_of(s, call, tensor, from);
    Result& result = add_result(s, record, tensor, Role::result, is_written, bound,
                                call.facts.owned ? &site : nullptr, is_written && from.item >= 0);
    keep_result(s, record, call, result, tensor, is_written, from);
  }
}

// Operands whose numbers the program reads, or casts.
void add_read(State& s, Record& record, const Call& call) {
  for (const size_t i : call.facts.holders) {
    each_tensor(call.lists.arguments[i], [&](const Tensor& tensor, int) {
      if (!holds_numbers(tensor)) return;
      Result& result = add_result(s, record, tensor, Role::operand, false, {}, nullptr);
      result.kept = int(s.kept.size());
      s.kept.push_back({-1, Kept(tensor)});
    });
  }
}

void look(State& s, Mine& mine, const torch::jit::Stack& stack, Call& call) {
  const Facts& facts = call.facts;
  std::vector<const Tensor*>& results = call.lists.results;
  const Handles written(call.lists.written);
  add_returned(facts, stack, written, call.lists);
  const auto node = torch::autograd::get_current_node();
  const std::string of_python = name_of_python(mine, node);
  const Lock lock(s);
  forget_operands(s, call);
  if (facts.unwritten) {
    for (const Tensor* tensor : results) {
      s.bounds.forget(*tensor);
      s.unwritten.insert_or_assign(key_of(*tensor), std::pair(weak_of(*tensor), call.place));
    }
    return;
  }
  if (!node && at::GradMode::is_enabled()) note_origin(s, call);
  const bool any = std::any_of(results.begin(), results.end(),
                               [](const Tensor* tensor) { return holds_numbers(*tensor); });
  const bool casts = facts.cast && !any;
  if (!any && !casts && !facts.reads) return;
  ++s.operations;
  ++s.number;
  const bool reads = casts || facts.reads;
  const Bound bound =
      results.size() == 1 ? bound_of(s, call, *results[0], call.lists.from[0]) : Bound();
  const bool proven = any && bound.known() && !bound.assumed;
  if (proven && !add_proven(s, *results[0], !call.lists.written.empty(), bound)) return;
  Record& record = new_record(s);
  record.facts = &facts;
  record.phase = node ? "backward" : s.phase;
  record.place = call.place;
  record.module = call.module;
  if (node) {
    record.node = node_name(s, *node, of_python);
    record.sequence = int64_t(node->sequence_nr());
  }
  if (proven) {
    s.results.push_back({key_of(*results[0]), -1, results[0]->scalar_type(), true});
    end_record(s, record);
    return;
  }
  remember_operands(s, record, call, written);
  if (reads) {
    record.kind = casts ? Kind::cast : Kind::read;
    add_read(s, record, call);
  } else {
    add_results(s, record, call, bound);
  }
  keep_arguments(s, record, call);
  end_record(s, record);
  record.before = std::move(call.before);
  s.kept_bytes += record.bytes;
  if (s.kept_bytes > s.keep_bytes) let_go(s);
  after_enqueue(s);
}

// What the operation overwrites, where that is small and on the CPU.
Tensor copy_of(const Facts& facts, const std::vector<const Tensor*>& written) {
  if (!facts.makes || written.size() != 1 || !has_numbers(*written[0])) return {};
  if (!written[0]->is_cpu() || written[0]->numel() > SMALL) return {};
  if (facts.op.schema().arguments()[facts.written[0]].is_out()) return {};
  const Below below;
  return written[0]->detach().clone();
}

void redispatch(const c10::OperatorHandle& op, c10::DispatchKeySet after,
                torch::jit::Stack* stack) {
  const c10::impl::ExcludeDispatchKeyGuard inside(KEY);
  op.redispatchBoxed(after, stack);
}

// What a collective writes arrives later.
void before_collective(State& s, const Facts& facts, const torch::jit::Stack& stack) {
  std::vector<const Tensor*> written;
  for (const size_t i : facts.written) {
    const IValue& argument = *(stack.end() - std::ptrdiff_t(facts.arguments - i));
    each_tensor(argument, [&](const Tensor& t, int) { written.push_back(&t); });
  }
  const Lock lock(s);
  before_write(s, written);
  for (const Tensor* tensor : written) s.written.erase(key_of(*tensor));
}

int place_of_call(State& s) {
  PyThreadState* const thread = Py_IsInitialized() ? PyGILState_GetThisThreadState() : nullptr;
  if (thread == nullptr) return -1;
  const bool is_full = s.is_full;
  const int place = runs_no_python(thread) ? s.no_place : place_here(s, thread);
  if (is_full) {
    const Gil gil(thread);
    s.on_full();
  }
  return place;
}

c10::DispatchKeySet keys_after(c10::DispatchKeySet keys) {
  return keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, KEY);
}

// Tensors of other kinds dispatch again to such as count.
bool passes(const State& s, c10::DispatchKeySet keys) {
  return !s.on || s.paused || keys.has(c10::DispatchKey::Python);
}

void watched(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  State& s = state();
  if (passes(s, keys)) {
    op.redispatchBoxed(keys_after(keys), stack);
    return;
  }
  Mine& mine = this_mine;
  const Facts& facts = facts_of(s, mine, op);
  if (facts.view) {
    if (!facts.written.empty()) before_collective(s, facts, *stack);
    redispatch(op, keys_after(keys), stack);
    return;
  }
  const int place = place_of_call(s);
  const int module = module_stack.empty() ? -1 : module_stack.back().second;
  Call call{facts, place, module, std::move(mine.lists), {}};
  Lists& lists = call.lists;
  lists.arguments.assign(stack->end() - std::ptrdiff_t(facts.arguments), stack->end());
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
  call.before = copy_of(facts, lists.written);
  redispatch(op, keys_after(keys), stack);
  look(s, mine, *stack, call);
  lists.clear();
  mine.lists = std::move(lists);
}

// Of a number on the host that is finite nothing is recorded. An optimizer reads one for each
// parameter, so these need not come by in boxes.
at::Scalar read_number(c10::DispatchKeySet keys, const Tensor& tensor) {
  State& s = state();
  if (!passes(s, keys) && is_one_on_host(tensor) && std::isfinite(number_in(tensor))) {
    {
      const Lock lock(s);
      ++s.operations;
      ++s.number;
    }
    const c10::impl::ExcludeDispatchKeyGuard inside(KEY);
    return at::_ops::_local_scalar_dense::redispatch(keys_after(keys), tensor);
  }
  static const auto op =
      c10::Dispatcher::singleton().findSchemaOrThrow("aten::_local_scalar_dense", "");
  torch::jit::Stack stack{tensor};
  watched(op, keys, &stack);
  return stack.back().toScalar();
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
    auto* aten = new torch::Library(torch::Library::IMPL, "aten", KEY, __FILE__, __LINE__);
    let_views_through(*aten);
    aten->impl("_local_scalar_dense", TORCH_FN(read_number));
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
  s.knows_frames = frames_are_known();
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
  const int place = place_here(s, PyThreadState_Get());
  const Lock lock(s);
  Record& record = new_record(s);
  record.place = place;
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
      s.results.push_back({key, found->second.slot, tensor.scalar_type(), false});
    } else {
      const Bound bound = bounded ? s.bounds.of(tensor) : Bound();
      if (bound.known() && !bound.assumed) continue;
      add_result(s, record, tensor, Role::arrival, false, bound, &site).covers = false;
      after_enqueue(s);
    }
    s.results.back().version = number;  // which of the names is its own
  }
  end_record(s, record);
  return int(s.records.size());
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
  s.all_finite = std::all_of(s.values.begin(), s.values.end(),
                             [](double value) { return std::isfinite(value); });
  s.next = 0;
}

void clear() {
  State& s = state();
  const Lock lock(s);
  s.records.clear();
  s.arguments.clear();
  s.kept.clear();
  s.operands.clear();
  s.results.clear();
  s.next = s.first_kept = 0;
  s.is_full = false;
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

double value_of(const State& s, const Result& result) {
  return result.slot < 0 ? 0.0 : s.values[size_t(result.slot)];
}

bool is_interesting(const State& s, const Record& record, const py::dict& marks) {
  for (size_t i = record.results.first; i < record.results.end; ++i) {
    const Result& result = s.results[i];
    if (!std::isfinite(value_of(s, result))) return true;
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
  if (origin.sequence != sequence || origin.facts == nullptr) return py::none();
  return py::make_tuple(func_of(origin.facts->op), place_at(s, origin.place),
                        module_at(s, origin.module));
}

py::list arguments_of(const State& s, const Record& record) {
  py::list out;
  if (record.facts == nullptr) return out;
  const auto& schema = record.facts->op.schema().arguments();
  size_t kept = record.kept.first;
  for (size_t i = 0; record.arguments.first + i < record.arguments.end; ++i) {
    if (kept < record.kept.end && s.kept[kept].place == int(i)) {
      out.append(py::make_tuple(i, torch::jit::toPyObject(s.kept[kept].kept.tensor())));
      ++kept;
      continue;
    }
    const auto& value = s.arguments[record.arguments.first + i];
    if (value.isTensor() && !value.toTensor().defined()) continue;  // an optional one
    const auto& standard = schema[i].default_value();
    const bool given = !standard || !(value.type()->isSubtypeOf(*standard->type())) ||
                       (!value.isTensor() && !(value == *standard));
    if (given) out.append(py::make_tuple(i, torch::jit::toPyObject(value)));
  }
  return out;
}

// The reference that it has is Python's StorageWeakRef's from here on; 0: there is none.
py::tuple told_of(const State& s, const Record& record, const Result& result) {
  const Tensor tensor = tensor_of(s, record, result);
  py::object shape = py::none();
  if (tensor.defined()) {
    shape = py::cast(tensor.sizes().vec());
  } else if (result.kept >= 0) {
    shape = py::cast(s.kept[size_t(result.kept)].kept.shape());
  }
  return py::make_tuple(tensor.defined() ? torch::jit::toPyObject(tensor) : py::object(py::none()),
                        reinterpret_cast<uintptr_t>(result.key), shape,
                        torch::jit::toPyObject(IValue(at::empty({0}, result.dtype))).attr("dtype"),
                        result.covers,
                        reinterpret_cast<uintptr_t>(weak_of(s, record, result).release()),
                        result.version, value_of(s, result));
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
  out["func"] = record.facts ? func_of(record.facts->op) : py::object(py::none());
  out["arguments"] = arguments_of(s, record);
  out["before"] =
      record.before.defined() ? torch::jit::toPyObject(record.before) : py::object(py::none());
  out["unwritten"] = place_at(s, record.unwritten);
  py::list operands, results;
  for (size_t i = record.operands.first; i < record.operands.end; ++i) {
    const Operand& operand = s.operands[i];
    operands.append(py::make_tuple(operand.argument, operand.position,
                                   reinterpret_cast<uintptr_t>(operand.key), operand.version,
                                   operand.overwritten));
  }
  for (size_t i = record.results.first; i < record.results.end; ++i) {
    results.append(told_of(s, record, s.results[i]));
  }
  out["operands"] = operands;
  out["results"] = results;
  return out;
}

py::object next(const py::dict& marks, bool all) {
  State& s = state();
  if (!all && marks.empty() && s.all_finite) return py::none();
  while (s.next < s.records.size()) {
    const Record& record = s.records[s.next++];
    if (all || is_interesting(s, record, marks)) {
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
  module.def("knows_frames", [] { return state().knows_frames; });
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
  module.def("pending", [] { return !state().records.empty(); });
  module.def("operations", [] { return state().operations; });
  module.def("devices", [] { return std::pair(state().cpu, state().cuda); });
}
