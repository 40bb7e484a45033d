// The safetensors Python package reads files that the project writes, and the other way round.
#include <gtest/gtest.h>

#include <cstring>
#include <fstream>
#include <string>
#include <vector>

#include "common/model/safetensors.h"
#include "tests/support/run_program.h"
#include "tests/support/status_matchers.h"
#include "tests/support/temp_dir.h"

namespace tandem {
namespace {

using testing::IsOk;
using testing::TempDir;

// Runs `script` with `path` as sys.argv[1]. True if it ends without an exception.
bool RunPython(const TempDir& dir, const std::string& script, const std::string& path) {
  std::ofstream(dir / "script.py") << script;
  return testing::RunProgram({TANDEM_PYTHON, dir / "script.py", path}) == 0;
}

TEST(SafetensorsInterop, ReadsWhatThePythonPackageWrote) {
  const TempDir dir;
  ASSERT_TRUE(RunPython(dir, R"(
import sys, numpy, safetensors.numpy
safetensors.numpy.save_file({
    "odd": numpy.array([7], dtype=numpy.uint8),
    "half": numpy.array([1.5, -2.0], dtype=numpy.float16),
    "matrix": numpy.arange(6, dtype=numpy.float32).reshape(2, 3),
}, sys.argv[1], metadata={"note": "made by python \u00e9"})
)",
                        dir / "f.safetensors"));
  const auto file = ReadSafetensors(dir / "f.safetensors");
  ASSERT_THAT(file, IsOk());
  EXPECT_EQ(file->metadata.at("note"), "made by python \xC3\xA9");
  ASSERT_EQ(file->tensors.size(), 3u);
  for (const HostTensor& tensor : file->tensors) {
    if (tensor.spec.name == "odd") {
      EXPECT_EQ(tensor.spec, (TensorSpec{"odd", DType::kU8, {1}}));
      EXPECT_EQ(tensor.bytes[0], std::byte{7});
    } else if (tensor.spec.name == "half") {
      EXPECT_EQ(tensor.spec, (TensorSpec{"half", DType::kF16, {2}}));
      EXPECT_EQ(tensor.bytes[1], std::byte{0x3E});  // 1.5 is 0x3E00
    } else {
      EXPECT_EQ(tensor.spec, (TensorSpec{"matrix", DType::kF32, {2, 3}}));
      std::vector<float> values(6);
      std::memcpy(values.data(), tensor.bytes.data(), tensor.bytes.size());
      EXPECT_EQ(values, (std::vector<float>{0, 1, 2, 3, 4, 5}));
    }
  }
}

TEST(SafetensorsInterop, WritesWhatThePythonPackageReads) {
  const TempDir dir;
  const std::vector<float> matrix = {0, 1, 2, 3, 4, 5};
  const std::vector<int64_t> ids = {-1, 9};
  const std::vector<HostTensor> tensors = {
      {.spec = {"matrix", DType::kF32, {2, 3}},
       .bytes = std::as_bytes(std::span(matrix)),
       .owner = nullptr},
      {.spec = {"none", DType::kF32, {0}}, .bytes = {}, .owner = nullptr},
      {.spec = {"ids", DType::kI64, {2}},
       .bytes = std::as_bytes(std::span(ids)),
       .owner = nullptr}};
  ASSERT_THAT(WriteSafetensors(dir / "f.safetensors", tensors, {{"step", "3"}}), IsOk());
  EXPECT_TRUE(RunPython(dir, R"(
import sys, safetensors
with safetensors.safe_open(sys.argv[1], framework="numpy") as f:
    assert f.metadata() == {"format": "pt", "step": "3"}, f.metadata()
    assert set(f.keys()) == {"matrix", "none", "ids"}, f.keys()
    assert f.get_tensor("matrix").tolist() == [[0, 1, 2], [3, 4, 5]]
    assert f.get_tensor("none").shape == (0,)
    assert f.get_tensor("ids").tolist() == [-1, 9]
)",
                        dir / "f.safetensors"));
}

}  // namespace
}  // namespace tandem
