// The frames of Python in this thread, innermost first, without the GIL and without the objects
// that Python's own functions make of them: a thread's frames change only by itself.

#pragma once

#include <pybind11/pybind11.h>

namespace recorder {

// The beginning of a frame as Python has it. Whether it is so is tried out before it is used.
struct RawFrame {
#if PY_VERSION_HEX >= 0x030b0000 && PY_VERSION_HEX < 0x030c0000
  void *function, *globals, *builtins, *locals, *code, *object;
  RawFrame* previous;
  const char* at;
  int top;
  bool is_entry;
  char owner;
#elif PY_VERSION_HEX >= 0x030c0000 && PY_VERSION_HEX < 0x030e0000
  void* code;
  RawFrame* previous;
  void *function, *globals, *builtins, *locals, *object;
  const char* at;
  int top;
  uint16_t to_return;
  char owner;
#else
  void* code;
  RawFrame* previous;
  void *function, *globals, *builtins, *locals, *object;
  const char* at;
  void* top;
  uint16_t to_return;
  char owner;
#endif
};

#if PY_VERSION_HEX >= 0x030b0000 && PY_VERSION_HEX < 0x030f0000 && !defined(Py_GIL_DISABLED)
constexpr bool KNOWS_FRAMES = true;

inline RawFrame* raw_frame(PyThreadState* thread) {
#if PY_VERSION_HEX >= 0x030d0000
  return reinterpret_cast<RawFrame*>(thread->current_frame);
#else
  return reinterpret_cast<RawFrame*>(thread->cframe->current_frame);
#endif
}

// Null for a frame of Python's own, which no function runs in.
inline PyCodeObject* code_of(const RawFrame* frame) {
  constexpr char of_c = 3;
  if (frame->owner >= of_c) return nullptr;
  constexpr uintptr_t tags = 3;
  return reinterpret_cast<PyCodeObject*>(reinterpret_cast<uintptr_t>(frame->code) & ~tags);
}

// As PyFrame_GetLasti.
inline int at_of(const RawFrame* frame, const PyCodeObject* code) {
  const auto at = frame->at - reinterpret_cast<const char*>(code->co_code_adaptive);
  return at < 0 ? -1 : int(at);
}
#else
constexpr bool KNOWS_FRAMES = false;
inline RawFrame* raw_frame(PyThreadState*) { return nullptr; }
inline PyCodeObject* code_of(const RawFrame*) { return nullptr; }
inline int at_of(const RawFrame*, const PyCodeObject*) { return -1; }
#endif

// Whether the frames here are what Python says of them. The GIL is held.
inline bool frames_are_known() {
  if (!KNOWS_FRAMES) return false;
  PyThreadState* const thread = PyThreadState_Get();
  const RawFrame* raw = raw_frame(thread);
  PyFrameObject* frame = PyThreadState_GetFrame(thread);
  bool same = frame != nullptr;
  while (frame != nullptr) {
    while (raw != nullptr && code_of(raw) == nullptr) raw = raw->previous;
    PyCodeObject* const code = PyFrame_GetCode(frame);
    same = same && raw != nullptr && code_of(raw) == code &&
           at_of(raw, code) == PyFrame_GetLasti(frame);
    Py_DECREF(code);
    if (same) raw = raw->previous;
    PyFrameObject* const back = PyFrame_GetBack(frame);
    Py_DECREF(frame);
    frame = back;
  }
  while (same && raw != nullptr && code_of(raw) == nullptr) raw = raw->previous;
  return same && raw == nullptr;
}

}  // namespace recorder
