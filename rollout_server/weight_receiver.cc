#include "rollout_server/weight_receiver.h"

#include <algorithm>
#include <new>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/clock.h"
#include "common/base/fail_point.h"
#include "common/base/status_macros.h"

namespace tandem::rollout {
namespace {

std::map<std::string, size_t> PlacesOf(const std::vector<TensorSpec>& tensors) {
  std::map<std::string, size_t> places;
  for (size_t i = 0; i < tensors.size(); ++i) places[tensors[i].name] = i;
  return places;
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
      live_(std::make_shared<const Live>(std::move(initial))),
      held_(tensors_.size()) {}

absl::Status WeightReceiver::Reserve() {
  MutexLock lock(&mu_);
  int64_t bytes = 0;
  for (const TensorSpec& tensor : tensors_) bytes += tensor.num_bytes();
  try {
    for (size_t i = 0; i < tensors_.size(); ++i) held_[i] = TakenMemory(tensors_[i]);
  } catch (const std::bad_alloc&) {
    return absl::ResourceExhaustedError(
        absl::StrCat("no memory for the ", bytes,
                     " bytes that a push of weights arrives in: the model needs a machine or a "
                     "memory limit that is larger"));
  }
  return absl::OkStatus();
}

void WeightReceiver::StartEpoch(int64_t epoch) {
  MutexLock lock(&mu_);
  // A commit that runs belongs to the epoch before; it must not land under the new one.
  while (committing_) commit_ended_.Wait(&mu_);
  epoch_ = epoch;
  committed_in_epoch_ = false;
  DropUpdate();
}

absl::StatusOr<std::vector<int64_t>> WeightReceiver::Begin(WeightVersion version,
                                                           const std::vector<TensorSpec>& manifest,
                                                           const std::optional<Delta>& delta) {
  if (version.value < 0) {
    return absl::InvalidArgumentError(absl::StrCat("version is ", version.value));
  }
  TANDEM_ASSIGN_OR_RETURN(std::vector<size_t> places, MatchManifest(manifest));
  MutexLock lock(&mu_);
  if (committing_) return absl::AbortedError("a commit is running; try again when it has ended");
  TANDEM_RETURN_IF_ERROR(CheckVersion(version));
  if (delta) TANDEM_RETURN_IF_ERROR(CheckDeltaForms(places, *delta));
  DropUpdate();
  auto update = std::make_shared<Update>();
  update->version = version;
  update->digests.resize(places.size());
  for (size_t i = 0; i < places.size(); ++i) {
    const TensorSpec* const spec = &tensors_[places[i]];
    std::shared_ptr<TensorMemory> held = std::move(held_[places[i]]);
    update->tensors.push_back(delta ? StagedTensor::OverLive(spec, delta->forms[i], std::move(held))
                                    : StagedTensor::Dense(spec, std::move(held)));
  }
  update->places = std::move(places);
  update_ = std::move(update);
  if (!delta) held_is_live_ = false;
  FailPoint("receiver: begun");
  return SizesOf(*update_);
}

std::vector<int64_t> WeightReceiver::SizesOf(const Update& update) {
  std::vector<int64_t> sizes;
  for (const StagedTensor& tensor : update.tensors) sizes.push_back(tensor.wire_bytes());
  return sizes;
}

absl::Status WeightReceiver::CheckDeltaForms(const std::vector<size_t>& places,
                                             const Delta& delta) const {
  if (!held_is_live_ || live_->version != delta.base) {
    return absl::FailedPreconditionError(absl::StrCat(
        "no delta over version ", delta.base.value, " is taken: version ", live_->version.value,
        " is live", held_is_live_ ? "" : ", and its bytes are not held", "; push dense"));
  }
  if (delta.forms.size() != places.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat(delta.forms.size(), " encodings for ", places.size(), " tensors"));
  }
  for (size_t i = 0; i < places.size(); ++i) {
    const TensorSpec& spec = tensors_[places[i]];
    const auto& [encoding, size] = delta.forms[i];
    const bool is_dense = encoding == TensorEncoding::kDense;
    if (size < 0 || size > spec.num_bytes() || (is_dense && size != spec.num_bytes())) {
      return absl::InvalidArgumentError(
          absl::StrCat(size, " bytes, encoded ", std::string(TensorEncodingName(encoding)),
                       ", for the ", spec.num_bytes(), " bytes of ", spec.name));
    }
  }
  return absl::OkStatus();
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
  if (!committed_in_epoch_ || version > live_->version) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat("version ", version.value,
                                                    " is not newer than the live version ",
                                                    live_->version.value, " of epoch ", epoch_));
}

absl::Status WeightReceiver::Receive(WeightVersion version, int32_t index, int64_t offset,
                                     std::span<const std::byte> data) {
  FailPoint("receiver: chunk");
  std::shared_ptr<Update> update;
  std::shared_ptr<TensorMemory> completed;  // a second owner: nobody writes it meanwhile
  std::span<const std::byte> bytes;
  const auto at = static_cast<size_t>(index);
  {
    MutexLock lock(&mu_);
    if (!update_ || update_->version != version) return NotInProgress(version);
    if (index < 0 || at >= update_->tensors.size()) {
      return absl::OutOfRangeError(absl::StrCat("tensor ", index, " of ", update_->tensors.size()));
    }
    StagedTensor& tensor = update_->tensors[at];
    const bool was_complete = tensor.complete();
    TANDEM_RETURN_IF_ERROR(tensor.Store(offset, data));
    if (was_complete || !tensor.complete() || !tensor.is_dense()) return absl::OkStatus();
    update = update_;
    completed = tensor.memory();
    bytes = tensor.bytes();
  }
  const double begin = MonotonicSeconds();
  std::string digest = Digest128(bytes);
  MutexLock lock(&mu_);
  // The same version may have been begun anew meanwhile: then this is not its tensor.
  if (update_ != update) return absl::OkStatus();
  update->digests[at] = std::move(digest);
  update->digest_seconds += MonotonicSeconds() - begin;
  return absl::OkStatus();
}

absl::StatusOr<WeightReceiver::CommitReport> WeightReceiver::Commit(WeightVersion version,
                                                                    const DigestMap& digests) {
  std::shared_ptr<Update> update;
  {
    MutexLock lock(&mu_);
    // A repeated call while the first still runs waits for its outcome.
    while (committing_) commit_ended_.Wait(&mu_);
    if (committed_in_epoch_ && live_->version == version && live_->digests == digests) {
      return CommitReport{*live_};
    }
    if (!update_ || update_->version != version) return NotInProgress(version);
    update = std::exchange(update_, nullptr);
    committing_ = true;
  }
  absl::StatusOr<CommitReport> report = Install(*update, digests);
  MutexLock lock(&mu_);
  committing_ = false;
  commit_ended_.NotifyAll();
  GiveBack(*update, /*committed=*/report.ok());
  if (report.ok()) {
    live_ = std::make_shared<const Live>(Live{version, epoch_, digests});
    committed_in_epoch_ = true;
    report->live = *live_;
    FailPoint("receiver: committed");
  }
  return report;
}

absl::StatusOr<WeightReceiver::CommitReport> WeightReceiver::Install(Update& update,
                                                                     const DigestMap& digests) {
  const double begin = MonotonicSeconds();
  TANDEM_RETURN_IF_ERROR(Verify(update, digests));
  FailPoint("receiver: verified");
  std::vector<HostTensor> tensors(tensors_.size());
  for (size_t i = 0; i < update.tensors.size(); ++i) {
    const StagedTensor& tensor = update.tensors[i];
    tensors[update.places[i]] = {tensor.spec(), tensor.bytes(), tensor.memory()};
  }
  const double verified = MonotonicSeconds();
  TANDEM_ASSIGN_OR_RETURN(std::unique_ptr<StagedWeights> staged, sink_->Stage(std::move(tensors)));
  FailPoint("receiver: packed");
  CommitReport report;
  report.verify_seconds = verified - begin + update.digest_seconds;
  report.pack_seconds = MonotonicSeconds() - verified;
  TANDEM_ASSIGN_OR_RETURN(report.pause_seconds, sink_->Install(std::move(staged), update.version));
  FailPoint("receiver: installed");
  return report;
}

absl::Status WeightReceiver::Verify(Update& update, const DigestMap& digests) const {
  if (digests.size() != update.tensors.size()) {
    for (const auto& [name, digest] : digests) {
      if (!places_.contains(name)) {
        return absl::DataLossError(absl::StrCat("a digest for unknown tensor ", name));
      }
    }
  }
  for (size_t i = 0; i < update.tensors.size(); ++i) {
    StagedTensor& tensor = update.tensors[i];
    const std::string& name = tensor.spec().name;
    TANDEM_RETURN_IF_ERROR(tensor.Finish());
    const auto published = digests.find(name);
    if (published == digests.end()) {
      return absl::DataLossError(absl::StrCat("no digest was given for ", name));
    }
    std::string& digest = update.digests[i];
    if (digest.empty()) digest = Digest128(tensor.bytes());
    if (digest != published->second) {
      return absl::DataLossError(
          absl::StrCat("digest of ", name, " is ", digest, ", published was ", published->second));
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

std::shared_ptr<const WeightReceiver::Live> WeightReceiver::live() const {
  MutexLock lock(&mu_);
  return live_;
}

WeightVersion WeightReceiver::staged_version() const {
  MutexLock lock(&mu_);
  return update_ ? update_->version : WeightVersion{};
}

absl::StatusOr<std::vector<int64_t>> WeightReceiver::StagedSizes(WeightVersion version) const {
  MutexLock lock(&mu_);
  if (!update_ || update_->version != version) return NotInProgress(version);
  return SizesOf(*update_);
}

bool WeightReceiver::takes_delta() const {
  MutexLock lock(&mu_);
  return held_is_live_ && !committing_;
}

// The memory of an update becomes what is held: its tensors' after a commit, else the live ones'
// where it had them.
void WeightReceiver::GiveBack(Update& update, bool committed) {
  for (size_t i = 0; i < update.tensors.size(); ++i) {
    StagedTensor& tensor = update.tensors[i];
    std::shared_ptr<TensorMemory> memory = tensor.memory();
    if (!committed) {
      std::shared_ptr<TensorMemory> live = std::move(tensor).Undo();
      if (live != nullptr) memory = std::move(live);
    }
    held_[update.places[i]] = std::move(memory);
  }
  update.tensors.clear();
  held_is_live_ = held_is_live_ || committed;
}

void WeightReceiver::DropUpdate() {
  if (!update_) return;
  GiveBack(*update_, /*committed=*/false);
  update_.reset();
}

}  // namespace tandem::rollout
