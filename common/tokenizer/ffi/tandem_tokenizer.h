/* The C ABI of the tokenizer crate (src/lib.rs): Hugging Face `tokenizers` and `minijinja` behind
 * plain functions. Used by common/tokenizer/tokenizer.cc only, but for the types and the freeing of
 * results, which tandem_parquet.h and tandem_table.h share. A panic inside the crate is returned as
 * TANDEM_TOKENIZER_INTERNAL. Functions on a const handle may be called from many threads. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct TandemTokenizer TandemTokenizer;

/* Bytes that the caller owns; `data` may be null when `size` is 0. */
typedef struct TandemBytes {
  const uint8_t* data;
  size_t size;
} TandemBytes;

enum {
  TANDEM_TOKENIZER_OK = 0,
  TANDEM_TOKENIZER_INVALID = 1,     /* bad input */
  TANDEM_TOKENIZER_NO_TEMPLATE = 2, /* the directory has no chat template */
  TANDEM_TOKENIZER_INTERNAL = 3,    /* a panic inside the crate */
};

/* The result of a call: on OK its value, else a UTF-8 message. The crate owns the memory; pass it to
 * tandem_tokenizer_free_result exactly once, whatever the status. For ids, `data` holds `size` / 4
 * native int32 with an alignment of 1. */
typedef struct TandemResult {
  int32_t status;
  uint8_t* data;
  size_t size;
  size_t capacity; /* of the crate's buffer */
} TandemResult;

/* Makes a tokenizer from the texts of tokenizer.json, tokenizer_config.json and chat_template.jinja;
 * the last two may be empty. On OK *handle is set and the result is empty. */
TandemResult tandem_tokenizer_new(TandemBytes tokenizer_json, TandemBytes config_json,
                                  TandemBytes chat_template, TandemTokenizer** handle);
void tandem_tokenizer_delete(TandemTokenizer* handle);
void tandem_tokenizer_free_result(TandemResult result);

/* `add_special_tokens`: with those that tokenizer.json puts around a text, such as a BOS. */
TandemResult tandem_tokenizer_encode(const TandemTokenizer* handle, TandemBytes text,
                                     int32_t add_special_tokens);
TandemResult tandem_tokenizer_decode(const TandemTokenizer* handle, const int32_t* ids,
                                     size_t count, int32_t skip_special_tokens);
/* `tools_json` is a JSON array for the template's `tools`, or empty for none; `variables_json` a JSON
 * object of further variables of the template, or empty for none. */
TandemResult tandem_tokenizer_render_chat(const TandemTokenizer* handle, TandemBytes messages_json,
                                          TandemBytes tools_json, TandemBytes variables_json,
                                          int32_t add_generation_prompt);

int32_t tandem_tokenizer_has_chat_template(const TandemTokenizer* handle);
int64_t tandem_tokenizer_vocab_size(const TandemTokenizer* handle);
int32_t tandem_tokenizer_eos_token_id(const TandemTokenizer* handle); /* -1: none */

/* Trains a byte-level BPE on `text` and returns its tokenizer.json. */
TandemResult tandem_tokenizer_train(TandemBytes text, int64_t vocab_size);

#ifdef __cplusplus
}
#endif
