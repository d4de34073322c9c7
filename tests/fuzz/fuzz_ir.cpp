// Any bytes are a Fusion that prints and parses to itself, or a DataError.

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "ir/bind.h"
#include "ir/hash.h"
#include "ir/text.h"
#include "ir/verify.h"
#include "segfuse/error.h"

using namespace segfuse;  // NOLINT(google-build-using-namespace): a program of one function

namespace {

void require(bool holds) {
  if (!holds) std::abort();
}

void check(const ir::Fusion& fusion) {
  ir::verify(fusion);
  const std::string text = ir::print(fusion);
  const ir::Fusion again = ir::parse(text);
  require(ir::print(again) == text);
  require(ir::structural_hash(fusion) == ir::structural_hash(again));
  std::vector<Shape> shapes;
  for (const ir::Input& input : fusion.inputs())
    shapes.emplace_back(fusion.val(input.val).shape.size(), 3);
  try {
    (void)ir::bind(fusion, shapes);
  } catch (const UsageError&) {  // threes do not fit
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  try {
    check(ir::parse(text));
  } catch (const DataError&) {  // says what is wrong with the text
  }
  return 0;
}
