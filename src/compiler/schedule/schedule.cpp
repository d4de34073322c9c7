#include "compiler/schedule/schedule.h"

#include <fmt/format.h>

namespace segfuse::compiler {

bool spare_registers(Schedule& schedule) {
  if (schedule.resident > 1) {
    schedule.resident = 1;
  } else if (schedule.unroll > 1) {
    schedule.unroll /= 2;
  } else {
    return false;
  }
  return true;
}

std::string to_string(const Schedule& schedule) {
  const Schedule plain;
  std::string text = schedule.target == Target::kCpu ? "cpu" : "cuda";
  auto note = [&](const char* name, std::int64_t value, std::int64_t usual) {
    if (value != usual) text += fmt::format(" {} {}", name, value);
  };
  note("vector", schedule.vector, plain.vector);
  note("unroll", schedule.unroll, plain.unroll);
  note("lanes", schedule.lanes, plain.lanes);
  note("tile", schedule.tile, plain.tile);
  note("cross", schedule.cross, plain.cross);
  if (schedule.hold == Hold::kScratch) text += " hold scratch";
  if (schedule.hold == Hold::kRegister) text += " hold registers";
  note("row", schedule.row, plain.row);
  note("split", schedule.split, plain.split);
  note("rows", schedule.rows, plain.rows);
  note("joined", schedule.joined, plain.joined);
  if (schedule.staged) text += " staged";
  note("threads", schedule.threads, plain.threads);
  note("rows-at-once", schedule.rows_at_once, plain.rows_at_once);
  note("resident", schedule.resident, plain.resident);
  if (schedule.narrow) text += " narrow";
  if (schedule.filled) text += " filled";
  note("strip", schedule.strip, plain.strip);
  note("strip-row", schedule.strip_row, plain.strip_row);
  return text;
}

}  // namespace segfuse::compiler
