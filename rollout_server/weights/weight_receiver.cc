#include "rollout_server/weights/weight_receiver.h"

#include <algorithm>
#include <array>
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
  return FailedPrecondition("no update of version ", version.value,
                            " is in progress: call BeginUpdate");
}

// OK if `digests` has exactly one digest for each of `tensors`.
absl::Status CheckNames(const char* what, const DigestMap& digests,
                        const std::map<std::string, size_t>& tensors) {
  for (const auto& [name, digest] : digests) {
    if (tensors.contains(name)) continue;
    return DataLoss("a ", what, " for unknown tensor ", name);
  }
  for (const auto& [name, place] : tensors) {
    if (digests.contains(name)) continue;
    return DataLoss("no ", what, " was given for ", name);
  }
  return absl::OkStatus();
}

absl::Status CheckDigest(const char* what, const std::string& name, const std::string& digest,
                         const DigestMap& published) {
  const std::string& want = published.at(name);
  if (digest == want) return absl::OkStatus();
  return DataLoss(what, " of ", name, " is ", digest, ", published was ", want);
}

// Buckets arrive in host memory and are copied into staging.
class StagingStore : public BucketStore {
 public:
  StagingStore(WeightReceiver* receiver, WeightVersion version)
      : receiver_(receiver), version_(version) {}

  Device memory() const override { return Device::kCpu; }
  absl::StatusOr<std::span<std::byte>> Buffer(size_t index, int64_t num_bytes) override {
    buffers_[index].resize(static_cast<size_t>(num_bytes));
    return std::span(buffers_[index]);
  }
  absl::Status Store(const BucketSlice& slice, std::span<const std::byte> bytes) override {
    return receiver_->Receive(version_, slice.tensor, slice.offset, bytes);
  }

 private:
  WeightReceiver* const receiver_;
  const WeightVersion version_;
  std::array<std::vector<std::byte>, 2> buffers_;
};

// Buckets arrive in memory of the engine's device and are copied to their places there.
class DeviceStore : public BucketStore {
 public:
  // `places`: for each tensor of the manifest its index in the engine's order. `owner` keeps the
  // other two alive.
  DeviceStore(Device memory, ArrivingWeights* arriving, const std::vector<size_t>* places,
              std::shared_ptr<const void> owner)
      : memory_(memory), arriving_(arriving), places_(places), owner_(std::move(owner)) {}

  Device memory() const override { return memory_; }
  absl::StatusOr<std::span<std::byte>> Buffer(size_t index, int64_t num_bytes) override {
    return arriving_->Buffer(index, num_bytes);
  }
  absl::Status Store(const BucketSlice& slice, std::span<const std::byte> bytes) override {
    FailPoint("receiver: chunk");
    return arriving_->Write((*places_)[static_cast<size_t>(slice.tensor)], slice.offset, bytes);
  }

 private:
  const Device memory_;
  ArrivingWeights* const arriving_;
  const std::vector<size_t>* const places_;
  const std::shared_ptr<const void> owner_;
};

}  // namespace

WeightReceiver::WeightReceiver(WeightSink* sink, std::vector<TensorSpec> tensors, Live initial,
                               LoadBase load_base, std::vector<TensorSpec> stored)
    : sink_(sink),
      tensors_(std::move(tensors)),
      stored_(std::move(stored)),
      places_(PlacesOf(tensors_)),
      load_base_(std::move(load_base)),
      base_digests_(initial.digests),
      live_(std::make_shared<const Live>(std::move(initial))),
      held_(tensors_.size()) {}

absl::Status WeightReceiver::Reserve() {
  MutexLock lock(&mu_);
  int64_t bytes = 0;
  for (const TensorSpec& tensor : tensors_) bytes += tensor.num_bytes();
  try {
    for (size_t i = 0; i < tensors_.size(); ++i) held_[i] = TakenMemory(tensors_[i]);
  } catch (const std::bad_alloc&) {
    return ResourceExhausted(
        "no memory for the ", bytes,
        " bytes that a push of weights arrives in: the model needs a machine or a "
        "memory limit that is larger");
  }
  return absl::OkStatus();
}

void WeightReceiver::StartEpoch(int64_t epoch) {
  MutexLock lock(&mu_);
  // A running commit belongs to the epoch before, and must not end under the new one.
  while (committing_) commit_ended_.Wait(&mu_);
  epoch_ = epoch;
  committed_in_epoch_ = false;
  DropUpdate();
}

