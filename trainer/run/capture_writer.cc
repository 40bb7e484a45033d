#include "trainer/run/capture_writer.h"

#include <filesystem>
#include <map>
#include <set>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/files/file_system.h"
#include "common/model/safetensors.h"

namespace tandem::trainer {
namespace {

namespace fs = std::filesystem;

constexpr char kAdapterPrefix[] = "adapter_";

std::string WeightsName(int64_t version) { return absl::StrCat("v_", version, ".safetensors"); }

// The captures of `directory` by step.
std::map<int64_t, fs::path> CapturesIn(const std::string& directory) {
  std::map<int64_t, fs::path> captures;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(directory, error)) {
    int64_t step = 0;
    const std::string name = entry.path().filename().string();
    if (name.starts_with("step_") && absl::SimpleAtoi(name.substr(5), &step)) {
      captures[step] = entry.path();
    }
  }
  return captures;
}

}  // namespace

void BindOptions(OptionBinder& binder, CaptureOptions& options) {
  binder.Integer("every", &options.every, {.min = 0}, "steps",
                 "write the batch of such a step under captures/, for `tandem drift`; 0: never");
  binder.Integer(
      "spread", &options.spread, {.min = 0, .max = 1000}, "captures",
      "also the batches of so many steps spread evenly over the run: the first, ..., the "
      "last; 1: the last; 0: none");
  binder.Flag("weights", &options.weights,
              "with the fp32 weights its tokens were drawn and re-scored under, which attribution "
              "needs (4 bytes a parameter and version)");
  binder.Integer(
      "versions_before", &options.versions_before, {.min = 0, .max = 64}, "versions",
      "with so many versions before those, too: attribution can name weights that a server ran "
      "in place of the ones it claims only if it has them");
  binder.Integer("keep", &options.keep, {.min = 0}, "captures",
                 "older ones are deleted with the weights that only they need; 0: keep all");
}

bool CaptureWriter::Due(int64_t step) const {
  if (options_.every > 0 && step % options_.every == 0) return true;
  if (options_.spread == 1) return step == num_steps_;
  for (int64_t i = 0; i < options_.spread; ++i) {
    if (step == 1 + i * (num_steps_ - 1) / (options_.spread - 1)) return true;
  }
  return false;
}

// Weights do not change once they have a version: a file that is there already is of these.
absl::Status CaptureWriter::WriteMasters(const std::vector<TensorSource>& masters,
                                         offpolicy::CapturedWeights& weights) const {
  weights.masters = absl::StrCat("../weights/", WeightsName(weights.version));
  const std::string path = absl::StrCat(directory_, "/weights/", WeightsName(weights.version));
  DigestMap digests;
  std::vector<TensorSource> digested = masters;
  for (TensorSource& source : digested) {
    source.read = [&digests, read = source.read]() -> absl::StatusOr<HostTensor> {
      TANDEM_ASSIGN_OR_RETURN(HostTensor tensor, read());
      digests[tensor.spec.name] = Digest128(tensor.bytes);
      return tensor;
    };
  }
  if (fs::exists(path)) {
    for (const TensorSource& source : digested) {
      TANDEM_RETURN_IF_ERROR(source.read().status());
    }
  } else {
    TANDEM_RETURN_IF_ERROR(MakeDirectories(directory_ + "/weights"));
    TANDEM_RETURN_IF_ERROR(WriteSafetensors(path, digested));
  }
  weights.masters_digest = CombinedDigest(digests);
  return absl::OkStatus();
}

absl::Status CaptureWriter::WriteAdapter(const KeptMasters& kept,
                                         offpolicy::CapturedWeights& weights) const {
  if (kept.adapter.empty()) return absl::OkStatus();
  const std::string name = absl::StrCat(kAdapterPrefix, WeightsName(weights.version));
  weights.adapter = "../weights/" + name;
  weights.adapter_rank = kept.adapter_rank;
  weights.adapter_scaling = kept.adapter_scaling;
  const std::string path = absl::StrCat(directory_, "/weights/", name);
  if (fs::exists(path)) return absl::OkStatus();
  return WriteSafetensors(path, PresentAll(kept.adapter));
}

absl::Status CaptureWriter::Write(offpolicy::CaptureManifest manifest,
                                  const std::vector<experience::v1::ScoredGroup>& groups,
                                  const PerToken& proximal, const PerToken& advantages,
                                  const RecentWeights& recent) {
  offpolicy::Capture capture = CaptureGroups(groups, proximal, advantages);
  std::set<int64_t> versions(capture.weight_version.begin(), capture.weight_version.end());
  versions.insert(manifest.proximal_version);
  const std::set<int64_t> needed = versions;
  for (const int64_t version : needed) {
    for (int64_t k = 1; k <= options_.versions_before; ++k) {
      if (recent.Find(version - k) != nullptr) versions.insert(version - k);
    }
  }
  for (const int64_t version : versions) {
    offpolicy::CapturedWeights weights{.version = version};
    if (const RecentVersion* const known = recent.Find(version)) {
      weights.served = known->served;
      weights.rounding = known->rounding;
      if (options_.weights && known->masters.has_value()) {
        TANDEM_RETURN_IF_ERROR(WriteMasters(known->masters->tensors, weights));
        TANDEM_RETURN_IF_ERROR(WriteAdapter(*known->masters, weights));
      }
    }
    manifest.weights.push_back(std::move(weights));
  }
  capture.manifest = std::move(manifest);
  TANDEM_RETURN_IF_ERROR(
      offpolicy::WriteCapture(absl::StrCat(directory_, "/step_", capture.manifest.step), capture));
  RemoveStale();
  return absl::OkStatus();
}

void CaptureWriter::RemoveStale() const {
  if (options_.keep == 0) return;
  std::map<int64_t, fs::path> captures = CapturesIn(directory_);
  std::error_code error;
  while (static_cast<int64_t>(captures.size()) > options_.keep) {
    fs::remove_all(captures.begin()->second, error);
    captures.erase(captures.begin());
  }
  // Weights older than anything the captures that are left can name.
  const int64_t oldest = captures.empty() ? 0 : captures.begin()->first - 1 - Reach();
  for (const auto& entry : fs::directory_iterator(directory_ + "/weights", error)) {
    int64_t version = 0;
    std::string name = entry.path().stem().string();
    if (name.starts_with(kAdapterPrefix)) name = name.substr(std::size(kAdapterPrefix) - 1);
    if (name.starts_with("v_") && absl::SimpleAtoi(name.substr(2), &version) && version < oldest) {
      fs::remove(entry.path(), error);
    }
  }
}

}  // namespace tandem::trainer
