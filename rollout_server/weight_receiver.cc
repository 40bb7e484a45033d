#include "rollout_server/weight_receiver.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/clock.h"
#include "common/base/status_macros.h"

namespace tandem::rollout {
namespace {

std::map<std::string, size_t> PlacesOf(const std::vector<TensorSpec>& tensors) {
  std::map<std::string, size_t> places;
  for (size_t i = 0; i < tensors.size(); ++i) places[tensors[i].name] = i;
  return places;
}

// Adds [begin, end) to disjoint ranges, joining those it touches.
void AddRange(std::map<int64_t, int64_t>* ranges, int64_t begin, int64_t end) {
  auto next = ranges->upper_bound(begin);
  if (next != ranges->begin()) {
    const auto before = std::prev(next);
    if (before->second >= begin) next = before;
  }
  while (next != ranges->end() && next->first <= end) {
    begin = std::min(begin, next->first);
    end = std::max(end, next->second);
    next = ranges->erase(next);
  }
  ranges->emplace(begin, end);
}

int64_t Covered(const std::map<int64_t, int64_t>& ranges) {
  int64_t sum = 0;
  for (const auto& [begin, end] : ranges) sum += end - begin;
  return sum;
}

absl::Status NotInProgress(WeightVersion version) {
  return absl::FailedPreconditionError(
      absl::StrCat("no update of version ", version.value, " is in progress: call BeginUpdate"));
}

}  // namespace

WeightReceiver::WeightReceiver(WeightSink* sink, std::vector<TensorSpec> tensors, Live initial)
    : sink_(sink),
      tensors_(std::move(tensors)),
      places_(PlacesOf(tensors_)),
      live_(std::move(initial)),
      spare_(tensors_.size()) {}

void WeightReceiver::StartEpoch(int64_t epoch) {
  MutexLock lock(&mu_);
  // A commit that runs belongs to the epoch before; it must not land under the new one.
  while (committing_) commit_ended_.Wait(&mu_);
  epoch_ = epoch;
  committed_in_epoch_ = false;
  DropUpdate();
}

absl::StatusOr<int64_t> WeightReceiver::Begin(WeightVersion version,
                                              std::vector<TensorSpec> manifest) {
  if (version.value < 0) {
    return absl::InvalidArgumentError(absl::StrCat("version is ", version.value));
  }
  TANDEM_ASSIGN_OR_RETURN(const std::vector<size_t> places, MatchManifest(manifest));
  MutexLock lock(&mu_);
  if (committing_) return absl::AbortedError("a commit is running; try again when it has ended");
  TANDEM_RETURN_IF_ERROR(CheckVersion(version));
  DropUpdate();
  auto update = std::make_unique<Update>();
  update->version = version;
  int64_t total_bytes = 0;
  for (const size_t place : places) {
    const int64_t num_bytes = tensors_[place].num_bytes();
    StagedTensor tensor{place, std::move(spare_[place]), {}};
    // Still read by the engine (it may keep what it was given): take fresh memory.
    if (!tensor.staging || tensor.staging.use_count() > 1) {
      tensor.staging = std::make_shared<Staging>();
      tensor.staging->bytes = std::make_unique_for_overwrite<std::byte[]>(num_bytes);
    }
    update->tensors.push_back(std::move(tensor));
    total_bytes += num_bytes;
  }
  update_ = std::move(update);
  return total_bytes;
}

absl::StatusOr<std::vector<size_t>> WeightReceiver::MatchManifest(
    const std::vector<TensorSpec>& manifest) const {
  std::vector<std::string> problems;
  std::vector<size_t> places;
  std::vector<bool> seen(tensors_.size(), false);
  for (const TensorSpec& spec : manifest) {
    const auto place = places_.find(spec.name);
    if (place == places_.end()) {
      problems.push_back(absl::StrCat("unknown tensor '", spec.name, "'"));
      continue;
    }
    const TensorSpec& expected = tensors_[place->second];
    if (seen[place->second]) problems.push_back(absl::StrCat("'", spec.name, "' comes twice"));
    if (spec.dtype != expected.dtype || spec.shape != expected.shape) {
      problems.push_back(absl::StrCat(std::string(DTypeName(spec.dtype)), " [",
                                      absl::StrJoin(spec.shape, ", "), "] where ",
                                      expected.ToString(), " is served"));
    }
    seen[place->second] = true;
    places.push_back(place->second);
  }
  for (size_t i = 0; i < seen.size(); ++i) {
    if (!seen[i]) problems.push_back(absl::StrCat("missing tensor '", tensors_[i].name, "'"));
  }
  if (problems.empty()) return places;
  const size_t shown = std::min<size_t>(problems.size(), 5);
  return absl::InvalidArgumentError(absl::StrCat(
      "the manifest does not fit the served model (", problems.size(),
      " differences): ", absl::StrJoin(problems.begin(), problems.begin() + shown, "; ")));
}

absl::Status WeightReceiver::CheckVersion(WeightVersion version) const {
  if (!committed_in_epoch_ || version > live_.version) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat("version ", version.value,
                                                    " is not newer than the live version ",
                                                    live_.version.value, " of epoch ", epoch_));
}

