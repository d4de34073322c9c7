#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>

#include "base/os/file.h"
#include "segfuse/error.h"
#include "segfuse/ops.h"
#include "support/files.h"

namespace segfuse {
namespace {

using ::testing::HasSubstr;

/// A file as NumPy writes it.
std::string npy(std::string header, const std::string& data) {
  header.append(63 - (10 + header.size()) % 64, ' ');
  header += '\n';
  return std::string("\x93NUMPY\x01\x00", 8) + static_cast<char>(header.size() & 0xFF) +
         static_cast<char>(header.size() >> 8) + header + data;
}

std::string bytes_of(const std::vector<float>& values) {
  std::string bytes(values.size() * sizeof(float), '\0');
  std::memcpy(bytes.data(), values.data(), bytes.size());
  return bytes;
}

class Npy : public ::testing::Test {
 protected:
  std::filesystem::path write(const std::string& content) const {
    const std::filesystem::path path = folder / "x.npy";
    write_file_atomically(path, content);
    return path;
  }
  void refuses(const std::string& content, const std::string& reason) const {
    try {
      (void)read_npy(write(content));
      ADD_FAILURE() << "was read: " << reason;
    } catch (const DataError& error) {
      EXPECT_THAT(error.what(), HasSubstr("x.npy: "));
      EXPECT_THAT(error.what(), HasSubstr(reason));
    }
  }
  test::TemporaryDirectory folder;
};

TEST_F(Npy, EveryTypeAndRankComesBack) {
  for (const DType dtype : {DType::kBool, DType::kI32, DType::kI64, DType::kF16, DType::kBF16,
                            DType::kF32, DType::kF64})
    for (const Shape& shape : {Shape{}, Shape{3}, Shape{0, 2}, Shape{2, 3, 1}}) {
      Tensor tensor = Tensor::zeros(dtype, shape);
      for (std::int64_t i = 0; i < tensor.size(); i += 2) tensor.set(i, 1);
      const std::filesystem::path path = folder / "y.npy";
      write_npy(path, tensor);
      EXPECT_EQ(std::filesystem::file_size(path), 128 + tensor.bytes());
      const Tensor again = read_npy(path);
      EXPECT_EQ(again.dtype(), dtype);
      EXPECT_EQ(again.shape(), shape);
      for (std::int64_t i = 0; i < tensor.size(); ++i) EXPECT_EQ(again.at(i), tensor.at(i));
    }
}

TEST_F(Npy, WhatNumPyWrites) {
  const std::string data = bytes_of({1, 2, 3, 4, 5, 6});
  const Tensor rows =
      read_npy(write(npy("{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }", data)));
  EXPECT_EQ(rows.shape(), (Shape{2, 3}));
  EXPECT_EQ(rows.at(1), 2);
  const Tensor columns =
      read_npy(write(npy("{'descr': '<f4', 'fortran_order': True, 'shape': (2, 3), }", data)));
  EXPECT_EQ(columns.shape(), (Shape{2, 3}));
  EXPECT_EQ(columns.at(1), 3);  // element [0, 1]
  EXPECT_EQ(columns.at(3), 2);  // element [1, 0]
}

TEST_F(Npy, WhatIsWrongIsSaid) {
  const std::string data = bytes_of({1, 2});
  refuses("", "is not a .npy file");
  refuses("PK\x03\x04 and so on and on", "is not a .npy file");
  refuses(npy("{'descr': '>f4', 'fortran_order': False, 'shape': (2,), }", data), "type '>f4'");
  refuses(npy("{'descr': '<c8', 'fortran_order': False, 'shape': (1,), }", data), "type '<c8'");
  refuses(npy("{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (2,), }", data),
          "several fields");
  refuses(npy("{'descr': '<f4', 'fortran_order': False, 'shape': (3,), }", data),
          "holds 8 bytes of elements, expected 12 for f32[3]");
  refuses(npy("{'descr': '<f4', 'fortran_order': False, 'shape': (1,), }", data), "expected 4");
  refuses(npy("{'descr': '<f4', 'fortran_order': False, "
              "'shape': (4611686018427387904, 4611686018427387904), }",
              data),
          "holds 8 bytes");
  refuses(npy("{'descr': '<f4', 'fortran_order': False, 'shape': (-2,), }", data), "header");
  refuses(npy("{'descr': '<f4', 'fortran_order': 2, 'shape': (2,), }", data), "header");
  refuses(npy("{'descr': '<f4', 'shape': (2,), }", data), "header");
  refuses(npy("{'descr': '<f4', 'fortran_order': False, 'shape': (2,)", data), "header");
  refuses(npy("{'descr': '<f4'", data).substr(0, 40), "is cut short");
  std::string version = npy("{}", data);
  version[6] = 9;
  refuses(version, "version 9");
}

}  // namespace
}  // namespace segfuse
