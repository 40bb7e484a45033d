// Policy: the trainer's own forward of the model: differentiable, over packed rows in which a
// group's prompt stands once. Target, proximal and reference log-probs all come from here (arrows 5
// and 7).
//
// Parameters are fp32 masters; with ComputeDType::kBf16 the linear layers run on a cast made once
// per weight change; norms, attention, residual stream, logits and log-softmax stay fp32. Use from
// one thread. Same result for any split of the same completions into rows (to rounding).
#ifndef TANDEM_TRAINER_POLICY_POLICY_H_
#define TANDEM_TRAINER_POLICY_POLICY_H_

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/model/compute_dtype.h"
#include "common/model/device.h"
#include "common/model/model_config.h"
#include "common/model/numerics.h"
#include "common/weights/host_tensor.h"
#include "trainer/experience/packed_rows.h"
#include "trainer/weight_push/weight_cast.h"

namespace tandem::trainer {

struct NamedParameter {
  std::string name;   // Hugging Face name
  at::Tensor master;  // fp32, contiguous; a leaf that requires grad (except in a frozen policy)
};

// The tensor as fp32, contiguous: a view of its bytes where they are that already.
//   INVALID_ARGUMENT  not of a float dtype
absl::StatusOr<at::Tensor> AsMaster(const HostTensor& tensor);

// Per-token results, on the host, [T] in the row's order; entries where the row has no target token
// are 0.
struct TokenScores {
  at::Tensor
      logprobs;  // [T] float32 of the tempered distribution; has a gradient in Score(.., true)
  at::Tensor entropies;  // [T] float32, detached
};

// A pass over the model goes through its stages: forward from the embedding to the head, backward
// from the head to the embedding. Stages are counted as backward comes to them: 0 the head and the
// final norm, then the layers from the last, at the end the embedding.
enum class Pass { kForward, kBackward };

// What is told of a pass, from the thread that makes it.
struct PassWatch {
  // Before a stage reads its parameters' masters, or writes their gradients; after it did. After a
  // backward stage nothing more is added in this pass to the gradients of parameters that no later
  // stage uses.
  std::function<void(Pass pass, size_t stage)> begin, end;
  // Masters are there only from begin to end: nothing that was made of them is kept.
  bool masters_come_and_go = false;
};

class Policy {
 public:
  // Tensors of any float dtype, in ModelTensors order (MatchModelTensors), become fp32 masters.
  // With Numerics::kExact the forward runs the engine's kernels over the masters as a push sends
  // them to a server of `dtype`, and gradients go straight through the cast to the masters. On a
  // device, masters and gradients lie there, and the head takes bf16 in too: its inputs as two
  // parts, 16 significand bits.
  //   INVALID_ARGUMENT  a tensor is missing (named) or of no float dtype
  //   FAILED_PRECONDITION  a device in a build without CUDA
  //   UNIMPLEMENTED     sizes that the kernels of a device do not take
  static absl::StatusOr<std::unique_ptr<Policy>> Create(const ModelConfig& config,
                                                        const std::vector<HostTensor>& tensors,
                                                        ComputeDType dtype, bool trainable,
                                                        Numerics numerics = Numerics::kFast,
                                                        Device device = Device::kCpu);
  // The same with masters that have no memory yet (tensor_memory.h): whoever gives it and fills
  // them calls WeightsChanged.
  static absl::StatusOr<std::unique_ptr<Policy>> CreateUnfilled(const ModelConfig& config,
                                                                ComputeDType dtype, bool trainable,
                                                                Numerics numerics,
                                                                Device device = Device::kCpu);
  ~Policy();

  // Log-probs of row.token_ids[t] given what it may attend to, where row.is_target[t], over
  // row.support[t] where it has one. Logits are divided by `temperature`. fp32 logits exist for a
  // chunk of rows at a time only. With a gradient, backward() of what is made of the log-probs adds
  // to the masters' grad(), once per result, and the policy must outlive it.
  //   INVALID_ARGUMENT  an id outside the vocabulary; a target with nothing before it
  //   INTERNAL          a kernel failed (message from LibTorch)
  absl::StatusOr<TokenScores> Score(const PackedRow& row, double temperature, bool with_gradient);

  // From now on a pass with a gradient keeps only the input of each layer, and its backward pass
  // makes the rest again, bit for bit: about a tenth of the memory for a quarter more time.
  void CheckpointActivations(bool checkpoint);

  // To be called after masters changed: drops the casts. `rounding` is that of the next push, for
  // kExact; weights that were never updated are cast to nearest, as a server does when it loads
  // them.
  void WeightsChanged(Rounding rounding = Rounding::kNearest);

  // Told of every stage of every pass from now on. A row without targets has no passes.
  void Watch(PassWatch watch);

  // The stages of a pass without a row: for who watches, where other ranks have one more.
  void Accompany(Pass pass);

  // [stage] the parameters it uses. A head that is tied to the embedding is in the first and last.
  const std::vector<std::vector<size_t>>& stages() const;
  const std::vector<NamedParameter>& parameters() const;
  const ModelConfig& config() const;

 private:
  struct Impl;
  explicit Policy(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace tandem::trainer

#endif  // TANDEM_TRAINER_POLICY_POLICY_H_
