// Any text as tokenizer.json: refused, or encodes and decodes.
#include "tests/fuzz/tokenizer_files.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static tandem::testing::TokenizerFiles files;
  files.Write("tokenizer.json", data, size);
  const auto tokenizer = tandem::Tokenizer::Load(files.path());
  if (!tokenizer.ok()) return 0;
  const auto ids = (*tokenizer)->Encode("the cat <|im_end|> é 12");
  if (!ids.ok()) return 0;
  (void)(*tokenizer)->Decode(*ids, true);
  return 0;
}
