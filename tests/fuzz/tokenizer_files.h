// A small tokenizer's directory in which one file is the fuzzer's.
#pragma once

#include <cstdint>
#include <fstream>
#include <string>

#include "common/base/check.h"
#include "common/tokenizer/tokenizer.h"
#include "tests/support/temp_dir.h"

namespace tandem::testing {

class TokenizerFiles {
 public:
  TokenizerFiles() {
    const auto json = Tokenizer::TrainByteLevelBpe("the cat and the hat and the bat 1234", 270);
    TANDEM_CHECK(json.ok());
    std::ofstream(directory_ / "tokenizer.json") << *json;
    std::ofstream(directory_ / "tokenizer_config.json") << R"({"eos_token": "<|im_end|>"})";
  }

  void Write(const char* name, const uint8_t* data, size_t size) {
    std::ofstream(directory_ / name, std::ios::binary)
        .write(reinterpret_cast<const char*>(data), static_cast<std::streamsize>(size));
  }
  std::string path() const { return directory_.path(); }

 private:
  TempDir directory_;
};

}  // namespace tandem::testing
