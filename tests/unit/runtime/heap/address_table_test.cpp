// A table of addresses beside a map with the same content.

#include "runtime/tensors/address_table.h"

#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <random>
#include <utility>

namespace segfuse::runtime {
namespace {

const std::byte* at(std::uintptr_t number) {
  return reinterpret_cast<const std::byte*>(number * 256);
}

TEST(AddressTable, IsEmptyAtFirst) {
  AddressTable<int> table;
  EXPECT_EQ(table.size(), 0U);
  EXPECT_EQ(table.find(at(1)), nullptr);
}

/// Few addresses, so that most of them are pushed away from their places, and as many as grow the
/// table several times.
TEST(AddressTable, HasWhatAMapHas) {
  for (const std::uintptr_t addresses : {3U, 40U, 3000U}) {
    std::mt19937_64 random(addresses);
    AddressTable<std::unique_ptr<int>> table;
    std::map<const std::byte*, int> map;
    for (int step = 0; step < 50'000; ++step) {
      const std::byte* const address = at(1 + random() % addresses);
      auto* const found = table.find(address);
      ASSERT_EQ(found != nullptr, map.contains(address));
      if (found == nullptr) {
        table.insert(address, std::make_unique<int>(step));
        map[address] = step;
      } else {
        ASSERT_EQ(*found->value, map[address]);
        if (random() % 2 != 0) {
          ASSERT_EQ(*table.take(found), map[address]);
          map.erase(address);
        }
      }
      ASSERT_EQ(table.size(), map.size());
    }
    for (const auto& [address, value] : map) {
      auto* const found = table.find(address);
      ASSERT_NE(found, nullptr);
      EXPECT_EQ(*found->value, value);
    }
  }
}

}  // namespace
}  // namespace segfuse::runtime
