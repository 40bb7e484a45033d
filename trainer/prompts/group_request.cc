#include "trainer/prompts/group_request.h"

#include "common/base/stable_random.h"
#include "common/weights/digest.h"

namespace tandem::trainer {

rollout::v1::SamplingParams MakeSampling(const TrainSamplingOptions& options) {
  rollout::v1::SamplingParams sampling;
  sampling.set_temperature(static_cast<float>(options.temperature));
  sampling.set_top_k(static_cast<int32_t>(options.top_k));
  sampling.set_top_p(static_cast<float>(options.top_p));
  sampling.set_min_p(static_cast<float>(options.min_p));
  sampling.set_max_new_tokens(static_cast<int32_t>(options.max_new_tokens));
  return sampling;
}

rollout::v1::GenerateGroupRequest MakeGroupRequest(const RunSampling& run,
                                                   const experience::v1::Prompt& prompt,
                                                   int64_t group_id, int64_t min_weight_version) {
  rollout::v1::GenerateGroupRequest request;
  request.set_run_id(run.run_id);
  request.set_group_id(group_id);
  *request.mutable_prompt_token_ids() = prompt.token_ids();
  request.set_prompt_hash(
      HashTokenIds({prompt.token_ids().data(), static_cast<size_t>(prompt.token_ids_size())}));
  request.set_num_completions(static_cast<int32_t>(run.completions_per_prompt));
  request.set_min_weight_version(min_weight_version);
  request.set_greedy_baseline(run.greedy_baseline);
  if (run.turns.has_value()) *request.mutable_turns() = *run.turns;
  rollout::v1::SamplingParams* const sampling = request.mutable_sampling();
  *sampling = run.sampling;
  sampling->set_seed(
      StableHash({static_cast<uint64_t>(run.seed), static_cast<uint64_t>(group_id)}));
  return request;
}

void BindOptions(OptionBinder& binder, TrainSamplingOptions& options) {
  binder.Number("temperature", &options.temperature, {.min = 1e-3}, "",
                "of the trained policy: all three log-probs use it");
  binder.Integer("max_new_tokens", &options.max_new_tokens, {.min = 1, .max = 2147483647}, "tokens",
                 "longest completion, stop token included");
  binder.Integer("top_k", &options.top_k, {.min = 0}, "",
                 "draw from the k most likely ids; the trainer re-scores over the same; 0: all");
  binder.Number("top_p", &options.top_p, {.min = 0, .max = 1}, "",
                "draw from the smallest set of this probability, likewise; 0 and 1: all");
  binder.Number("min_p", &options.min_p, {.min = 0, .max = 1}, "",
                "draw from ids of at least this share of the likeliest, likewise; 0: all");
  binder.Integer("min_new_tokens", &options.min_new_tokens, {.min = 0}, "tokens",
                 "must be 0 for training");
}

}  // namespace tandem::trainer
