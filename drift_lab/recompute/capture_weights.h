// CaptureWeights: the weights a capture's tokens were drawn and re-scored under, as masters and as
// servers had them, checked against the digests the capture claims. Free of LibTorch in its header.
//
// Loads one version at a time; memory: the mapped file, and a copy per cast.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/capture/capture.h"
#include "common/model/model_config.h"
#include "common/weights/host_tensor.h"
#include "trainer/weight_push/weight_cast.h"

namespace tandem::drift {

class CaptureWeights {
 public:
  // `path`: of the capture. `fallback`: a model directory or safetensors file for versions whose
  // masters the capture does not carry; may be empty. `capture` must outlive this object.
  CaptureWeights(const offpolicy::Capture* capture, const ModelConfig& config, std::string path,
                 std::string fallback);

  // F32 masters of `version` in ModelTensors order.
  //   NOT_FOUND  the capture does not carry them and there is no fallback: says what to do
  //   DATA_LOSS  the file is not the one the capture names (digest)
  //   INVALID_ARGUMENT  MatchModelTensors
  absl::StatusOr<std::vector<HostTensor>> Masters(int64_t version) const;

  // Are the masters of `version` at hand without the fallback?
  bool Carries(int64_t version) const;

  // The same as servers had them: cast to `dtype` with the rounding the capture names.
  absl::StatusOr<std::vector<HostTensor>> Served(int64_t version, DType dtype) const;

  // F32 tensors of the values that a bf16 trainer computes with (trainer/policy/policy.h, on a CPU):
  // matrices of the decoder's linear layers are rounded to bf16 to nearest; the head, the
  // embedding, norms and biases stay the fp32 masters. Errors of Masters.
  absl::StatusOr<std::vector<HostTensor>> OfBf16Trainer(int64_t version) const;

  // Is what Served gives what servers were proven to run?
  //   FAILED_PRECONDITION  names the version and the tensors that differ
  absl::Status CheckServed(int64_t version, DType dtype) const;

 private:
  absl::StatusOr<std::vector<HostTensor>> Cast(int64_t version, trainer::Rounding rounding) const;

  const offpolicy::Capture* const capture_;
  const ModelConfig config_;
  const std::string path_, fallback_;
};

// F32 tensors of the same values as `tensors` (F32 or BF16): what an fp32 forward runs on.
std::vector<HostTensor> WidenToFp32(const std::vector<HostTensor>& tensors);

}  // namespace tandem::drift
