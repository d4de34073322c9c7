// Where in the program an operation comes from: lines and modules, as place.py knows them.

#pragma once

#include <recorder/frames.h>
#include <recorder/state.h>

namespace recorder {

enum { HIDDEN, LIBRARY, USER };

// The GIL is held.
inline int kind_of(State& s, PyCodeObject* code) {
  const auto found = s.kinds.find(code);
  if (found != s.kinds.end()) return found->second;
  Py_INCREF(code);  // its address stays its own
  const int kind = s.kind_of(py::handle(code->co_filename)).cast<int>();
  s.kinds.emplace(code, kind);
  return kind;
}

inline int number_of(State& s, const PlaceKey& key) {
  const auto [found, is_new] = s.place_numbers.emplace(key, int(s.places.size()));
  if (is_new) s.places.push_back(key);
  return found->second;
}

// Whether the thread runs no Python, as autograd's threads of devices. A thread may ask this of
// itself without the GIL.
inline bool runs_no_python(PyThreadState* thread) {
  return KNOWS_FRAMES && raw_frame(thread) == nullptr;
}

// The GIL, for a thread that may hold it already.
struct Gil {
  explicit Gil(PyThreadState* thread) : acquired(_PyThreadState_UncheckedGet() != thread) {
    if (acquired) PyEval_RestoreThread(thread);
  }
  ~Gil() {
    if (acquired) PyEval_SaveThread();
  }
  Gil(const Gil&) = delete;
  Gil& operator=(const Gil&) = delete;
  bool acquired;
};

// Takes frames from the innermost outwards until it has enough; false if that is all it needs.
struct PlaceWalk {
  PlaceKey key{nullptr, 0, nullptr, 0};

  template <class At>
  bool takes(PyCodeObject* code, int kind, At&& at) {
    if (kind == USER) {
      key.outer = code;
      key.outer_at = at();
      return false;
    }
    if (kind == LIBRARY && key.inner == nullptr) {
      key.inner = code;
      key.inner_at = at();
    }
    return true;
  }
};

// The same as here() of place.py, by Python's own functions. The GIL is held.
inline int place_by_python(State& s, PyThreadState* thread) {
  PyFrameObject* frame = PyThreadState_GetFrame(thread);
  PlaceWalk walk;
  while (frame != nullptr) {
    PyCodeObject* code = PyFrame_GetCode(frame);
    const bool more = walk.takes(code, kind_of(s, code), [&] { return PyFrame_GetLasti(frame); });
    Py_DECREF(code);
    PyFrameObject* back = more ? PyFrame_GetBack(frame) : nullptr;
    Py_DECREF(frame);
    frame = back;
  }
  return number_of(s, walk.key);
}

// What a thread knows of code and places, so that it need not ask for the GIL.
struct KnownPlaces {
  ska::flat_hash_map<PyCodeObject*, int> kinds;
  ska::flat_hash_map<PlaceKey, int, HashOfPlace> numbers;
};

// A thread's own place; with the GIL or without.
inline int place_here(State& s, PyThreadState* thread) {
  if (!s.knows_frames) {
    const Gil gil(thread);
    return place_by_python(s, thread);
  }
  static thread_local KnownPlaces known;
  PlaceWalk walk;
  for (const RawFrame* frame = raw_frame(thread); frame != nullptr; frame = frame->previous) {
    PyCodeObject* const code = code_of(frame);
    if (code == nullptr) continue;
    auto kind = known.kinds.find(code);
    if (kind == known.kinds.end()) {
      const Gil gil(thread);
      kind = known.kinds.emplace(code, kind_of(s, code)).first;
    }
    if (!walk.takes(code, kind->second, [&] { return at_of(frame, code); })) break;
  }
  const auto number = known.numbers.find(walk.key);
  if (number != known.numbers.end()) return number->second;
  const Gil gil(thread);
  return known.numbers.emplace(walk.key, number_of(s, walk.key)).first->second;
}

inline py::object line_of(PyCodeObject* code, int at) {
  if (code == nullptr) return py::none();
  return py::make_tuple(py::handle(reinterpret_cast<PyObject*>(code)), PyCode_Addr2Line(code, at));
}

inline py::object place_at(State& s, int number) {
  if (number < 0) return py::none();
  const PlaceKey& key = s.places[size_t(number)];
  return py::make_tuple(line_of(key.inner, key.inner_at), line_of(key.outer, key.outer_at));
}

inline PyObject* alive(PyObject* weak) {
  PyObject* object = PyWeakref_GetObject(weak);
  return object == Py_None ? nullptr : object;
}

inline void enter_module(py::handle module) {
  State& s = state();
  PyObject* root = module_stack.empty() ? module.ptr() : module_stack.front().first;
  const ModuleKey key{root, module.ptr()};
  const auto found = s.module_numbers.find(key);
  int number;
  if (found != s.module_numbers.end() && alive(s.modules[size_t(found->second)].first) == root &&
      alive(s.modules[size_t(found->second)].second) == module.ptr()) {
    number = found->second;
  } else {
    number = int(s.modules.size());
    s.modules.emplace_back(PyWeakref_NewRef(root, nullptr),
                           PyWeakref_NewRef(module.ptr(), nullptr));
    s.module_numbers[key] = number;
  }
  module_stack.emplace_back(module.ptr(), number);
}

inline void leave_module(py::handle module, py::handle output) {
  while (!module_stack.empty()) {
    PyObject* top = module_stack.back().first;
    module_stack.pop_back();
    if (top == module.ptr()) break;
  }
  if (module_stack.empty()) state().on_result(module, output);
}

inline py::object module_at(State& s, int number) {
  if (number < 0) return py::none();
  PyObject* root = alive(s.modules[size_t(number)].first);
  PyObject* module = alive(s.modules[size_t(number)].second);
  if (root == nullptr || module == nullptr) return py::none();
  return py::make_tuple(py::handle(root), py::handle(module));
}

}  // namespace recorder