absl::StatusOr<std::vector<int64_t>> WeightReceiver::Begin(WeightVersion version,
                                                           const std::vector<TensorSpec>& manifest,
                                                           const std::optional<Delta>& delta,
                                                           bool on_device) {
  const bool stored = !stored_.empty() && std::ranges::any_of(manifest, [](const TensorSpec& spec) {
    return spec.dtype == DType::kU8;
  });
  TANDEM_ASSIGN_OR_RETURN(std::vector<size_t> places, MatchManifest(manifest, stored));
  MutexLock lock(&mu_);
  TANDEM_RETURN_IF_ERROR(CheckBegin(version));
  if (delta) TANDEM_RETURN_IF_ERROR(CheckDeltaForms(places, *delta, stored));
  DropUpdate();  // frees its memory for this one
  auto update = std::make_shared<Update>();
  update->version = version;
  if (on_device) {
    TANDEM_ASSIGN_OR_RETURN(update->arriving, sink_->Arrive());
  } else {
    HoldAs(stored);
    update->digests.resize(places.size());
    for (size_t i = 0; i < places.size(); ++i) {
      const TensorSpec* const spec = &Specs(stored)[places[i]];
      std::shared_ptr<TensorMemory> held = std::move(held_[places[i]]);
      update->tensors.push_back(delta
                                    ? StagedTensor::OverLive(spec, delta->forms[i], std::move(held))
                                    : StagedTensor::Dense(spec, std::move(held)));
    }
    if (!delta) held_is_live_ = false;
  }
  update->places = std::move(places);
  update_ = std::move(update);
  FailPoint("receiver: begun");
  return SizesOf(*update_);
}

// Reads the base where that was not done before.
absl::Status WeightReceiver::CheckBase(const AdapterHeader& header) {
  if (load_base_ == nullptr) return FailedPrecondition("this server takes no adapters");
  const std::string loaded = CombinedDigest(base_digests_);
  if (header.base_digest != loaded) {
    return InvalidArgument("the adapter is of a base with digest ", header.base_digest,
                           ", and this server loaded one with digest ", loaded,
                           ": start it with the model that the trainer starts from");
  }
  if (sink_->unmerged()) return absl::OkStatus();  // it holds the base itself
  {
    MutexLock lock(&mu_);
    if (base_ != nullptr) return absl::OkStatus();
  }
  TANDEM_ASSIGN_OR_RETURN(std::vector<HostTensor> base, load_base_());
  if (CombinedDigest(DigestTensors(base)) != loaded) {
    return FailedPrecondition(
        "the files of the model changed since this server loaded them: start it anew");
  }
  MutexLock lock(&mu_);
  base_ = std::make_shared<const std::vector<HostTensor>>(std::move(base));
  return absl::OkStatus();
}

absl::StatusOr<std::vector<int64_t>> WeightReceiver::BeginAdapter(
    WeightVersion version, const AdapterHeader& header, std::vector<TensorSpec> manifest) {
  TANDEM_ASSIGN_OR_RETURN(std::unique_ptr<AdapterUpdate> adapter,
                          AdapterUpdate::Create(header, std::move(manifest), tensors_));
  TANDEM_RETURN_IF_ERROR(CheckBase(header));
  MutexLock lock(&mu_);
  TANDEM_RETURN_IF_ERROR(CheckBegin(version));
  DropUpdate();  // frees its memory for this one
  auto update = std::make_shared<Update>();
  update->version = version;
  update->adapter = std::move(adapter);
  update->digests.resize(update->adapter->manifest().size());
  for (const TensorSpec& spec : update->adapter->manifest()) {
    update->tensors.push_back(StagedTensor::Dense(&spec, nullptr));
  }
  HoldAs(/*stored=*/false);
  for (size_t m = 0; m < update->adapter->modules().size() && !sink_->unmerged(); ++m) {
    update->merge_into.push_back(std::move(held_[update->adapter->place(m)]));
  }
  held_is_live_ = false;
  update_ = std::move(update);
  FailPoint("receiver: begun");
  return SizesOf(*update_);
}

absl::StatusOr<std::unique_ptr<BucketStore>> WeightReceiver::Buckets(WeightVersion version) {
  MutexLock lock(&mu_);
  if (!update_ || update_->version != version) return NotInProgress(version);
  if (!update_->arriving) return std::make_unique<StagingStore>(this, version);
  return std::make_unique<DeviceStore>(sink_->arrival_memory().value_or(Device::kCpu),
                                       update_->arriving.get(), &update_->places, update_);
}

std::vector<int64_t> WeightReceiver::SizesOf(const Update& update) const {
  std::vector<int64_t> sizes;
  if (update.arriving) {
    for (const size_t place : update.places) sizes.push_back(tensors_[place].num_bytes());
  }
  for (const StagedTensor& tensor : update.tensors) sizes.push_back(tensor.wire_bytes());
  return sizes;
}

