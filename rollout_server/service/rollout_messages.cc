#include "rollout_server/service/rollout_messages.h"

#include "common/base/status_macros.h"
#include "common/rpc/refusal.h"
#include "common/weights/digest.h"
#include "proto/rollout.pb.h"
#include "rollout_server/engine/turns.h"
#include "rollout_server/groups/ownership.h"

namespace tandem::rollout {
namespace {

SamplingParams SamplingFromWire(const v1::SamplingParams& wire) {
  SamplingParams sampling;
  sampling.temperature = wire.temperature();
  sampling.top_k = wire.top_k();
  sampling.top_p = wire.top_p() == 0 ? 1.0f : wire.top_p();
  sampling.min_p = wire.min_p();
  sampling.max_new_tokens = wire.max_new_tokens();
  sampling.min_new_tokens = wire.min_new_tokens();
  sampling.stop_token_ids.assign(wire.stop_token_ids().begin(), wire.stop_token_ids().end());
  sampling.stop_strings.assign(wire.stop_strings().begin(), wire.stop_strings().end());
  sampling.seed = wire.seed();
  sampling.ignore_eos = wire.ignore_eos();
  sampling.return_support = wire.return_support();
  sampling.packed_support = wire.packed_support();
  sampling.top_logprobs = wire.top_logprobs();
  return sampling;
}

// Equal for calls that request the same completions: all fields count, except those about admission
// and the form of the response.
std::string FingerprintOf(const v1::GenerateGroupRequest& request) {
  v1::GenerateGroupRequest counted = request;
  counted.clear_min_weight_version();
  counted.clear_prompt_hash();
  counted.clear_admission_batch();
  counted.clear_priority();
  counted.clear_delivery();
  counted.mutable_sampling()->clear_packed_support();
  const std::string bytes = counted.SerializeAsString();
  return Digest128(std::as_bytes(std::span(bytes.data(), bytes.size())));
}

v1::FinishReason ReasonToWire(FinishReason reason) {
  constexpr v1::FinishReason kReasons[] = {v1::FINISH_REASON_STOP, v1::FINISH_REASON_LENGTH,
                                           v1::FINISH_REASON_STOP_STRING,
                                           v1::FINISH_REASON_STOPPED_EARLY};
  return kReasons[static_cast<size_t>(reason)];
}

// The most bytes that a token without its support, and one entry of its top_logprobs, take on the
// wire: ids are varints of at most 5 bytes, the sampler's numbers are fp32.
constexpr int64_t kTokenWireBytes = 5 + 5 * 4 + 5 + 1;
constexpr int64_t kTopLogprobWireBytes = 5 + 4;

// Whether the longest possible completion could be sent without supports. Its real length, and the
// size of its supports, are known only at its end.
absl::Status CheckLargestCompletion(const GroupRequest& request) {
  const int32_t top_logprobs = request.sampling.top_logprobs;
  const int64_t longest = request.max_completion_tokens();
  const int64_t bytes = longest * (kTokenWireBytes + top_logprobs * kTopLogprobWireBytes);
  if (bytes <= rpc::kMaxMessageBytes) return absl::OkStatus();
  return rpc::Refused(
      rpc::Refusal::kTooLarge,
      InvalidArgument("a completion of ",
                      request.turns ? "turns.max_completion_tokens" : "sampling.max_new_tokens",
                      " = ", longest, " with sampling.top_logprobs = ", top_logprobs,
                      " takes up to ", bytes, " bytes, a message at most ", rpc::kMaxMessageBytes,
                      ": lower one of them"));
}

absl::Status TakeTurns(const v1::GenerateGroupRequest& request, GroupRequest& group) {
  if (!request.has_turns()) return absl::OkStatus();
  if (request.delivery() == v1::DELIVERY_GROUP) {
    return InvalidArgument(
        "delivery is DELIVERY_GROUP with turns: the end of a turn must be sent at once, so "
        "DELIVERY_MEMBERS is wanted");
  }
  group.turns = TurnLimits{.max_turns = request.turns().max_turns(),
                           .max_completion_tokens = request.turns().max_completion_tokens()};
  return ValidateTurns(*group.turns);
}

// The largest index at which a group may begin. It is far below the range of int32, so that the
// indices of the group cannot overflow.
constexpr int32_t kLargestFirstIndex = 1 << 20;

template <typename T>
void Append(const std::vector<T>& values, google::protobuf::RepeatedField<T>* to) {
  to->Add(values.begin(), values.end());
}

int BitsFromWire(int32_t bits) { return bits == 0 ? kFp32SignificandBits : bits; }

absl::StatusOr<ScoreOptions> ScoreOptionsFromWire(const v1::ScoreRequest& request) {
  ScoreOptions options;
  options.temperature = request.temperature() == 0 ? 1.0f : request.temperature();
  options.top_k = request.top_k();
  options.top_p = request.top_p() == 0 ? 1.0f : request.top_p();
  options.min_p = request.min_p();
  options.alone = request.alone();
  options.as_served = request.as_served();
  options.adapter = request.adapter();
  const v1::SitePrecision& precision = request.precision();
  options.arithmetic.precision = {
      BitsFromWire(precision.body_bits()), BitsFromWire(precision.head_bits()),
      BitsFromWire(precision.kv_bits()), BitsFromWire(precision.rotary_bits())};
  if (request.path() == v1::SCORE_PATH_DECODE) {
    options.path = ScorePath::kDecode;
  } else if (request.path() != v1::SCORE_PATH_PREFILL &&
             request.path() != v1::SCORE_PATH_UNSPECIFIED) {
    return InvalidArgument("path is ", request.path());
  }
  TANDEM_RETURN_IF_ERROR(ValidateScoreOptions(options));
  return options;
}

}  // namespace

absl::StatusOr<GroupSubmission> SubmissionFromWire(const v1::GenerateGroupRequest& request) {
  if (!request.has_sampling()) return InvalidArgument("sampling is missing");
  if (request.num_completions() < 1) {
    return InvalidArgument("num_completions is ", request.num_completions(),
                           ", must be at least 1");
  }
  if (request.first_completion() < 0 || request.first_completion() > kLargestFirstIndex) {
    return InvalidArgument("first_completion is ", request.first_completion(), ", must be 0 to ",
                           kLargestFirstIndex);
  }
  if (request.prompt_token_ids().empty()) {
    return InvalidArgument("prompt_token_ids is empty");
  }
  TANDEM_RETURN_IF_ERROR(CheckRunId(request.run_id()));
  GroupSubmission submission;
  submission.run_id = request.run_id();
  submission.group_id = request.group_id();
  submission.fingerprint = FingerprintOf(request);
  submission.request.prompt.assign(request.prompt_token_ids().begin(),
                                   request.prompt_token_ids().end());
  submission.request.num_completions = request.num_completions();
  submission.request.first_index = request.first_completion();
  submission.request.sampling = SamplingFromWire(request.sampling());
  submission.request.priority = request.priority();
  submission.request.adapter = request.adapter();
  if (request.greedy_baseline()) {
    ++submission.request.num_completions;
    submission.request.baseline = GreedyOf(submission.request.sampling);
  }
  TANDEM_RETURN_IF_ERROR(ValidateSampling(submission.request.sampling));
  TANDEM_RETURN_IF_ERROR(TakeTurns(request, submission.request));
  TANDEM_RETURN_IF_ERROR(CheckLargestCompletion(submission.request));
  const float penalty = request.sampling().repetition_penalty();
  if (penalty != 0 && penalty != 1) {
    return InvalidArgument("sampling.repetition_penalty is ", penalty,
                           ": it is not supported, since log-probs under it "
                           "depend on ids in a way the trainer does not re-score; leave it out");
  }
  if (!v1::Delivery_IsValid(request.delivery())) {
    return InvalidArgument("delivery is ", request.delivery());
  }
  const uint64_t hash = HashTokenIds(submission.request.prompt);
  if (request.prompt_hash() != 0 && request.prompt_hash() != hash) {
    return InvalidArgument("prompt_hash is ", request.prompt_hash(), " but the ids hash to ", hash,
                           ": the prompt changed on the way");
  }
  if (request.has_admission_batch()) {
    submission.batch =
        AdmissionBatches::BatchRef{request.run_id(), request.admission_batch().batch_id(),
                                   request.admission_batch().num_groups()};
  }
  return submission;
}

void CompletionToWire(const FinishedCompletion& completion, const SamplingParams& sampling,
                      v1::Completion* wire) {
  wire->set_index(completion.index);
  Append(completion.token_ids, wire->mutable_token_ids());
  Append(completion.behaviour_logprobs, wire->mutable_behaviour_logprobs());
  Append(completion.raw_logprobs, wire->mutable_raw_logprobs());
  Append(completion.entropies, wire->mutable_entropies());
  Append(completion.logprob_second_moments, wire->mutable_logprob_second_moments());
  Append(completion.decode_batch_sizes, wire->mutable_decode_batch_sizes());
  for (const bool cached : completion.prefix_cached) wire->add_prefix_cached(cached);
  Append(completion.kept_mass, wire->mutable_kept_mass());
  for (const PackedSupport& support : completion.support) {
    v1::TokenSupport* const one = wire->add_support();
    if (sampling.packed_support) {
      one->set_packed(support.bytes());
    } else {
      Append(support.ids(), one->mutable_ids());
    }
  }
  for (const std::vector<TopLogprob>& top : completion.top) {
    v1::TopLogprobs* one = wire->add_top_logprobs();
    for (const TopLogprob& entry : top) {
      one->add_ids(entry.id);
      one->add_logprobs(entry.logprob);
    }
  }
  for (const VersionSpan& span : completion.version_spans) {
    v1::VersionSpan* one = wire->add_version_spans();
    one->set_weight_version(span.version.value);
    one->set_num_tokens(span.num_tokens);
  }
  wire->set_finish_reason(ReasonToWire(completion.finish_reason));
  wire->set_text(completion.text);
  wire->set_decode_ms(completion.decode_seconds * 1e3);
  wire->set_longest_gap_ms(completion.longest_gap_seconds * 1e3);
  wire->set_wait_ms(completion.wait_seconds * 1e3);
  for (const Segment& segment : completion.segments) {
    v1::Segment* const one = wire->add_segments();
    one->set_given(segment.given);
    one->set_num_tokens(segment.num_tokens);
    one->set_text(segment.text);
  }
  wire->set_token_hash(
      HashTokenIds(completion.hashed_ids.empty() ? completion.token_ids : completion.hashed_ids));
  wire->set_seed(sampling.seed);
  wire->set_greedy(sampling.temperature == 0);
}

absl::Status CheckMessage(const FinishedCompletion& completion, const SamplingParams& sampling) {
  int64_t bytes = static_cast<int64_t>(completion.token_ids.size()) *
                      (kTokenWireBytes + sampling.top_logprobs * kTopLogprobWireBytes) +
                  static_cast<int64_t>(completion.text.size());
  int64_t support_bytes = 0;
  for (const PackedSupport& support : completion.support) {
    // Ids are varints; those of a large vocabulary mostly have 3 bytes.
    support_bytes += sampling.packed_support ? static_cast<int64_t>(support.bytes().size())
                                             : 3 * support.num_ids();
    support_bytes += 8;  // tags and lengths
  }
  if (bytes + support_bytes <= rpc::kMaxMessageBytes) return absl::OkStatus();
  return rpc::Refused(
      rpc::Refusal::kTooLarge,
      ResourceExhausted("completion ", completion.index, " of ", completion.token_ids.size(),
                        " tokens takes ", bytes + support_bytes, " bytes, ", support_bytes,
                        " of them for supports; a message has at most ", rpc::kMaxMessageBytes,
                        sampling.packed_support
                            ? ": ask for fewer tokens, or filters that leave fewer ids"
                            : ": ask for sampling.packed_support, or for fewer tokens"));
}

void TurnToWire(const FinishedTurn& turn, v1::Turn* wire) {
  wire->set_index(turn.index);
  wire->set_turn(turn.turn);
  Append(turn.token_ids, wire->mutable_token_ids());
  wire->set_finish_reason(ReasonToWire(turn.finish_reason));
  wire->set_text(turn.text);
  wire->set_num_tokens_left(turn.num_tokens_left);
  wire->set_token_hash(HashTokenIds(turn.token_ids));
}

absl::StatusOr<TurnAnswer> AnswerFromWire(const v1::ContinueCompletionRequest& request) {
  TurnAnswer answer = {.index = request.index(),
                       .turn = request.turn(),
                       .token_ids = {request.token_ids().begin(), request.token_ids().end()},
                       .finish = request.finish()};
  const uint64_t hash = HashTokenIds(answer.token_ids);
  if (request.token_hash() == 0 || request.token_hash() == hash) return answer;
  return InvalidArgument("token_hash is ", request.token_hash(), " but the ids hash to ", hash,
                         ": they changed on the way");
}

void ReportToWire(const GroupReport& report, v1::GroupDone* wire) {
  const auto ms = [](double from, double to) { return from > 0 ? (to - from) * 1e3 : 0; };
  wire->set_num_completions(static_cast<int32_t>(report.num_completions));
  wire->set_num_prompt_tokens_cached(report.num_prompt_tokens_cached);
  wire->set_queue_ms(ms(report.arrived, report.started));
  wire->set_prefill_ms(ms(report.started, report.decoding));
  wire->set_decode_ms(ms(report.decoding, report.ended));
  wire->set_incomplete(report.incomplete);
}

absl::StatusOr<ScoreQuestion> ScoreFromWire(const v1::ScoreRequest& request, int64_t vocab_size,
                                            int64_t max_context_tokens) {
  if (request.sequences().empty()) return InvalidArgument("no sequences");
  ScoreQuestion question;
  TANDEM_ASSIGN_OR_RETURN(question.options, ScoreOptionsFromWire(request));
  int64_t total = 0;
  for (int i = 0; i < request.sequences_size(); ++i) {
    const auto& ids = request.sequences(i).token_ids();
    total += ids.size();
    if (ids.size() < 2 || ids.size() > max_context_tokens) {
      return InvalidArgument("sequence ", i, " has ", ids.size(), " ids, must be in [2, ",
                             max_context_tokens, "]");
    }
    if (total > kMaxScoreTokens) {
      return rpc::Refused(rpc::Refusal::kTooLarge, InvalidArgument("more than ", kMaxScoreTokens,
                                                                   " ids in one call: split it"));
    }
    const int32_t prompt = request.sequences(i).num_prompt_tokens();
    if (prompt < 0 || prompt >= ids.size()) {
      return InvalidArgument("num_prompt_tokens of sequence ", i, " is ", prompt,
                             ", must be in [0, ", ids.size() - 1, "]");
    }
    for (const int32_t id : ids) {
      if (id < 0 || id >= vocab_size) {
        return InvalidArgument("sequence ", i, " has id ", id, " outside the vocabulary of ",
                               vocab_size);
      }
    }
    question.sequences.push_back({{ids.begin(), ids.end()}, prompt});
    const uint64_t hash = request.sequences(i).token_hash();
    if (hash != 0 && hash != HashTokenIds(question.sequences.back().ids)) {
      return InvalidArgument("token_hash of sequence ", i, " differs: the ids changed on the way");
    }
  }
  return question;
}

void ScoreToWire(const SequenceScore& score, v1::SequenceScore* wire) {
  Append(score.logprobs, wire->mutable_logprobs());
  Append(score.raw_logprobs, wire->mutable_raw_logprobs());
  Append(score.entropies, wire->mutable_entropies());
  Append(score.logprob_second_moments, wire->mutable_logprob_second_moments());
  Append(score.squared_probs, wire->mutable_squared_probs());
  Append(score.kept_mass, wire->mutable_kept_mass());
  Append(score.margins, wire->mutable_margins());
  Append(score.ranks, wire->mutable_ranks());
}

}  // namespace tandem::rollout
