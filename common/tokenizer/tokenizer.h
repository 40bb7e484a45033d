// Tokenizer: text <-> ids and chat templates of a Hugging Face directory, through the `tokenizers`
// and `minijinja` crates (common/tokenizer/ffi). Immutable after Load. Thread-safe.
#ifndef TANDEM_COMMON_TOKENIZER_TOKENIZER_H_
#define TANDEM_COMMON_TOKENIZER_TOKENIZER_H_

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
  // Reads tokenizer.json, and tokenizer_config.json and chat_template.jinja where present (the file
  // wins over the template in tokenizer_config.json).
  //   NOT_FOUND         no tokenizer.json
  //   INVALID_ARGUMENT  a file does not parse (named)
  static absl::StatusOr<std::unique_ptr<Tokenizer>> Load(const std::string& directory);

  ~Tokenizer();
  Tokenizer(const Tokenizer&) = delete;
  Tokenizer& operator=(const Tokenizer&) = delete;

  // Ids of `text`; no special tokens are added, those written in the text are recognised.
  //   INVALID_ARGUMENT  not UTF-8
  absl::StatusOr<std::vector<int32_t>> Encode(std::string_view text) const;

  // Text of `ids`, invalid UTF-8 as U+FFFD.
  //   INVALID_ARGUMENT  an id outside the vocabulary
  absl::StatusOr<std::string> Decode(std::span<const int32_t> ids, bool skip_special_tokens) const;

  // Renders the chat template over `messages_json`, a JSON array of {"role", "content", ...}.
  //   UNIMPLEMENTED        the directory has no chat template
  //   INVALID_ARGUMENT     empty or bad messages; the template raised; it used more than 2 million
  //                        steps or wrote more than 4 MiB (stated)
  absl::StatusOr<std::string> RenderChat(std::string_view messages_json,
                                         bool add_generation_prompt) const;

  bool has_chat_template() const;
  int64_t vocab_size() const;                        // with added tokens
  int32_t eos_token_id() const;                      // of tokenizer_config.json; -1: none
  const std::string& hash() const { return hash_; }  // XXH3-128 of tokenizer.json, hex

  // Trains a byte-level BPE of `vocab_size` tokens on `text` with special tokens <|endoftext|> (id
  // 0),
  // <|im_start|> (1), <|im_end|> (2), then the 256 bytes, digits split one by one, and returns
  // tokenizer.json. Fewer tokens come out when the text has no more pairs to merge.
  //   INVALID_ARGUMENT  vocab_size < 259 (3 special tokens + 256 bytes) or > 2^24; empty text; not
  //                     UTF-8
  static absl::StatusOr<std::string> TrainByteLevelBpe(std::string_view text, int64_t vocab_size);

 private:
  explicit Tokenizer(void* handle);
  void* const handle_;
  std::string hash_;
};

}  // namespace tandem

#endif  // TANDEM_COMMON_TOKENIZER_TOKENIZER_H_
