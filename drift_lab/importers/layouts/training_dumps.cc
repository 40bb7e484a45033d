#include "drift_lab/importers/layouts/training_dumps.h"

#include <algorithm>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "drift_lab/importers/item_fields.h"
#include "nlohmann/json.hpp"

namespace tandem::drift {
namespace {

using nlohmann::json;

// A column of a dump: its name there, and where it goes.
struct DumpColumn {
  const char* name;
  Column column;
};

absl::Status WrongLength(std::string_view field, size_t expected, std::string_view of,
                         size_t found) {
  return InvalidArgument(field, ": expected ", expected, " elements (", of, "), found ", found);
}

// ---- NeMo-RL

// The only element of the lists that NeMo-RL cuts its batch to; null if there is none. A list of
// anything but lists is a sequence that was not wrapped.
const json* OnlyElement(const json& item, std::string_view field, bool is_list) {
  const json* value = FindField(item, field);
  if (value == nullptr || !value->is_array()) return value;
  if (is_list && !value->empty() && !value->front().is_array()) return value;
  return value->size() == 1 && !value->front().is_null() ? &value->front() : nullptr;
}

absl::StatusOr<size_t> NemoLength(const json& item, size_t padded_length) {
  const json* value = OnlyElement(item, "input_lengths", /*is_list=*/false);
  if (value == nullptr) {
    return InvalidArgument(
        "input_lengths: expected the length of the sequence without its padding, found nothing");
  }
  TANDEM_ASSIGN_OR_RETURN(const int64_t length, ReadInt(*value, "input_lengths"));
  if (length < 1 || static_cast<size_t>(length) > padded_length) {
    return InvalidArgument("input_lengths: expected 1 to ", padded_length,
                           " (the elements of token_ids), found ", length);
  }
  return static_cast<size_t>(length);
}

// The first `length` of a column that is as long as the padded token ids.
template <typename T>
absl::StatusOr<std::vector<T>> Unpadded(absl::StatusOr<std::vector<T>> values,
                                        std::string_view field, size_t padded_length,
                                        size_t length) {
  if (!values.ok()) return values.status();
  if (values->size() != padded_length) {
    return WrongLength(field, padded_length, "as many as token_ids", values->size());
  }
  values->resize(length);
  return values;
}

absl::StatusOr<std::vector<uint8_t>> NemoMask(const json& item, size_t padded_length,
                                              size_t length) {
  const json* value = OnlyElement(item, "token_loss_mask", /*is_list=*/true);
  if (value == nullptr) {
    return InvalidArgument("token_loss_mask: expected one list of 0 and 1, found none");
  }
  TANDEM_ASSIGN_OR_RETURN(const std::vector<uint8_t> mask, ReadMask(*value, "token_loss_mask"));
  if (mask.size() > length) {
    const auto padding = std::span(mask).subspan(length);
    const auto one = std::ranges::find(padding, 1);
    if (one != padding.end()) {
      return InvalidArgument("token_loss_mask: expected 0 behind the ", length,
                             " tokens of input_lengths, found 1 at element ",
                             length + static_cast<size_t>(one - padding.begin()));
    }
  }
  return Unpadded<uint8_t>(mask, "token_loss_mask", padded_length, length);
}

absl::Status NemoColumns(const json& item, size_t padded_length, RecordRow& row) {
  const size_t length = row.token_ids.size();
  for (const auto& [name, column] : {DumpColumn{"generation_logprobs", Column::kBehaviour},
                                     DumpColumn{"prev_logprobs", Column::kProximal}}) {
    const json* value = OnlyElement(item, name, /*is_list=*/true);
    if (value == nullptr) continue;
    TANDEM_ASSIGN_OR_RETURN(row.column(column),
                            Unpadded<float>(ReadFloats(*value, name), name, padded_length, length));
  }
  const json* advantages = OnlyElement(item, "advantages", /*is_list=*/true);
  if (advantages == nullptr) return absl::OkStatus();
  if (!advantages->is_array() || advantages->size() == 1) {
    const json& one = advantages->is_array() ? advantages->front() : *advantages;
    TANDEM_ASSIGN_OR_RETURN(row.facts.advantage, ReadFloat(one, "advantages"));
    return absl::OkStatus();
  }
  TANDEM_ASSIGN_OR_RETURN(
      row.column(Column::kAdvantages),
      Unpadded<float>(ReadFloats(*advantages, "advantages"), "advantages", padded_length, length));
  return absl::OkStatus();
}

absl::Status NemoFacts(const json& item, ImportContext& context, RowFacts& facts) {
  // With dynamic sampling `rewards` is of the batch before it was filtered, in another order.
  for (const char* field : {"filtered_rewards", "rewards"}) {
    const json* reward = OnlyElement(item, field, /*is_list=*/false);
    if (reward == nullptr) continue;
    TANDEM_ASSIGN_OR_RETURN(facts.reward, ReadFloat(*reward, field));
    break;
  }
  const json* trained = OnlyElement(item, "sample_loss_mask", /*is_list=*/false);
  if (trained != nullptr && trained->is_number() && trained->get<double>() == 0) {
    context.Note("sample_loss_mask is 0 on rows that were drawn and not trained on: they are kept");
  }
  const json* index = FindField(item, "idx");
  if (index != nullptr) facts.row_id = absl::StrCat("idx ", index->dump());
  return absl::OkStatus();
}

// ---- slime, miles

const json* FirstOf(const json& item, std::string_view field, std::string_view other) {
  const json* value = FindField(item, field);
  return value != nullptr ? value : FindField(item, other);
}

absl::StatusOr<size_t> ResponseLength(const json& sample, size_t num_tokens) {
  const json* value = FirstOf(sample, "response_length", "response_lengths");
  if (value == nullptr) {
    return InvalidArgument(
        "response_length: expected the number of tokens of the response, found "
        "nothing");
  }
  TANDEM_ASSIGN_OR_RETURN(const int64_t length, ReadInt(*value, "response_length"));
  if (length < 1 || static_cast<size_t>(length) > num_tokens) {
    return InvalidArgument("response_length: expected 1 to ", num_tokens,
                           " (the elements of tokens), found ", length);
  }
  TANDEM_ASSIGN_OR_RETURN(const auto total, IntOf(sample, "total_length"));
  if (total && static_cast<size_t>(*total) != num_tokens) {
    return InvalidArgument("total_length: expected ", num_tokens,
                           ", the elements of tokens, found ", *total);
  }
  return static_cast<size_t>(length);
}

absl::Status SlimeColumns(const json& sample, size_t response, RecordRow& row) {
  const size_t prompt = row.token_ids.size() - response;
  row.loss_mask.assign(row.token_ids.size(), 1);
  std::fill_n(row.loss_mask.begin(), prompt, 0);
  if (const json* mask = FirstOf(sample, "loss_mask", "loss_masks"); mask != nullptr) {
    TANDEM_ASSIGN_OR_RETURN(const std::vector<uint8_t> bits, ReadMask(*mask, "loss_mask"));
    if (bits.size() != response) {
      return WrongLength("loss_mask", response, "response_length", bits.size());
    }
    std::ranges::copy(bits, row.loss_mask.begin() + static_cast<int64_t>(prompt));
  }
  for (const auto& [name, column] :
       {DumpColumn{"rollout_log_probs", Column::kBehaviour},
        DumpColumn{"log_probs", Column::kProximal}, DumpColumn{"ref_log_probs", Column::kReference},
        DumpColumn{"advantages", Column::kAdvantages}}) {
    const json* value = FindField(sample, name);
    if (value == nullptr) continue;
    TANDEM_ASSIGN_OR_RETURN(const std::vector<float> values, ReadFloats(*value, name));
    if (values.size() != response)
      return WrongLength(name, response, "response_length", values.size());
    row.column(column) = Placed(values, prompt);
  }
  return absl::OkStatus();
}

// slime keeps one version of weights a segment of generation, and not how long the segments are.
absl::Status SlimeVersion(const json& sample, ImportContext& context, RecordRow& row) {
  const json* versions = FindField(sample, "weight_versions");
  if (versions == nullptr || !versions->is_array() || versions->empty()) return absl::OkStatus();
  const bool all_alike = std::ranges::all_of(
      *versions, [&](const json& version) { return version == versions->front(); });
  if (!all_alike) {
    context.Note(
        "weight_versions has several versions without their numbers of tokens: left out, so that "
        "staleness cannot be told");
    return absl::OkStatus();
  }
  const absl::StatusOr<int64_t> version = ReadInt(versions->front(), "weight_versions");
  if (!version.ok()) {
    context.Note("weight_versions are not numbers: left out");
    return absl::OkStatus();
  }
  row.weight_version = *version;
  return absl::OkStatus();
}

absl::Status SlimeFacts(const json& sample, ImportContext& context, RowFacts& facts) {
  if (const json* group = FindField(sample, "group_index")) facts.group_id = group->dump();
  if (const json* index = FirstOf(sample, "index", "sample_index")) {
    facts.row_id = absl::StrCat("sample ", index->dump());
  }
  facts.finish_reason = TextOf(sample, "status");
  const json* reward = FirstOf(sample, "reward", "rewards");
  if (reward != nullptr && reward->is_number()) {
    facts.reward = reward->get<double>();
  } else if (reward != nullptr) {
    context.Note("reward is not one number: left out");
  }
  const json* removed = FindField(sample, "remove_sample");
  if (removed != nullptr && *removed == true) {
    context.Note("remove_sample is true on rows that were drawn and not trained on: they are kept");
  }
  return absl::OkStatus();
}

}  // namespace

void DescribeNemoRl(RecordsHeader& header) {
  header.proximal.policy = "proximal";
  header.columns["behaviour_logprobs"] = {"generation_logprobs", "cut to input_lengths", "float32"};
  header.columns["proximal_logprobs"] = {"prev_logprobs", "cut to input_lengths", "float32"};
}

absl::Status AddNemoRl(const json& item, ImportContext& context) {
  const json* ids = OnlyElement(item, "token_ids", /*is_list=*/true);
  if (ids == nullptr) {
    // The batch of rewards is longer than that of sequences where dynamic sampling dropped groups.
    context.Note("lines without token_ids (groups that dynamic sampling dropped) are left out");
    return absl::OkStatus();
  }
  RecordRow row;
  TANDEM_ASSIGN_OR_RETURN(row.token_ids, ReadIds(*ids, "token_ids"));
  const size_t padded_length = row.token_ids.size();
  TANDEM_ASSIGN_OR_RETURN(const size_t length, NemoLength(item, padded_length));
  row.token_ids.resize(length);
  TANDEM_ASSIGN_OR_RETURN(row.loss_mask, NemoMask(item, padded_length, length));
  TANDEM_RETURN_IF_ERROR(NemoColumns(item, padded_length, row));
  TANDEM_RETURN_IF_ERROR(NemoFacts(item, context, row.facts));
  return context.Add(std::move(row));
}

void DescribePrimeRl(RecordsHeader& header) {
  // The exporter runs in the forward pass of the step, whose one optimizer update comes after all
  // micro batches: the weights are those at the start of the step.
  header.proximal.policy = "proximal";
  header.behaviour.engine = "vllm";
  header.proximal.engine = "prime-rl trainer";
  header.columns["behaviour_logprobs"] = {"inference_logprobs", "none", "float32"};
  header.columns["proximal_logprobs"] = {"trainer_logprobs", "none", "float32"};
  header.columns["proximal_entropy"] = {"entropy", "none", "float32"};
}

absl::Status AddPrimeRl(const json& item, ImportContext& context) {
  TANDEM_ASSIGN_OR_RETURN(const auto schema, IntOf(item, "schema_version"));
  if (schema != 1) {
    return InvalidArgument("schema_version: expected 1, found ",
                           schema ? absl::StrCat(*schema) : "nothing");
  }
  RecordRow row;
  TANDEM_ASSIGN_OR_RETURN(const json* ids, NeedField(item, "token_ids", "a list of token ids"));
  TANDEM_ASSIGN_OR_RETURN(row.token_ids, ReadIds(*ids, "token_ids"));
  TANDEM_ASSIGN_OR_RETURN(const json* mask, NeedField(item, "loss_mask", "a list of booleans"));
  TANDEM_ASSIGN_OR_RETURN(row.loss_mask, ReadMask(*mask, "loss_mask"));
  for (const auto& [name, column] : {DumpColumn{"inference_logprobs", Column::kBehaviour},
                                     DumpColumn{"trainer_logprobs", Column::kProximal},
                                     DumpColumn{"entropy", Column::kProximalEntropy},
                                     DumpColumn{"advantages", Column::kAdvantages}}) {
    const json* value = FindField(item, name);
    if (value == nullptr) continue;
    TANDEM_ASSIGN_OR_RETURN(row.column(column), ReadFloats(*value, name));
    if (row.column(column).size() != row.token_ids.size()) {
      return WrongLength(name, row.token_ids.size(), "as many as token_ids",
                         row.column(column).size());
    }
  }
  TANDEM_ASSIGN_OR_RETURN(row.facts.step, IntOf(item, "step"));
  row.facts.row_id = absl::StrCat("rank ", TextOf(item, "rank"), " sequence ",
                                  TextOf(item, "export_sequence_idx"));
  return context.Add(std::move(row));
}

void DescribeOpenInstruct(RecordsHeader& header) {
  header.behaviour.engine = "vllm";
  header.columns["behaviour_logprobs"] = {"logprobs of RolloutRecord", "none", "float32"};
}

absl::Status AddOpenInstruct(const json& item, ImportContext& context) {
  if (FindField(item, "prompt_tokens") == nullptr && FindField(item, "git_commit") != nullptr) {
    context.Claim("model",
                  TextOf(item, "model_name") == "unknown" ? "" : TextOf(item, "model_name"));
    context.Claim("created_at", TextOf(item, "timestamp"));
    return absl::OkStatus();
  }
  RecordRow row;
  TANDEM_ASSIGN_OR_RETURN(const json* prompt, NeedField(item, "prompt_tokens", "token ids"));
  TANDEM_ASSIGN_OR_RETURN(row.token_ids, ReadIds(*prompt, "prompt_tokens"));
  TANDEM_ASSIGN_OR_RETURN(const json* response, NeedField(item, "response_tokens", "token ids"));
  TANDEM_ASSIGN_OR_RETURN(const auto drawn, ReadIds(*response, "response_tokens"));
  const size_t num_prompt = row.token_ids.size();
  row.prompt_length = static_cast<int64_t>(num_prompt);
  row.token_ids.insert(row.token_ids.end(), drawn.begin(), drawn.end());
  TANDEM_ASSIGN_OR_RETURN(
      const json* logprobs,
      NeedField(item, "logprobs",
                "log-probs of the response (written since open-instruct records them)"));
  TANDEM_ASSIGN_OR_RETURN(const std::vector<float> values, ReadFloats(*logprobs, "logprobs"));
  if (values.size() != drawn.size()) {
    return WrongLength("logprobs", drawn.size(), "as many as response_tokens", values.size());
  }
  row.column(Column::kBehaviour) = Placed(values, num_prompt);
  TANDEM_ASSIGN_OR_RETURN(row.facts.step, IntOf(item, "step"));
  TANDEM_ASSIGN_OR_RETURN(row.facts.reward, NumberOf(item, "reward"));
  TANDEM_ASSIGN_OR_RETURN(row.facts.advantage, NumberOf(item, "advantage"));
  row.facts.finish_reason = TextOf(item, "finish_reason");
  row.facts.row_id = absl::StrCat("sample ", TextOf(item, "sample_idx"));
  row.facts.group_id = absl::StrCat(TextOf(item, "step"), ".", TextOf(item, "prompt_idx"));
  const json* called = FindField(item, "request_info.tool_calleds");
  if (called != nullptr && *called == true) {
    context.Note(
        "tools were called: response_tokens holds their answers, which no field tells from drawn "
        "tokens, so that they count as drawn");
  }
  return context.Add(std::move(row));
}

void DescribeSlime(RecordsHeader& header) {
  header.behaviour.engine = "sglang";
  header.proximal.policy = "proximal";
  header.columns["behaviour_logprobs"] = {"rollout_log_probs", "none", "float32"};
  header.columns["proximal_logprobs"] = {"log_probs of the train data", "none", "float32"};
}

absl::Status AddSlime(const json& item, ImportContext& context) {
  if (const json* samples = FindField(item, "samples"); samples != nullptr && samples->is_array()) {
    TANDEM_ASSIGN_OR_RETURN(const auto rollout, IntOf(item, "rollout_id"));
    if (rollout) context.set_step(rollout);
    for (size_t i = 0; i < samples->size(); ++i) {
      const absl::Status added = AddSlime((*samples)[i], context);
      if (!added.ok()) return InvalidArgument("samples[", i, "]: ", added.message());
    }
    return absl::OkStatus();
  }
  RecordRow row;
  TANDEM_ASSIGN_OR_RETURN(const json* ids, NeedField(item, "tokens", "a list of token ids"));
  TANDEM_ASSIGN_OR_RETURN(row.token_ids, ReadIds(*ids, "tokens"));
  TANDEM_ASSIGN_OR_RETURN(const size_t response, ResponseLength(item, row.token_ids.size()));
  row.prompt_length = static_cast<int64_t>(row.token_ids.size() - response);
  TANDEM_RETURN_IF_ERROR(SlimeColumns(item, response, row));
  TANDEM_RETURN_IF_ERROR(SlimeVersion(item, context, row));
  TANDEM_RETURN_IF_ERROR(SlimeFacts(item, context, row.facts));
  if (row.column(Column::kBehaviour).empty() && row.column(Column::kProximal).empty()) {
    return InvalidArgument(
        "rollout_log_probs: expected the log-probs of the response, found nothing; slime and miles "
        "keep them where the rollout function asks for return_logprob");
  }
  return context.Add(std::move(row));
}

}  // namespace tandem::drift
