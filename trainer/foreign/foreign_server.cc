#include "trainer/foreign/foreign_server.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <span>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/status_macros.h"
#include "trainer/foreign/weight_checksums.h"
#include "trainer/rollouts/server_lookup.h"

namespace tandem::trainer {
namespace {

using rollout::v1::Completion;
using rollout::v1::GenerateGroupRequest;
using rollout::v1::ScoreRequest;
using rollout::v1::ScoreResponse;

constexpr std::chrono::milliseconds kLookEach(50);  // whether a waiting call was cancelled

// Letters, digits, accents, symbols and another script, so that tokenizers differ in its ids and
// weights in its log-probs.
constexpr char kProbeText[] =
    "The farmer sold 48 eggs in April, and half as many in May: 48 + 24 = 72.\n"
    "def area(r):\n    return 3.14159 * r ** 2\n"
    "Ein Vogel fliegt über die Brücke; où est-il? 东京 is a city of 13,960,000.";

absl::Status CheckRequest(const GenerateGroupRequest& request) {
  const auto& sampling = request.sampling();
  const bool filters = sampling.top_k() > 0 || sampling.min_p() > 0 ||
                       (sampling.top_p() > 0 && sampling.top_p() < 1);
  if (filters && sampling.return_support()) {
    return InvalidArgument("vLLM does not say which ids its filters left");
  }
  if (sampling.top_logprobs() > 0) {
    return InvalidArgument("top_logprobs are not asked of a foreign server");
  }
  if (request.prompt_token_ids().empty()) return InvalidArgument("the prompt is empty");
  if (request.has_turns()) {
    return InvalidArgument(
        "completions of several turns need rollout_server: a foreign server keeps no sequence "
        "between two calls");
  }
  return absl::OkStatus();
}

absl::Status CheckScore(const ScoreRequest& request) {
  if (request.temperature() != 0 && request.temperature() != 1) {
    return InvalidArgument("vLLM scores prompts at temperature 1 alone, not ",
                           request.temperature());
  }
  if (request.top_k() > 0 || request.min_p() > 0 || (request.top_p() > 0 && request.top_p() < 1)) {
    return InvalidArgument("vLLM scores prompts without top-k, top-p and min-p");
  }
  if (request.path() == rollout::v1::SCORE_PATH_DECODE) {
    return InvalidArgument("vLLM scores prompts by prefill; the decode path cannot be asked for");
  }
  if (request.has_precision()) return InvalidArgument("vLLM rounds at no chosen site");
  return absl::OkStatus();
}

void SetDigests(const DigestMap& digests,
                google::protobuf::RepeatedPtrField<weights::v1::TensorDigest>* out) {
  for (const auto& [name, digest] : digests) {
    weights::v1::TensorDigest* const entry = out->Add();
    entry->set_name(name);
    entry->set_xxh3_128(digest);
  }
}

// How the trainer sends the weights: in the server's dtype where there is a cast to it, else whole.
std::string WireDType(const std::string& dtype) {
  return std::string(
      DTypeName(dtype == "float32" || dtype == "float16" ? DType::kF32 : DType::kBF16));
}

std::string ShortDType(const std::string& dtype) {
  return dtype == "float32" ? "fp32" : dtype == "float16" ? "fp16" : "bf16";
}

// The short prompt that tells processed log-probs from raw ones, at a temperature where they differ.
GenerateGroupRequest ModeQuestion(std::span<const int32_t> prompt) {
  GenerateGroupRequest request;
  *request.mutable_prompt_token_ids() = {prompt.begin(), prompt.end()};
  request.set_num_completions(1);
  request.mutable_sampling()->set_temperature(0.25f);
  request.mutable_sampling()->set_max_new_tokens(8);
  request.mutable_sampling()->set_ignore_eos(true);
  request.mutable_sampling()->set_seed(4);
  return request;
}

enum class LogprobsMode { kRaw, kProcessed, kUnknown };

// `given`: recorded at temperature 0.25; `raw`: of the same tokens at 1. Only tokens that were not
// sure anyway tell.
LogprobsMode LogprobsModeOf(std::span<const float> given, std::span<const float> raw) {
  constexpr float kSure = -0.1f, kNoise = 0.05f;
  LogprobsMode mode = LogprobsMode::kUnknown;
  for (size_t t = 0; t < given.size(); ++t) {
    if (raw[t] > kSure) continue;
    if (std::abs(given[t] - raw[t]) > kNoise) return LogprobsMode::kProcessed;
    mode = LogprobsMode::kRaw;
  }
  return mode;
}

}  // namespace

ForeignServer::ForeignServer(const std::string& address, const ForeignRun& run)
    : address_(address),
      run_(run),
      server_(std::string(ForeignHostPort(address)), run.call_seconds, run.push_seconds),
      probe_ids_(run.tokenizer->Encode(kProbeText).value_or(std::vector<int32_t>())),
      directory_(run.model, run.weights_dir) {}

ForeignServer::~ForeignServer() = default;

absl::Status ForeignServer::CheckTokenizer(const VllmFacts& facts) {
  const auto ids = server_.Tokenize(facts.model, kProbeText);
  if (!ids.ok()) {
    log::Warning("whether the server has the trainer's tokenizer cannot be told",
                 {{"server", address_}, {"reason", ids.status().ToString()}});
    return absl::OkStatus();
  }
  if (*ids == probe_ids_) return absl::OkStatus();
  return InvalidArgument("it serves a model with another tokenizer (", facts.root,
                         "): start vLLM with ", run_.model);
}

absl::Status ForeignServer::CheckLogprobs(const VllmFacts& facts) {
  // Without temperature and filters both are the same numbers.
  if (run_.temperature == 1) return absl::OkStatus();
  LogprobsMode mode = LogprobsMode::kUnknown;
  if (facts.logprobs_mode == "raw_logprobs") mode = LogprobsMode::kRaw;
  if (mode != LogprobsMode::kRaw) {
    const GenerateGroupRequest question = ModeQuestion(probe_ids_);
    TANDEM_ASSIGN_OR_RETURN(
        const std::string answer,
        server_.Complete(CompletionBody(facts.model, question, /*greedy=*/false), {}));
    TANDEM_ASSIGN_OR_RETURN(const std::vector<Completion> drawn,
                            ReadCompletions(question, /*greedy=*/false, 0, answer));
    std::vector<int32_t> ids = probe_ids_;
    ids.insert(ids.end(), drawn[0].token_ids().begin(), drawn[0].token_ids().end());
    TANDEM_ASSIGN_OR_RETURN(const std::vector<float> raw, server_.Score(facts.model, ids, {}));
    mode = LogprobsModeOf(std::vector<float>(drawn[0].behaviour_logprobs().begin(),
                                             drawn[0].behaviour_logprobs().end()),
                          std::span(raw).subspan(probe_ids_.size()));
  }
  if (mode == LogprobsMode::kProcessed) return absl::OkStatus();
  if (mode == LogprobsMode::kUnknown) {
    log::Warning(
        "whether the server gives processed log-probs cannot be told: it must run with "
        "--logprobs-mode processed_logprobs",
        {{"server", address_}});
    return absl::OkStatus();
  }
  return InvalidArgument("it gives raw log-probs, and trainer.sampling.temperature is ",
                         run_.temperature, ": start vLLM with --logprobs-mode processed_logprobs");
}

absl::Status ForeignServer::Describe() {
  auto facts = server_.Facts();
  if (absl::IsFailedPrecondition(facts.status())) {
    return InvalidArgument(facts.status().message());
  }
  TANDEM_RETURN_IF_ERROR(facts.status());
  TANDEM_RETURN_IF_ERROR(CheckTokenizer(*facts));
  TANDEM_RETURN_IF_ERROR(CheckLogprobs(*facts));
  if (facts->dtype.empty()) {
    log::Warning("the server does not say its dtype; bfloat16 is assumed", {{"server", address_}});
  }
  MutexLock lock(&mu_);
  facts_ = *std::move(facts);
  return absl::OkStatus();
}

absl::StatusOr<VllmFacts> ForeignServer::facts() {
  MutexLock describing(&describing_);
  {
    MutexLock lock(&mu_);
    if (facts_.has_value()) return *facts_;
  }
  TANDEM_RETURN_IF_ERROR(Describe());
  MutexLock lock(&mu_);
  return *facts_;
}

// A server that was started anew has the weights of its command line and no mark.
absl::Status ForeignServer::CheckSame() {
  std::string expected;
  {
    MutexLock lock(&mu_);
    if (!known_ || mark_.empty() || closed_) return absl::OkStatus();
    expected = mark_;
  }
  TANDEM_ASSIGN_OR_RETURN(const std::string mark, server_.Mark());
  MutexLock lock(&mu_);
  if (mark == expected || mark_ != expected || closed_) return absl::OkStatus();
  known_ = false;
  owner_.clear();
  facts_.reset();
  probe_scores_.clear();
  proven_.clear();
  return Unavailable(address_, " was started anew, or another program changed its weights (", mark,
                     " where ", expected, " was left)");
}

absl::StatusOr<rollout::v1::GetInfoResponse> ForeignServer::Info() {
  TANDEM_RETURN_IF_ERROR(server_.CheckHealth());
  const absl::Status same = CheckSame();
  {
    MutexLock lock(&mu_);
    if (!same.ok() && known_) return same;
  }
  TANDEM_ASSIGN_OR_RETURN(const VllmFacts facts, this->facts());
  rollout::v1::GetInfoResponse info;
  const std::string engine = absl::StrCat("vllm ", facts.version);
  info.set_server_version(engine);
  info.set_model_path(facts.root);
  info.set_dtype(ShortDType(facts.dtype));
  info.set_max_context_tokens(facts.max_model_len);
  info.set_tokenizer_hash(run_.tokenizer->hash());
  info.set_numerics("foreign");
  info.set_instruction_set(engine);
  info.set_in_flight(run_.in_flight == ForeignInFlight::kDrain ? "drain" : "abort");
  MutexLock lock(&mu_);
  info.set_owner_run_id(owner_);
  info.set_live_weight_version(known_ ? live_version_ : 0);
  info.set_weight_epoch(known_ ? live_epoch_ : 0);
  info.set_num_groups_running(static_cast<int32_t>(num_running_));
  info.set_paused(closed_);
  return info;
}

// Waits for a push to end. Returns the version that is live from now until Leave, unless the push
// aborts what runs.
absl::StatusOr<int64_t> ForeignServer::Enter(const Cancelled& cancelled) {
  MutexLock lock(&mu_);
  while (closed_) {
    if (cancelled && cancelled())
      return absl::CancelledError("the call was cancelled while a push went on");
    changed_.WaitUntil(&mu_, std::chrono::steady_clock::now() + kLookEach);
  }
  if (!known_) return FailedPrecondition(address_, " was not pushed weights yet");
  ++num_running_;
  return live_version_;
}

void ForeignServer::Leave() {
  MutexLock lock(&mu_);
  --num_running_;
  changed_.NotifyAll();
}

absl::StatusOr<std::vector<Completion>> ForeignServer::Generate(const GenerateGroupRequest& request,
                                                                const Cancelled& cancelled) {
  TANDEM_RETURN_IF_ERROR(CheckRequest(request));
  TANDEM_ASSIGN_OR_RETURN(const VllmFacts facts, this->facts());
  TANDEM_ASSIGN_OR_RETURN(const int64_t version, Enter(cancelled));
  const absl::Cleanup leave = [this] { Leave(); };
  if (version < request.min_weight_version()) {
    return FailedPrecondition(address_, " runs weight version ", version, ", older than ",
                              request.min_weight_version());
  }
  std::vector<Completion> completions;
  for (const bool greedy : {false, true}) {
    if (greedy && !request.greedy_baseline()) continue;
    TANDEM_ASSIGN_OR_RETURN(
        const std::string answer,
        server_.Complete(CompletionBody(facts.model, request, greedy), cancelled));
    TANDEM_ASSIGN_OR_RETURN(std::vector<Completion> drawn,
                            ReadCompletions(request, greedy, version, answer));
    std::ranges::move(drawn, std::back_inserter(completions));
  }
  TANDEM_RETURN_IF_ERROR(CheckSame());
  MutexLock lock(&mu_);
  // A push that began meanwhile loads its weights once this group has left.
  if (known_ && live_version_ == version) return completions;
  return Aborted("new weights came while the group was sampled");
}

absl::StatusOr<ScoreResponse> ForeignServer::Score(const ScoreRequest& request,
                                                   const Cancelled& cancelled) {
  TANDEM_RETURN_IF_ERROR(CheckScore(request));
  TANDEM_ASSIGN_OR_RETURN(const VllmFacts facts, this->facts());
  TANDEM_ASSIGN_OR_RETURN(const int64_t version, Enter(cancelled));
  const absl::Cleanup leave = [this] { Leave(); };
  ScoreResponse response;
  response.set_weight_version(version);
  for (const rollout::v1::ScoreSequence& sequence : request.sequences()) {
    const std::vector<int32_t> ids(sequence.token_ids().begin(), sequence.token_ids().end());
    if (ids.size() < 2) return InvalidArgument("a sequence to score needs 2 ids");
    TANDEM_ASSIGN_OR_RETURN(std::vector<float> scores, server_.Score(facts.model, ids, cancelled));
    const auto num_prompt = std::min<size_t>(
        scores.size(), static_cast<size_t>(std::max(1, sequence.num_prompt_tokens())));
    std::fill(scores.begin(), scores.begin() + static_cast<std::ptrdiff_t>(num_prompt), 0.0f);
    rollout::v1::SequenceScore* const out = response.add_scores();
    *out->mutable_logprobs() = {scores.begin(), scores.end()};
    *out->mutable_raw_logprobs() = {scores.begin(), scores.end()};
  }
  TANDEM_RETURN_IF_ERROR(CheckSame());
  MutexLock lock(&mu_);
  if (known_ && live_version_ == version) return response;
  return Aborted("new weights came while they were scored");
}

absl::Status ForeignServer::Claim(const weights::v1::InitTransferRequest& request) {
  if (!request.release()) {
    // A trainer that died while it pushed left the server paused.
    const auto paused = server_.IsPaused();
    bool pushing;
    {
      MutexLock lock(&mu_);
      pushing = closed_;
    }
    if (paused.ok() && *paused && !pushing) TANDEM_RETURN_IF_ERROR(server_.Resume());
  }
  MutexLock lock(&mu_);
  owner_ = request.release() ? "" : request.run_id();
  epoch_ = request.epoch();
  return absl::OkStatus();
}

absl::Status ForeignServer::Begin(const weights::v1::BeginUpdateRequest& request) {
  if (request.on_device()) return Unimplemented("a foreign server takes weights by its directory");
  if (request.has_delta()) return InvalidArgument("a foreign server takes whole tensors");
  std::vector<TensorSpec> tensors;
  for (const weights::v1::TensorSpec& tensor : request.manifest().tensors()) {
    TANDEM_ASSIGN_OR_RETURN(const DType dtype, DTypeFromName(tensor.dtype()));
    tensors.push_back({tensor.name(), dtype, {tensor.shape().begin(), tensor.shape().end()}});
  }
  MutexLock lock(&push_mu_);
  directory_.Stage(request.manifest().version(), std::move(tensors));
  return absl::OkStatus();
}

absl::Status ForeignServer::Receive(const weights::v1::PushChunksRequest& chunk) {
  MutexLock lock(&push_mu_);
  return directory_.Receive(chunk.version(), chunk.tensor_index(), chunk.offset_bytes(),
                            std::as_bytes(std::span(chunk.data())));
}

void ForeignServer::Abort() {
  MutexLock lock(&push_mu_);
  directory_.Drop();
}

absl::StatusOr<std::vector<float>> ForeignServer::ScoreProbe() {
  TANDEM_ASSIGN_OR_RETURN(const VllmFacts facts, this->facts());
  return server_.Score(facts.model, probe_ids_, {});
}

// Lets no group begin and waits until none runs; with in_flight abort the pause has ended them.
absl::Status ForeignServer::Close(bool waits) {
  {
    MutexLock lock(&mu_);
    closed_ = true;
  }
  if (!waits) TANDEM_RETURN_IF_ERROR(server_.Pause(/*waits=*/false));
  const double until = MonotonicSeconds() + run_.push_seconds;
  {
    MutexLock lock(&mu_);
    while (num_running_ > 0) {
      if (MonotonicSeconds() > until) {
        return DeadlineExceeded(num_running_, " groups at ", address_, " did not end within ",
                                run_.push_seconds, " s (trainer.push.timeout_seconds)");
      }
      changed_.WaitUntil(&mu_, std::chrono::steady_clock::now() + kLookEach);
    }
  }
  return waits ? server_.Pause(/*waits=*/true) : absl::OkStatus();
}

// `touched`: other weights may be there now, whatever the status.
absl::Status ForeignServer::Swap(const std::string& directory, bool* touched) {
  absl::Status status = Close(run_.in_flight == ForeignInFlight::kDrain);
  *touched = status.ok();
  if (status.ok()) status = server_.LoadWeights(directory);
  status.Update(server_.Resume());
  return status;
}

// What the server keeps in our layout after one push, it keeps so after the next.
absl::Status ForeignServer::Prove(ForeignDelivery* delivery) {
  if (!run_.checksums) return absl::OkStatus();
  TANDEM_ASSIGN_OR_RETURN(const auto checksums, server_.Checksums());
  std::set<std::string> proven = CompareChecksums(
      checksums, [this](const std::string& name) { return directory_.bytes(name); });
  delivery->num_parameters = std::ssize(checksums);
  delivery->num_proven = std::ssize(proven);
  MutexLock lock(&mu_);
  for (const std::string& before : proven_) {
    if (proven.contains(before) || !checksums.contains(before)) continue;
    return DataLoss(address_, " does not hold ", before,
                    " as it was written, although it did so after the push before");
  }
  proven_ = std::move(proven);
  return absl::OkStatus();
}

absl::StatusOr<weights::v1::CommitUpdateResponse> ForeignServer::Commit(
    const weights::v1::CommitUpdateRequest& request) {
  MutexLock push(&push_mu_);
  weights::v1::CommitUpdateResponse response;
  ForeignDelivery delivery = {.server = address_, .version = request.version()};
  const double began = MonotonicSeconds();
  DigestMap digests, written;
  for (const auto& digest : request.digests()) digests[digest.name()] = digest.xxh3_128();
  TANDEM_ASSIGN_OR_RETURN(const std::string directory, directory_.Write(digests, &written));
  response.set_verify_ms((MonotonicSeconds() - began) * 1e3);
  absl::StatusOr<std::vector<float>> before = std::vector<float>();
  {
    MutexLock lock(&mu_);
    if (known_) {
      before = probe_scores_;
      delivery.bytes = live_digests_ == written ? ForeignBytes::kSame : ForeignBytes::kOther;
    }
  }
  if (before->empty()) before = ScoreProbe();
  const double closed = MonotonicSeconds();
  bool touched = false;
  absl::Status status = Swap(directory, &touched);
  if (status.ok()) status = Prove(&delivery);
  if (status.ok()) {
    status = server_.SetMark(
        absl::StrCat(request.run_id(), "/", request.epoch(), "/", request.version()));
  }
  absl::StatusOr<std::string> mark = status.ok() ? server_.Mark() : absl::StatusOr<std::string>("");
  status.Update(mark.status());
  response.set_pause_ms((MonotonicSeconds() - closed) * 1e3);
  {
    MutexLock lock(&mu_);
    closed_ = false;
    changed_.NotifyAll();
    if (status.ok()) {
      live_version_ = request.version();
      live_epoch_ = request.epoch();
      live_digests_ = written;
      mark_ = *std::move(mark);
    }
    if (touched) known_ = status.ok();  // after an error half of the weights may be there
  }
  TANDEM_RETURN_IF_ERROR(status);
  directory_.Drop();
  NoteDelivery(before, std::move(delivery));
  response.set_live_version(request.version());
  SetDigests(written, response.mutable_live_digests());
  return response;
}

void ForeignServer::NoteDelivery(const absl::StatusOr<std::vector<float>>& before,
                                 ForeignDelivery delivery) {
  const absl::StatusOr<std::vector<float>> after = ScoreProbe();
  if (before.ok() && after.ok() && before->size() == after->size()) {
    delivery.num_tokens = std::ssize(*after) - 1;
    for (size_t t = 1; t < after->size(); ++t) {
      const double change = std::abs(static_cast<double>((*after)[t]) - (*before)[t]);
      delivery.num_moved += change > 0;
      delivery.mean_abs_change += change / static_cast<double>(delivery.num_tokens);
      delivery.max_abs_change = std::max(delivery.max_abs_change, change);
    }
  }
  MutexLock lock(&mu_);
  probe_scores_ = after.value_or(std::vector<float>());
  deliveries_.push_back(std::move(delivery));
}

absl::StatusOr<weights::v1::GetWeightInfoResponse> ForeignServer::WeightInfo() {
  TANDEM_RETURN_IF_ERROR(server_.CheckHealth());
  const absl::Status same = CheckSame();
  weights::v1::GetWeightInfoResponse response;
  {
    MutexLock lock(&mu_);
    if (!same.ok() && known_) return same;
  }
  TANDEM_ASSIGN_OR_RETURN(const VllmFacts facts, this->facts());
  weights::v1::TensorSpec* const any = response.add_tensors();
  any->set_name("all tensors");
  any->set_dtype(WireDType(facts.dtype));
  MutexLock lock(&mu_);
  if (!known_) return response;
  response.set_live_version(live_version_);
  response.set_epoch(live_epoch_);
  SetDigests(live_digests_, response.mutable_live_digests());
  return response;
}

std::vector<ForeignDelivery> ForeignServer::TakeDeliveries() {
  MutexLock lock(&mu_);
  return std::exchange(deliveries_, {});
}

void ForeignServer::Stop() { server_.Stop(); }

}  // namespace tandem::trainer
