#include "drift_lab/recompute/capture_weights.h"

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <memory>
#include <span>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/status_macros.h"
#include "common/lora/adapted_model.h"
#include "common/lora/lora_shape.h"
#include "common/model/formats/plan_text.h"
#include "common/model/formats/stored_tensors.h"
#include "common/model/quantisation_plan.h"
#include "common/model/safetensors.h"
#include "common/tensor/nearest_cast.h"
#include "common/weights/digest.h"
#include "rollout_server/engine/forward/adapter_weights.h"

namespace tandem::drift {
namespace {

namespace fs = std::filesystem;

// A tensor of a model has a float dtype, which can always be cast to fp32.
HostTensor Widen(const HostTensor& tensor) { return CastNearest(tensor, DType::kF32).value(); }

// OK if servers ran weights with these digests.
absl::Status CompareDigests(const offpolicy::CapturedWeights& known, const DigestMap& digests) {
  std::vector<std::string> differ;
  for (const auto& [name, digest] : digests) {
    const auto claimed = known.served.find(name);
    if (claimed == known.served.end() || claimed->second != digest) differ.push_back(name);
  }
  if (differ.empty()) return absl::OkStatus();
  const size_t shown = std::min<size_t>(differ.size(), 3);
  return FailedPrecondition(
      "servers ran other weights as version ", known.version,
      " than the trainer's: ", differ.size(), " of ", digests.size(), " tensors differ (",
      absl::StrJoin(differ.begin(), differ.begin() + static_cast<std::ptrdiff_t>(shown), ", "),
      differ.size() > shown ? ", ..." : "", ")");
}

}  // namespace

CaptureWeights::CaptureWeights(const offpolicy::Capture* capture, const ModelConfig& config,
                               std::string path, std::string fallback)
    : capture_(capture), config_(config), path_(std::move(path)), fallback_(std::move(fallback)) {}

bool CaptureWeights::Carries(int64_t version) const {
  const offpolicy::CapturedWeights* const known = capture_->WeightsOf(version);
  return known != nullptr && !known->masters.empty();
}

absl::StatusOr<std::vector<HostTensor>> CaptureWeights::Masters(int64_t version) const {
  const offpolicy::CapturedWeights* const known = capture_->WeightsOf(version);
  const bool carried = known != nullptr && !known->masters.empty();
  if (!carried && fallback_.empty()) {
    return NotFound(
        path_, " does not carry the weights of version ", version,
        ": capture with trainer.capture.weights, or name a model directory with --weights");
  }
  std::vector<HostTensor> tensors;
  if (!carried && fs::is_directory(fallback_)) {
    TANDEM_ASSIGN_OR_RETURN(tensors, ReadAdaptedTensors(fallback_));
  } else {
    const std::string file = carried ? absl::StrCat(path_, "/", known->masters) : fallback_;
    TANDEM_ASSIGN_OR_RETURN(SafetensorsFile read, ReadSafetensors(file));
    tensors = std::move(read.tensors);
    const std::string digest = CombinedDigest(DigestTensors(tensors));
    if (carried && digest != known->masters_digest) {
      return DataLoss(file, " has digest ", digest, ", the capture names ", known->masters_digest,
                      " as version ", version, ": the file was changed");
    }
  }
  TANDEM_ASSIGN_OR_RETURN(tensors, MatchModelTensors(config_, std::move(tensors)));
  return WidenToFp32(tensors);
}

absl::StatusOr<std::vector<HostTensor>> CaptureWeights::Cast(int64_t version,
                                                             trainer::Rounding rounding) const {
  TANDEM_ASSIGN_OR_RETURN(const std::vector<HostTensor> masters, Masters(version));
  std::vector<HostTensor> cast;
  for (const HostTensor& master : masters) {
    const std::vector<float> values = FloatsOf(master);
    auto bits = std::make_shared<std::vector<uint16_t>>(values.size());
    trainer::CastToBf16(master.spec.name, /*first=*/0, values.data(), master.spec.num_elements(),
                        rounding, bits->data());
    cast.push_back({{master.spec.name, DType::kBF16, master.spec.shape},
                    std::as_bytes(std::span<const uint16_t>(*bits)),
                    bits});
  }
  return cast;
}

absl::StatusOr<std::vector<HostTensor>> CaptureWeights::Served(int64_t version, DType dtype) const {
  if (dtype == DType::kF32) return Masters(version);
  const offpolicy::CapturedWeights* const known = capture_->WeightsOf(version);
  if (known != nullptr && known->rounding.empty() && !known->served.empty()) {
    // A capture taken from a server does not say how its weights were cast; the digests tell.
    TANDEM_ASSIGN_OR_RETURN(auto nearest, Cast(version, trainer::Rounding::kNearest));
    if (CompareServed(*known, nearest).ok()) return nearest;
    return Cast(version, trainer::Rounding::kDither);
  }
  const bool dither = known != nullptr && known->rounding == "dither";
  return Cast(version, dither ? trainer::Rounding::kDither : trainer::Rounding::kNearest);
}

absl::StatusOr<rollout::AdapterFactors> CaptureWeights::Adapter(int64_t version) const {
  const offpolicy::CapturedWeights* const known = capture_->WeightsOf(version);
  if (known == nullptr || known->adapter.empty()) {
    return NotFound(path_, " does not carry the adapter of version ", version,
                    ", which its servers applied beside their weights: capture it with "
                    "trainer.capture.weights");
  }
  const std::string file = absl::StrCat(path_, "/", known->adapter);
  TANDEM_ASSIGN_OR_RETURN(SafetensorsFile read, ReadSafetensors(file));
  rollout::AdapterFactors factors = {
      .modules = {}, .tensors = {}, .rank = known->adapter_rank, .scaling = known->adapter_scaling};
  const std::vector<TensorSpec> model = ModelTensors(config_, DType::kF32);
  for (const TensorSpec& weight : model) {  // in the order of LoraTensors
    const LoraModule module = {weight.name, weight.shape.front(), weight.shape.back()};
    for (const std::string& name : {module.a_name(), module.b_name()}) {
      const auto found = std::ranges::find_if(
          read.tensors, [&](const HostTensor& tensor) { return tensor.spec.name == name; });
      if (found != read.tensors.end()) factors.tensors.push_back(Aligned(*found));
    }
  }
  std::vector<TensorSpec> specs;
  for (const HostTensor& tensor : factors.tensors) specs.push_back(tensor.spec);
  absl::StatusOr<std::vector<LoraModule>> modules = ModulesOf(specs, factors.rank, model);
  if (!modules.ok()) return DataLoss(file, ": ", modules.status().message());
  factors.modules = *std::move(modules);
  return factors;
}

absl::StatusOr<std::vector<HostTensor>> CaptureWeights::Bf16TrainerValues(int64_t version) const {
  TANDEM_ASSIGN_OR_RETURN(std::vector<HostTensor> tensors, Masters(version));
  TANDEM_ASSIGN_OR_RETURN(const std::vector<HostTensor> cast,
                          Cast(version, trainer::Rounding::kNearest));
  for (size_t i = 0; i < tensors.size(); ++i) {
    const std::string& name = tensors[i].spec.name;
    if (name.starts_with("model.layers.") && name.ends_with("_proj.weight")) {
      tensors[i] = Widen(cast[i]);
    }
  }
  return tensors;
}

absl::Status CaptureWeights::CheckServed(int64_t version, DType dtype) const {
  const offpolicy::CapturedWeights* const known = capture_->WeightsOf(version);
  if (known == nullptr || known->served.empty()) {
    return FailedPrecondition("nothing proves which weights servers ran as version ", version);
  }
  TANDEM_ASSIGN_OR_RETURN(const std::vector<HostTensor> served, Served(version, dtype));
  return CompareServed(*known, served);
}

absl::Status CaptureWeights::CompareServed(const offpolicy::CapturedWeights& known,
                                           const std::vector<HostTensor>& tensors) const {
  const absl::Status wide = CompareDigests(known, DigestTensors(tensors));
  const auto& servers = capture_->manifest.servers;
  if (wide.ok() || servers.empty()) return wide;
  TANDEM_ASSIGN_OR_RETURN(const QuantisationOptions options,
                          OptionsOfPlan(servers.front().weights));
  TANDEM_ASSIGN_OR_RETURN(const QuantisationPlan plan, MakeQuantisationPlan(config_, options));
  if (!plan.quantises()) return wide;
  std::vector<HostTensor> stored;
  for (const HostTensor& tensor : tensors) {
    stored.push_back(StoreTensor(tensor, FormatOf(plan, tensor.spec.name)));
  }
  return CompareDigests(known, DigestTensors(stored)).ok() ? absl::OkStatus() : wide;
}

absl::Status CaptureWeights::CheckUnmerged(int64_t version,
                                           const std::vector<HostTensor>& base) const {
  const offpolicy::CapturedWeights* const known = capture_->WeightsOf(version);
  if (known == nullptr || known->served.empty()) {
    return FailedPrecondition("nothing proves which weights servers ran as version ", version);
  }
  DigestMap digests = DigestTensors(base);
  if (digests == known->served) return absl::OkStatus();  // no adapter was pushed yet
  TANDEM_ASSIGN_OR_RETURN(const auto adapter, Adapter(version));
  for (size_t m = 0; m < adapter.modules.size(); ++m) {
    std::string& digest = digests[adapter.modules[m].weight];
    digest = rollout::UnmergedDigest(digest, adapter.tensors[2 * m].bytes,
                                     adapter.tensors[2 * m + 1].bytes);
  }
  return CompareDigests(*known, digests);
}
std::vector<float> FloatsOf(const HostTensor& tensor) {
  std::vector<float> values(static_cast<size_t>(tensor.spec.num_elements()));
  std::memcpy(values.data(), tensor.bytes.data(), tensor.bytes.size());
  return values;
}

std::vector<HostTensor> WidenToFp32(const std::vector<HostTensor>& tensors) {
  std::vector<HostTensor> wide;
  for (const HostTensor& tensor : tensors) wide.push_back(Widen(tensor));
  return wide;
}

}  // namespace tandem::drift
