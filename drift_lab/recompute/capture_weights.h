// CaptureWeights: the weights under which a capture's tokens were sampled and scored again, as fp32
// masters and as servers had them, checked against the digests in the capture. The header is free
// of LibTorch.
//
// Loads one version at a time. Memory: the mapped file, and a copy per cast.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/capture/capture.h"
#include "common/model/model_config.h"
#include "common/weights/host_tensor.h"
#include "rollout_server/engine/forward/adapter_weights.h"
#include "trainer/weight_push/weight_cast.h"

namespace tandem::drift {

class CaptureWeights {
 public:
  // `path` is the capture's directory. `fallback` is a model directory or safetensors file for
  // versions whose masters the capture does not carry; may be empty. `capture` must outlive this
  // object.
  CaptureWeights(const offpolicy::Capture* capture, const ModelConfig& config, std::string path,
                 std::string fallback);

  // The fp32 masters of `version`, in ModelTensors order.
  //   NOT_FOUND         the capture does not carry them and there is no fallback
  //   DATA_LOSS         the file does not have the digest that the capture names
  //   INVALID_ARGUMENT  as MatchModelTensors
  absl::StatusOr<std::vector<HostTensor>> Masters(int64_t version) const;

  // True if the capture itself has the masters of `version`.
  bool Carries(int64_t version) const;

  // The weights of `version` as servers had them: cast to `dtype` with the rounding that the
  // capture names.
  absl::StatusOr<std::vector<HostTensor>> Served(int64_t version, DType dtype) const;

  // The adapter of `version`, for servers that apply it beside the weights of the model directory.
  //   NOT_FOUND  the capture does not carry it;  DATA_LOSS  the file is no adapter of the model
  absl::StatusOr<rollout::AdapterFactors> Adapter(int64_t version) const;

  // The values that a bf16 trainer computes with on a CPU (trainer/policy/policy.h), as fp32
  // tensors: the matrices of the decoder's linear layers are rounded to the nearest bf16; the head,
  // the embedding, norms and biases are the fp32 masters.
  //   any error of Masters
  absl::StatusOr<std::vector<HostTensor>> Bf16TrainerValues(int64_t version) const;

  // OK if the result of Served has the digests of the weights that servers ran.
  //   FAILED_PRECONDITION  it has others (the message names the version and the tensors), or the
  //                        capture has no digests of that version
  absl::Status CheckServed(int64_t version, DType dtype) const;
  // The same of servers that apply an adapter beside `base`, the weights of the model directory in
  // their dtype.
  absl::Status CheckUnmerged(int64_t version, const std::vector<HostTensor>& base) const;

 private:
  absl::StatusOr<std::vector<HostTensor>> Cast(int64_t version, trainer::Rounding rounding) const;
  // OK if servers ran `tensors`, sent as they are or as quantised servers store them.
  absl::Status CompareServed(const offpolicy::CapturedWeights& known,
                             const std::vector<HostTensor>& tensors) const;

  const offpolicy::Capture* const capture_;
  const ModelConfig config_;
  const std::string path_, fallback_;
};

// The values of an fp32 tensor: a copy with aligned elements, because tensors may have any offset
// in the file.
std::vector<float> FloatsOf(const HostTensor& tensor);

// The values of `tensors`, of a float dtype, as fp32 tensors, for an fp32 forward pass.
std::vector<HostTensor> WidenToFp32(const std::vector<HostTensor>& tensors);

}  // namespace tandem::drift