absl::Status WeightReceiver::CheckDeltaForms(const std::vector<size_t>& places, const Delta& delta,
                                             bool stored) const {
  const bool is_held = held_is_live_ && held_stored_ == stored;
  if (!is_held || live_->version != delta.base) {
    return FailedPrecondition("no delta over version ", delta.base.value, " is taken: version ",
                              live_->version.value, " is live",
                              is_held ? "" : ", and its bytes are not held", "; push dense");
  }
  if (delta.forms.size() != places.size()) {
    return InvalidArgument(delta.forms.size(), " encodings for ", places.size(), " tensors");
  }
  for (size_t i = 0; i < places.size(); ++i) {
    const TensorSpec& spec = Specs(stored)[places[i]];
    const auto& [encoding, size] = delta.forms[i];
    const bool is_dense = encoding == TensorEncoding::kDense;
    if (size < 0 || size > spec.num_bytes() || (is_dense && size != spec.num_bytes())) {
      return InvalidArgument(size, " bytes, encoded ", TensorEncodingName(encoding), ", for the ",
                             spec.num_bytes(), " bytes of ", spec.name);
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<size_t>> WeightReceiver::MatchManifest(
    const std::vector<TensorSpec>& manifest, bool stored) const {
  std::vector<std::string> problems;
  std::vector<size_t> places;
  std::vector<bool> seen(tensors_.size(), false);
  for (const TensorSpec& spec : manifest) {
    const auto place = places_.find(spec.name);
    if (place == places_.end()) {
      problems.push_back(absl::StrCat("unknown tensor '", spec.name, "'"));
      continue;
    }
    const TensorSpec& expected = Specs(stored)[place->second];
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
  return InvalidArgument(
      "the manifest does not fit the served model (", problems.size(),
      " differences): ", absl::StrJoin(problems.begin(), problems.begin() + shown, "; "));
}

void WeightReceiver::HoldAs(bool stored) {
  if (held_stored_ == stored) return;
  for (std::shared_ptr<TensorMemory>& memory : held_) memory.reset();
  held_stored_ = stored;
  held_is_live_ = false;
}

absl::Status WeightReceiver::CheckBegin(WeightVersion version) const {
  if (version.value < 0) {
    return InvalidArgument("version is ", version.value);
  }
  if (committing_) return Aborted("a commit is running; try again when it has ended");
  if (!committed_in_epoch_ || version > live_->version) return absl::OkStatus();
  return FailedPrecondition("version ", version.value, " is not newer than the live version ",
                            live_->version.value, " of epoch ", epoch_);
}

absl::Status WeightReceiver::Receive(WeightVersion version, int32_t index, int64_t offset,
                                     std::span<const std::byte> data) {
  FailPoint("receiver: chunk");
  std::shared_ptr<Update> update;
  std::shared_ptr<TensorMemory> completed;  // a second owner, so that nobody writes it meanwhile
  std::span<const std::byte> bytes;
  const auto at = static_cast<size_t>(index);
  {
    MutexLock lock(&mu_);
    if (!update_ || update_->version != version) return NotInProgress(version);
    if (update_->arriving) {
      return FailedPrecondition("version ", version.value,
                                " arrives on the device: call ReceiveBuckets");
    }
    if (index < 0 || at >= update_->tensors.size()) {
      return OutOfRange("tensor ", index, " of ", update_->tensors.size());
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
  // Compares objects and not versions: the same version may have been begun anew meanwhile.
  if (update_ != update) return absl::OkStatus();
  update->digests[at] = std::move(digest);
  update->digest_seconds += MonotonicSeconds() - begin;
  return absl::OkStatus();
}

absl::StatusOr<WeightReceiver::CommitReport> WeightReceiver::Commit(WeightVersion version,
                                                                    const DigestMap& digests,
                                                                    const DigestMap& word_sums) {
  std::shared_ptr<Update> update;
  {
    MutexLock lock(&mu_);
    // A repeated call waits for the outcome of the first.
    while (committing_) commit_ended_.Wait(&mu_);
    if (committed_in_epoch_ && live_->version == version && live_->digests == digests) {
      return CommitReport{*live_};
    }
    if (!update_ || update_->version != version) return NotInProgress(version);
    update = std::exchange(update_, nullptr);
    committing_ = true;
  }
  absl::StatusOr<CommitReport> report = Install(*update, digests, word_sums);
  MutexLock lock(&mu_);
  committing_ = false;
  commit_ended_.NotifyAll();
  GiveBack(*update, /*committed=*/report.ok());
  if (report.ok()) {
    Live& live = report->live;
    live.version = version;
    live.epoch = epoch_;
    live.digests = digests;
    live.word_sums = update->arriving ? word_sums : DigestMap();
    live_ = std::make_shared<const Live>(live);
    committed_in_epoch_ = true;
    FailPoint("receiver: committed");
  }
  return report;
}

absl::StatusOr<WeightReceiver::CommitReport> WeightReceiver::Install(Update& update,
                                                                     const DigestMap& digests,
                                                                     const DigestMap& word_sums) {
  const double begin = MonotonicSeconds();
  TANDEM_RETURN_IF_ERROR(CheckNames(
      "digest", digests, update.adapter ? PlacesOf(update.adapter->manifest()) : places_));
  TANDEM_RETURN_IF_ERROR(update.arriving ? VerifyOnDevice(update, word_sums)
                                         : Verify(update, digests));
  FailPoint("receiver: verified");
  const double verified = MonotonicSeconds();
  CommitReport report;
  TANDEM_ASSIGN_OR_RETURN(std::unique_ptr<StagedWeights> staged,
                          StageVerified(update, &report.live));
  FailPoint("receiver: packed");
  report.verify_seconds = verified - begin + update.digest_seconds;
  report.pack_seconds = MonotonicSeconds() - verified;
  report.live.served = staged->served_digests;
  TANDEM_ASSIGN_OR_RETURN(report.pause_seconds, sink_->Install(std::move(staged), update.version));
  FailPoint("receiver: installed");
  return report;
}

absl::StatusOr<std::unique_ptr<StagedWeights>> WeightReceiver::StageVerified(Update& update,
                                                                             Live* live) {
  if (update.arriving) return update.arriving->Take();
  if (update.adapter && sink_->unmerged()) {
    UnmergedAdapter unmerged = update.adapter->Unmerged(update.tensors, base_digests_);
    live->merged = std::move(unmerged.digests);
    live->effects = std::move(unmerged.effects);
    return sink_->StageAdapter(unmerged.factors);
  }
  if (update.adapter) {
    std::shared_ptr<const std::vector<HostTensor>> base;
    {
      MutexLock lock(&mu_);
      base = base_;
    }
    MergedAdapter merged =
        update.adapter->Merge(update.tensors, *base, base_digests_, update.merge_into);
    live->merged = std::move(merged.digests);
    live->effects = std::move(merged.effects);
    return sink_->Stage(std::move(merged.tensors));
  }
  std::vector<HostTensor> tensors(tensors_.size());
  for (size_t i = 0; i < update.tensors.size(); ++i) {
    const StagedTensor& tensor = update.tensors[i];
    tensors[update.places[i]] = {tensor.spec(), tensor.bytes(), tensor.memory()};
  }
  return sink_->Stage(std::move(tensors));
}

// Missing bytes are not counted. They are found like any wrong bytes, since the sums are over all
// bytes that would be served.
absl::Status WeightReceiver::VerifyOnDevice(Update& update, const DigestMap& word_sums) const {
  TANDEM_RETURN_IF_ERROR(CheckNames("word_sums", word_sums, places_));
  TANDEM_ASSIGN_OR_RETURN(const std::vector<std::string> sums, update.arriving->Seal());
  for (const size_t place : update.places) {
    TANDEM_RETURN_IF_ERROR(CheckDigest("word_sums", tensors_[place].name, sums[place], word_sums));
  }
  return absl::OkStatus();
}

absl::Status WeightReceiver::Verify(Update& update, const DigestMap& digests) const {
  for (size_t i = 0; i < update.tensors.size(); ++i) {
    StagedTensor& tensor = update.tensors[i];
    const std::string& name = tensor.spec().name;
    TANDEM_RETURN_IF_ERROR(tensor.Finish());
    std::string& digest = update.digests[i];
    if (digest.empty()) digest = Digest128(tensor.bytes());
    TANDEM_RETURN_IF_ERROR(CheckDigest("digest", name, digest, digests));
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

// Takes the memory of an update back: after a commit that of its tensors, else that of the live
// version's tensors which the update had.
void WeightReceiver::GiveBack(Update& update, bool committed) {
  if (update.adapter) {
    for (size_t m = 0; m < update.merge_into.size(); ++m) {
      held_[update.adapter->place(m)] = std::move(update.merge_into[m]);
    }
    return;
  }
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
  // When this version arrived on the device, the held bytes stay those of an earlier one.
  if (committed) held_is_live_ = update.arriving == nullptr;
}

void WeightReceiver::DropUpdate() {
  if (!update_) return;
  GiveBack(*update_, /*committed=*/false);
  update_.reset();
}

}  // namespace tandem::rollout
