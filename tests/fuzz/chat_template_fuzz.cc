// Any text as chat_template.jinja: refused, or renders within its bounds of steps and output.
#include "tests/fuzz/tokenizer_files.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static tandem::testing::TokenizerFiles files;
  files.Write("chat_template.jinja", data, size);
  const auto tokenizer = tandem::Tokenizer::Load(files.path());
  if (!tokenizer.ok()) return 0;
  const auto text =
      (*tokenizer)
          ->RenderChat(
              R"([{"role":"system","content":"Be brief."},{"role":"user","content":"hi <b> é"}])",
              true);
  if (text.ok()) TANDEM_CHECK(text->size() <= (4u << 20));
  return 0;
}
