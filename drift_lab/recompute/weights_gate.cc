#include "drift_lab/recompute/weights_gate.h"

#include <cstddef>
#include <set>
#include <span>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/files/file_system.h"
#include "common/weights/digest.h"

namespace tandem::drift {

absl::StatusOr<std::vector<GateFinding>> CheckModelAndWeights(const offpolicy::Capture& capture,
                                                              const std::string& model,
                                                              const CaptureWeights& weights) {
  std::vector<GateFinding> findings;
  TANDEM_ASSIGN_OR_RETURN(const std::string config, ReadFile(model + "/config.json"));
  const std::string digest = Digest128(std::as_bytes(std::span(config)));
  const std::string& captured = capture.manifest.model_config_digest;
  if (!captured.empty() && captured != digest) {
    findings.push_back(
        {DiscreteFault::kModelDiffers,
         absl::StrCat(model, "/config.json has digest ", digest, ", the capture was made with ",
                      captured, ": name the model it was made with (--model)"),
         capture.num_completions()});
  }
  const bool bf16 =
      !capture.manifest.servers.empty() && capture.manifest.servers[0].dtype == "bf16";
  const std::set<int64_t> versions(capture.weight_version.begin(), capture.weight_version.end());
  for (const int64_t version : versions) {
    const absl::Status served = weights.CheckServed(version, bf16 ? DType::kBF16 : DType::kF32);
    if (served.ok()) continue;
    if (served.code() != absl::StatusCode::kFailedPrecondition) return served;
    const offpolicy::CapturedWeights* const known = capture.WeightsOf(version);
    const bool unproven = known == nullptr || known->served.empty();
    findings.push_back({unproven ? DiscreteFault::kWeightsUnproven : DiscreteFault::kWeightsDiffer,
                        std::string(served.message()), capture.num_completions()});
  }
  return findings;
}

}  // namespace tandem::drift
