// TrainStepSetup: what a train step is made of (train_step.h): the model and how it computes, what it
// starts from, and the ranks that make the step together. Free of LibTorch and protobuf.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "common/lora/lora_shape.h"
#include "common/model/model_config.h"
#include "common/model/numerics.h"
#include "common/model/quantisation_plan.h"
#include "common/weights/host_tensor.h"
#include "trainer/advantages/advantage_options.h"
#include "trainer/optimizer/bucket_plan.h"
#include "trainer/ranks/rank_collectives.h"
#include "trainer/weight_push/weight_cast.h"

namespace tandem::trainer {

struct TrainStepSetup {
  ModelConfig config;
  ComputeDType dtype = ComputeDType::kFp32;
  Numerics numerics = Numerics::kFast;
  QuantisationOptions fake_quantise;      // of policy and reference
  LoraOptions lora;                       // adapters that are trained in place of `weights`
  std::vector<HostTensor> lora_start;     // LoraTensors order; empty: InitialAdapters of `seed`
  uint64_t seed = 0;                      // of adapters and their dropout
  Device device = Device::kCpu;           // with kCuda, this thread's current device
  Rounding rounding = Rounding::kDither;  // of pushes, and so of the weights of kExact
  double temperature = 1;           // of the sampler: all log-probs are of the tempered policy
  AdvantageOptions advantage;       // of stage 3, used again by kl_place reward
  std::vector<HostTensor> weights;  // ModelTensors order; copied
  // The frozen reference policy; empty: none. NeedsReference(loss): its KL is trained on.
  std::vector<HostTensor> reference_weights;
  bool reference_is_base = false;  // with lora: it is the policy without its adapters
  // Of a critic with a backbone of its own; read where advantage.kind needs one.
  struct CriticStart {
    std::optional<ModelConfig> config;  // none: the policy's config and weights
    std::vector<HostTensor> weights;    // ModelTensors order, without a head
    std::optional<HostTensor> head;     // score.weight; none: zeros
  } critic;
  // The collectives of the ranks that make the step together, each with the same setup, options and
  // groups. They must outlive the step.
  RankCollectives collectives;
  BucketOptions buckets;
  bool checkpoint_activations = false;  // Policy::CheckpointActivations
};

}  // namespace tandem::trainer
