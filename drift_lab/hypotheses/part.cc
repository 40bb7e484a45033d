#include "drift_lab/hypotheses/part.h"

#include <iterator>

namespace tandem::drift {
namespace {

struct Words {
  std::string_view name, description;
};

// In the order of the enumeration.
constexpr Words kWords[] = {
    {"record", "what the server recorded, against its own replay of the same ids"},
    {"logit_noise", "Gaussian noise on the server's logits"},
    {"heavy_tail", "noise on the server's logits, much larger for a few tokens"},
    {"shift", "log-probs recorded at the wrong tokens"},
    {"temperature", "a temperature the server did not disclose"},
    {"top_p", "a top-p the server did not disclose"},
    {"top_k", "a top-k the server did not disclose"},
    {"min_p", "a min-p the server did not disclose"},
    {"first_id", "another id at the head of the prompts"},
    {"body_bits", "hidden rounding of the linear layers' inputs"},
    {"head_bits", "hidden rounding of the head's input and of the logits"},
    {"kv_bits", "hidden rounding of the KV cache"},
    {"rotary_bits", "hidden rounding of the rotary angles"},
    {"kv_quantisation", "a KV cache of integers"},
    {"weight_format", "weights in a number format that the server did not disclose"},
    {"other_version", "weights of another version than claimed"},
    {"interpolation", "weights between two versions"},
    {"tensor", "a tensor of another version than claimed"},
    {"stale_prefix", "KV of cached prompts from weights before"},
    {"path", "decoding token by token, against the whole sequence at once"},
    {"carried_kv", "KV kept across an install, against KV of the token's own version"},
    {"unmerged", "adapters applied beside the server's weights, against merged into them"},
    {"quantisation", "weights and KV cache in eight or four bits, as the server says"},
    {"emulation", "the serving engine, against the fp32 engine rounded like it"},
    {"body", "precision of the linear layers' inputs"},
    {"head", "cast of the head's matrix (the embedding too where they are tied)"},
    {"kv", "precision of the KV cache"},
    {"cast", "cast of the weights on their way to the server"},
    {"kernels", "the two forward passes, everything else equal"},
    {"layout", "completions packed in a row, against one each"},
    {"staleness", "weights now, against those that drew the token"},
    {"trainer_record", "what the trainer recorded, against its own replay"},
};
static_assert(std::size(kWords) == static_cast<size_t>(Part::kTrainerRecord) + 1);

}  // namespace

std::string_view PartName(Part part) { return kWords[static_cast<size_t>(part)].name; }
std::string_view PartDescription(Part part) {
  return kWords[static_cast<size_t>(part)].description;
}

bool IsPlace(Part part) {
  return part == Part::kRecord || part == Part::kTrainerRecord || part == Part::kEmulation;
}

}  // namespace tandem::drift
