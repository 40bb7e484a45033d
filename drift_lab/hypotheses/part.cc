#include "drift_lab/hypotheses/part.h"

namespace tandem::drift {
namespace {

struct Words {
  std::string_view name, description;
};

Words WordsOf(Part part) {
  switch (part) {
    case Part::kRecord:
      return {"record", "what the server recorded, against its own replay of the same ids"};
    case Part::kLogitNoise:
      return {"logit_noise", "Gaussian noise on the server's logits"};
    case Part::kHeavyTail:
      return {"heavy_tail", "noise on the server's logits, much larger for a few tokens"};
    case Part::kShift:
      return {"shift", "log-probs recorded at the wrong tokens"};
    case Part::kTemperature:
      return {"temperature", "a temperature the server did not disclose"};
    case Part::kTopP:
      return {"top_p", "a top-p the server did not disclose"};
    case Part::kTopK:
      return {"top_k", "a top-k the server did not disclose"};
    case Part::kMinP:
      return {"min_p", "a min-p the server did not disclose"};
    case Part::kFirstId:
      return {"first_id", "another id at the head of the prompts"};
    case Part::kBodyBits:
      return {"body_bits", "hidden rounding of the linear layers' inputs"};
    case Part::kHeadBits:
      return {"head_bits", "hidden rounding of the head's input and of the logits"};
    case Part::kKvBits:
      return {"kv_bits", "hidden rounding of the KV cache"};
    case Part::kRotaryBits:
      return {"rotary_bits", "hidden rounding of the rotary angles"};
    case Part::kKvQuantisation:
      return {"kv_quantisation", "a KV cache of integers"};
    case Part::kOtherVersion:
      return {"other_version", "weights of another version than claimed"};
    case Part::kInterpolation:
      return {"interpolation", "weights between two versions"};
    case Part::kTensor:
      return {"tensor", "a tensor of another version than claimed"};
    case Part::kStalePrefix:
      return {"stale_prefix", "KV of cached prompts from weights before"};
    case Part::kPath:
      return {"path", "decoding token by token, against the whole sequence at once"};
    case Part::kCarriedKv:
      return {"carried_kv", "KV kept across an install, against KV of the token's own version"};
    case Part::kEmulation:
      return {"emulation", "the serving engine, against the fp32 engine rounded like it"};
    case Part::kBody:
      return {"body", "precision of the linear layers' inputs"};
    case Part::kHead:
      return {"head", "cast of the head's matrix (the embedding too where they are tied)"};
    case Part::kKv:
      return {"kv", "precision of the KV cache"};
    case Part::kCast:
      return {"cast", "cast of the weights on their way to the server"};
    case Part::kKernels:
      return {"kernels", "the two forward passes, everything else equal"};
    case Part::kLayout:
      return {"layout", "completions packed in a row, against one each"};
    case Part::kStaleness:
      return {"staleness", "weights now, against those that drew the token"};
    case Part::kTrainerRecord:
      break;
  }
  return {"trainer_record", "what the trainer recorded, against its own replay"};
}

}  // namespace

std::string_view PartName(Part part) { return WordsOf(part).name; }
std::string_view PartDescription(Part part) { return WordsOf(part).description; }

bool IsPlace(Part part) {
  return part == Part::kRecord || part == Part::kTrainerRecord || part == Part::kEmulation;
}

bool IsDiagnosed(Part part) { return part > Part::kRecord && part < Part::kPath; }

}  // namespace tandem::drift