absl::Status WeightReceiver::Receive(WeightVersion version, int32_t index, int64_t offset,
                                     std::span<const std::byte> data) {
  MutexLock lock(&mu_);
  if (!update_ || update_->version != version) return NotInProgress(version);
  if (index < 0 || static_cast<size_t>(index) >= update_->tensors.size()) {
    return absl::OutOfRangeError(absl::StrCat("tensor ", index, " of ", update_->tensors.size()));
  }
  StagedTensor& tensor = update_->tensors[static_cast<size_t>(index)];
  const TensorSpec& spec = tensors_[tensor.place];
  const int64_t size = spec.num_bytes();
  const int64_t length = static_cast<int64_t>(data.size());
  if (offset < 0 || offset > size || length > size - offset) {
    return absl::OutOfRangeError(absl::StrCat("a chunk of ", length, " bytes at ", offset,
                                              " ends past the ", size, " bytes of ", spec.name));
  }
  if (data.empty()) return absl::OkStatus();
  std::memcpy(tensor.staging->bytes.get() + offset, data.data(), data.size());
  AddRange(&tensor.arrived, offset, offset + length);
  return absl::OkStatus();
}

absl::StatusOr<WeightReceiver::CommitReport> WeightReceiver::Commit(WeightVersion version,
                                                                    const DigestMap& digests) {
  Update update;
  {
    MutexLock lock(&mu_);
    // A repeated call while the first still runs waits for its outcome.
    while (committing_) commit_ended_.Wait(&mu_);
    if (committed_in_epoch_ && live_.version == version && live_.digests == digests) {
      return CommitReport{live_};
    }
    if (!update_ || update_->version != version) return NotInProgress(version);
    update = std::move(*update_);
    update_.reset();
    committing_ = true;
  }
  absl::StatusOr<CommitReport> report = Install(update, digests);
  MutexLock lock(&mu_);
  committing_ = false;
  commit_ended_.NotifyAll();
  KeepStaging(std::move(update));
  if (report.ok()) {
    live_ = {version, epoch_, digests};
    committed_in_epoch_ = true;
    report->live = live_;
  }
  return report;
}

absl::StatusOr<WeightReceiver::CommitReport> WeightReceiver::Install(Update update,
                                                                     const DigestMap& digests) {
  const double begin = MonotonicSeconds();
  TANDEM_RETURN_IF_ERROR(Verify(update, digests));
  std::vector<HostTensor> tensors(tensors_.size());
  for (const StagedTensor& tensor : update.tensors) {
    const TensorSpec& spec = tensors_[tensor.place];
    tensors[tensor.place] = {
        spec, {tensor.staging->bytes.get(), static_cast<size_t>(spec.num_bytes())}, tensor.staging};
  }
  TANDEM_ASSIGN_OR_RETURN(std::unique_ptr<StagedWeights> staged, sink_->Stage(std::move(tensors)));
  CommitReport report;
  report.verify_seconds = MonotonicSeconds() - begin;
  TANDEM_ASSIGN_OR_RETURN(report.pause_seconds, sink_->Install(std::move(staged), update.version));
  return report;
}

absl::Status WeightReceiver::Verify(const Update& update, const DigestMap& digests) const {
  if (digests.size() != update.tensors.size()) {
    for (const auto& [name, digest] : digests) {
      if (!places_.contains(name)) {
        return absl::DataLossError(absl::StrCat("a digest for unknown tensor ", name));
      }
    }
  }
  for (const StagedTensor& tensor : update.tensors) {
    const TensorSpec& spec = tensors_[tensor.place];
    const int64_t size = spec.num_bytes();
    if (const int64_t covered = Covered(tensor.arrived); covered != size) {
      return absl::DataLossError(
          absl::StrCat(size - covered, " of ", size, " bytes of ", spec.name, " did not arrive"));
    }
    const auto published = digests.find(spec.name);
    if (published == digests.end()) {
      return absl::DataLossError(absl::StrCat("no digest was given for ", spec.name));
    }
    const std::string digest = Digest128({tensor.staging->bytes.get(), static_cast<size_t>(size)});
    if (digest != published->second) {
      return absl::DataLossError(absl::StrCat("digest of ", spec.name, " is ", digest,
                                              ", published was ", published->second));
    }
  }
  return absl::OkStatus();
}

bool WeightReceiver::Abort(WeightVersion version) {
  MutexLock lock(&mu_);
  if (!update_ || update_->version != version) return false;
  DropUpdate();
  return true;
}

WeightReceiver::Live WeightReceiver::live() const {
  MutexLock lock(&mu_);
  return live_;
}

WeightVersion WeightReceiver::staged_version() const {
  MutexLock lock(&mu_);
  return update_ ? update_->version : WeightVersion{};
}

void WeightReceiver::KeepStaging(Update update) {
  for (StagedTensor& tensor : update.tensors) spare_[tensor.place] = std::move(tensor.staging);
}

void WeightReceiver::DropUpdate() {
  if (!update_) return;
  KeepStaging(std::move(*update_));
  update_.reset();
}

}  // namespace tandem::rollout
