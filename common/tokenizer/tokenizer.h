// Tokenizer: converts between text and ids and renders chat templates, as a Hugging Face directory
// defines them, through the `tokenizers` and `minijinja` crates (common/tokenizer/ffi). Immutable
// after Load. Thread-safe.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace tandem {

class Tokenizer {
 public:
  // Reads tokenizer.json and, where present, tokenizer_config.json and chat_template.jinja, which
  // takes precedence over the template in tokenizer_config.json.
  //   NOT_FOUND         no tokenizer.json
  //   INVALID_ARGUMENT  a file cannot be parsed (named)
  static absl::StatusOr<std::unique_ptr<Tokenizer>> Load(const std::string& directory);

  ~Tokenizer();
  Tokenizer(const Tokenizer&) = delete;
  Tokenizer& operator=(const Tokenizer&) = delete;

  // The ids of `text`. Special tokens written in the text are recognised. `add_special_tokens`: also
  // with those that tokenizer.json puts around a text, such as a BOS.
  //   INVALID_ARGUMENT  not UTF-8
  absl::StatusOr<std::vector<int32_t>> Encode(std::string_view text,
                                              bool add_special_tokens = false) const;

  // The text of `ids`, with invalid UTF-8 as U+FFFD.
  //   INVALID_ARGUMENT  an id outside the vocabulary
  absl::StatusOr<std::string> Decode(std::span<const int32_t> ids, bool skip_special_tokens) const;

  // Renders the chat template over `messages_json`, a JSON array of {"role", "content", ...}, and
  // `tools_json`, a JSON array of the tools that the template describes, or empty for none.
  // `variables_json`: a JSON object of further variables of the template ("enable_thinking"), which
  // win over all others, or empty for none.
  //   UNIMPLEMENTED     the directory has no chat template
  //   INVALID_ARGUMENT  the messages are empty or malformed, the tools are no array of objects, the
  //                     variables no object, or the template raised an error, used more than 2
  //                     million steps or wrote more than 4 MiB (stated)
  absl::StatusOr<std::string> RenderChat(std::string_view messages_json, bool add_generation_prompt,
                                         std::string_view tools_json = {},
                                         std::string_view variables_json = {}) const;

  bool has_chat_template() const;
  int64_t vocab_size() const;                        // added tokens included
  int32_t eos_token_id() const;                      // from tokenizer_config.json; -1: none
  const std::string& hash() const { return hash_; }  // XXH3-128 of tokenizer.json, hex

  // Trains a byte-level BPE of `vocab_size` tokens on `text` and returns its tokenizer.json. The
  // first ids are the special tokens <|endoftext|> (0), <|im_start|> (1) and <|im_end|> (2),
  // followed by the 256 bytes; digits are split one by one. There are fewer tokens if the text runs
  // out of pairs to merge.
  //   INVALID_ARGUMENT  vocab_size < 259 (3 special tokens + 256 bytes) or > 2^24; empty text; not
  //                     UTF-8
  static absl::StatusOr<std::string> TrainByteLevelBpe(std::string_view text, int64_t vocab_size);

 private:
  explicit Tokenizer(void* handle);
  void* const handle_;
  std::string hash_;
};

}  // namespace tandem
