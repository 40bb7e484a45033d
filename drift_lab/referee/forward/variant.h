// Variant: everything about a forward pass that the referee can play differently from the model's
// own definition, and SamplerSettings: what happens to logits afterwards. A suspect (suspects.h) is
// one Variant or one SamplerSettings. Free of LibTorch. Plain data.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace tandem::drift {

// How the matrices of a model are rounded. Groups run along a row of a matrix. A row that does not
// divide into the groups of a format is rounded as the format's fallback in llama.cpp is.
enum class WeightFormat : uint8_t {
  kOwn,
  kInt8Tensor,
  kInt8Channel,
  kInt8Group128,
  kQ8Block32,  // llama.cpp's q8_0: int8 in blocks of 32, the scale in fp16
  kFp8Tensor,  // e4m3
  kFp8Channel,
  kInt4Group32,  // symmetrical, levels -7..7
  kInt4Group64,
  kInt4Group128,
  kInt4Channel,
  kQ4Block32,     // llama.cpp's q4_0: 16 levels, the largest value on level -8
  kQ5Block32,     // q5_0
  kAsym4Group32,  // 16 levels between the smallest and the largest value
  kAsym4Group64,
  kAsym4Group128,
  kAsym8Channel,
  kQ4K,        // llama.cpp's q4_K
  kQ6K,        // q6_K
  kQ4KMedium,  // Q4_K_M: q6_K for some matrices, q4_K for the others (FormatOfMatrix)
};
// The format of one matrix of a model that is stored in `format`; `matrix` is its Hugging Face name.
WeightFormat FormatOfMatrix(WeightFormat format, const std::string& matrix, int64_t layer,
                            int64_t num_layers);
const char* WeightFormatName(WeightFormat format);  // "int8, one scale per channel", ...

enum class Precision : uint8_t { kFp32, kBf16, kFp16 };  // kFp16: of sites alone

enum class PromptEdit : uint8_t {
  kNone,
  kDropFirst,    // the first `edit_tokens` tokens are missing
  kDropIds,      // `edit_ids` are missing where the prompt begins with them
  kPrepend,      // `edit_ids` stand before the prompt
  kDoubleFirst,  // the first token is there twice
  kDropLast,     // the last `edit_tokens` tokens of the prompt are missing
  kSwapFirst,    // the first `edit_tokens` tokens are replaced by `edit_ids`
  kKeepLast,     // longer prompts have lost all but their last `edit_tokens` tokens
  kKeepFirst,    // longer prompts have lost all but their first `edit_tokens` tokens
};

struct Variant {
  PromptEdit edit = PromptEdit::kNone;
  int64_t edit_tokens = 0;
  std::vector<int32_t> edit_ids;

  double rope_theta_factor = 1;
  double rope_scale = 1;           // positions are divided by it
  int64_t completion_gap = 0;      // positions of drawn tokens are this much further
  bool positions_restart = false;  // at the first drawn token
  bool rope_interleaved = false;
  double rms_norm_eps = -1;  // below 0: the model's
  int64_t window = 0;        // tokens that attention sees, its own included; 0: all
  int64_t sinks = 0;         // first tokens that a window leaves visible
  int64_t hidden_first = 0;  // first tokens that nothing after them sees
  double attention_scale = 1;
  double attention_softcap = 0;
  bool gelu = false;         // in place of SiLU
  bool unnormed_qk = false;  // Qwen3 without its norms of queries and keys
  bool no_bias = false;

  // Weights of the other directory: layers by index, embedding and final norm, head.
  std::vector<bool> other_layers;
  bool other_embedding = false, other_head = false, other_norm = false;
  double other_share = 1;  // own + share * (other - own)

  WeightFormat format = WeightFormat::kOwn;
  bool format_embedding = false;  // the embedding and the head too
  bool activations_q8 = false;    // inputs of matrices rounded to int8, as llama.cpp does
  int kv_bits = 0;                // 8 or 4: keys and values, one scale per token and head
  bool kv_fp8 = false;

  Precision precision = Precision::kFp32;
  // Sites that are rounded in a pass of kFp32.
  Precision logits = Precision::kFp32;
  bool scores_bf16 = false;  // of attention, before the softmax
};

// Applied in this order: soft cap, penalties, ban of end tokens, temperature, top-k, top-p, min-p,
// typical-p.
struct SamplerSettings {
  double temperature = 1;
  int64_t top_k = 0;  // 0: off
  double top_p = 1, min_p = 0;
  double typical_p = 1;  // Meister et al. 2023, as TypicalLogitsWarper of transformers
  double repetition_penalty = 1, frequency_penalty = 0, presence_penalty = 0;
  bool repetition_of_drawn_only = false;  // else of the prompt's tokens as well
  int64_t min_tokens = 0;                 // end tokens are banned before
  double soft_cap = 0;                    // cap * tanh(logit / cap)
  bool renormalised = true;               // after the filters
  bool temperature_last = false;          // the filters look at the distribution before it

  friend bool operator==(const SamplerSettings&, const SamplerSettings&) = default;
};

// "temperature 0.7, top-k 20"; "the model's distribution as it is" for the defaults.
std::string SettingsText(const SamplerSettings& settings);

}  // namespace tandem::drift
