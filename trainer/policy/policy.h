// Policy: the trainer's own forward of the model. It is differentiable, and works on packed rows in
// which a group's prompt stands once. Target, proximal and reference log-probs are all computed
// here (stages 5 and 7).
//
// Parameters are fp32 masters. With ComputeDType::kBf16 the linear layers compute on a cast that is
// made once per change of weights; norms, attention, residual stream, logits and log-softmax stay
// fp32. The split of completions into rows changes results by rounding only. Use from one thread.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/model/model_config.h"
#include "common/model/numerics.h"
#include "common/model/quantisation_plan.h"
#include "common/weights/host_tensor.h"
#include "trainer/experience/packed_rows.h"
#include "trainer/policy/adapters/policy_adapters.h"
#include "trainer/policy/named_parameter.h"
#include "trainer/policy/pass_watch.h"
#include "trainer/weight_push/weight_cast.h"

namespace tandem::trainer {

// The tensor as fp32, contiguous: a view of its bytes where they are that already.
//   INVALID_ARGUMENT  not of a float dtype
absl::StatusOr<at::Tensor> AsMaster(const HostTensor& tensor);

// Per-token results, on the host, [T] in the row's order; entries where the row has no target token
// are 0.
struct TokenScores {
  at::Tensor logprobs;   // [T] float32, tempered; has a gradient after Score(.., true)
  at::Tensor entropies;  // [T] float32; has a gradient where PassOptions asks for it
  // [R, E] float32 on the policy's device: the final normed hidden states at PassOptions::hidden_at,
  // for a head on top (trainer/critic/score_head.h). Has a gradient like the log-probs.
  at::Tensor hidden;
};

// What one pass over a row is asked for.
struct PassOptions {
  double temperature = 1;
  bool with_gradient = false;
  bool logprobs = true;                 // false: of a model that is a trunk only
  bool entropy_gradient = false;        // with_gradient, of the entropies too
  std::vector<int64_t> hidden_at = {};  // tokens of the row, in any order and repeated
  // Of a policy with adapters. Without them it is the model that they were added to: the reference
  // policy of a run, without a second copy.
  LoraPass lora = {};
};

// What a policy has beside the model.
struct PolicyForm {
  QuantisationPlan quantised;  // of this model, or without layers: what servers quantise
  LoraOptions lora;
};

class Policy {
 public:
  // Tensors of any float dtype, in ModelTensors order (MatchModelTensors), become fp32 masters.
  // With Numerics::kExact the forward runs the engine's kernels over the masters as a push sends
  // them to a server of `dtype`, and gradients go straight through the cast to the masters. On a
  // device, masters and gradients lie there, and the head takes bf16 in too: its inputs as two
  // parts, 16 significand bits.
  // Where `form.quantised` quantises a matrix, the forward has the weights that a
  // server with that plan makes of a push of the masters, and gradients go straight through to the
  // masters (fake quantisation, as in Jacob et al. 2018); kExact also quantises inputs as the server
  // does.
  //   INVALID_ARGUMENT  a tensor is missing (named) or of no float dtype; errors of LoraModules;
  //                     adapters with dropout and kExact, or with a plan that quantises and kFast
  //   FAILED_PRECONDITION  a device in a build without CUDA
  //   UNIMPLEMENTED     sizes that the kernels of a device do not take; a plan that quantises, or
  //                     adapters, with kExact on a device
  static absl::StatusOr<std::unique_ptr<Policy>> Create(const ModelConfig& config,
                                                        const std::vector<HostTensor>& tensors,
                                                        ComputeDType dtype, bool trainable,
                                                        Numerics numerics = Numerics::kFast,
                                                        Device device = Device::kCpu,
                                                        const PolicyForm& form = {});
  // The same with masters that have no memory yet (tensor_memory.h). The caller gives it, fills
  // them and calls WeightsChanged.
  static absl::StatusOr<std::unique_ptr<Policy>> CreateUnfilled(const ModelConfig& config,
                                                                ComputeDType dtype, bool trainable,
                                                                Numerics numerics,
                                                                Device device = Device::kCpu,
                                                                const PolicyForm& form = {});
  ~Policy();

  // Log-probs of row.token_ids[t] given what it may attend to, where row.is_target[t], over
  // row.support[t] where it has one. Logits are divided by `temperature`. fp32 logits exist for a
  // chunk of rows at a time only. With a gradient, backward() of what is made of the log-probs adds
  // to the masters' grad(), once per result, and the policy must outlive it.
  //   INVALID_ARGUMENT  an id outside the vocabulary; a target with nothing before it
  //   INTERNAL          a kernel failed (message from LibTorch)
  absl::StatusOr<TokenScores> Score(const PackedRow& row, double temperature, bool with_gradient) {
    return Run(row, {.temperature = temperature, .with_gradient = with_gradient});
  }
  // The same for whatever one pass can give. backward() of all results that have a gradient must be
  // called at once. Without log-probs, those and the entropies are undefined.
  absl::StatusOr<TokenScores> Run(const PackedRow& row, const PassOptions& options);

  // From now on a pass with a gradient keeps only the input of each layer, and its backward pass
  // computes the rest again, bit for bit (activation checkpointing, Chen et al. 2016): about a
  // tenth of the memory for a quarter more time.
  void CheckpointActivations(bool checkpoint);

  // To be called after masters changed: drops the casts. `rounding` is that of the next push, for
  // kExact; weights that were never updated are cast to nearest, as a server does when it loads
  // them.
  void WeightsChanged(Rounding rounding = Rounding::kNearest);

  // To be called after the masters of base() changed too.
  void BaseChanged();

  // Sets the calls for every stage of every pass from now on. A row without targets has no passes.
  void Watch(PassWatch watch);

  // Makes the watch's calls for a pass without a row, where other ranks have one row more.
  void RunEmptyPass(Pass pass);

  // The parameters that each stage uses. A head that is tied to the embedding is in the first and
  // in the last.
  const std::vector<std::vector<size_t>>& stages() const;
  const std::vector<NamedParameter>& parameters() const;  // what is trained
  // With adapters: the model's tensors, in ModelTensors order, which stay as they are.
  const std::vector<NamedParameter>& base() const;
  const PolicyAdapters& adapters() const;
  const ModelConfig& config() const;

 private:
  struct Impl;
  explicit Policy(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace tandem::trainer
