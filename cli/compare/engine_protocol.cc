#include "cli/compare/engine_protocol.h"

#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/base/json.h"
#include "common/base/status_macros.h"

namespace tandem::cli {
namespace {

using nlohmann::ordered_json;

std::string LineOf(const ordered_json& request) { return request.dump() + "\n"; }

absl::Status BadReply(const std::string& what) {
  return absl::DataLossError(absl::StrCat("the reply breaks the protocol: ", what));
}

absl::Status ErrorOf(const ordered_json& error) {
  const std::string kind = error.is_object() ? error.value("kind", "failed") : "failed";
  const std::string message = error.is_object() ? error.value("message", "") : error.dump();
  if (kind == "invalid") return absl::InvalidArgumentError(message);
  if (kind == "unsupported") return absl::UnimplementedError(message);
  return absl::InternalError(message);
}

absl::StatusOr<ordered_json> ParseReply(std::string_view line, int64_t id) {
  constexpr int kDeepest = 16;
  if (NestsDeeperThan(line, kDeepest)) return BadReply("it nests too deep");
  ordered_json reply = ordered_json::parse(line, nullptr, /*allow_exceptions=*/false);
  if (!reply.is_object()) {
    return BadReply(absl::StrCat("expected an object, found ", std::string(line.substr(0, 80))));
  }
  const auto found = reply.find("id");
  if (found == reply.end() || *found != id) {
    return BadReply(absl::StrCat("id: expected ", id, ", found ",
                                 found == reply.end() ? "none" : found->dump()));
  }
  const auto error = reply.find("error");
  if (error == reply.end()) return reply;
  try {
    return ErrorOf(*error);
  } catch (const ordered_json::exception& wrong) {
    return BadReply(absl::StrCat("error: ", wrong.what()));
  }
}

absl::StatusOr<std::string> TextOf(const ordered_json& object, const char* name) {
  const auto found = object.find(name);
  if (found == object.end() || !found->is_string()) {
    return BadReply(absl::StrCat(name, ": expected a text"));
  }
  return found->get<std::string>();
}

absl::StatusOr<const ordered_json*> ListOf(const ordered_json& object, const char* name) {
  const auto found = object.find(name);
  if (found == object.end() || !found->is_array()) {
    return BadReply(absl::StrCat(name, ": expected a list"));
  }
  return &*found;
}

// A number, or the text of one that JSON does not have.
bool ReadFloat(const ordered_json& value, float* number) {
  if (value.is_number()) {
    *number = value.get<float>();
    return true;
  }
  if (value == "-Infinity" || value == "Infinity") {
    *number = std::copysign(std::numeric_limits<float>::infinity(), value == "Infinity" ? 1 : -1);
    return true;
  }
  *number = std::numeric_limits<float>::quiet_NaN();
  return value == "NaN";
}

// A list of `size` elements; empty where the field is absent and not `required`.
absl::StatusOr<std::vector<float>> FloatsOf(const ordered_json& object, const char* name,
                                            size_t size, bool required) {
  std::vector<float> numbers;
  if (!required && !object.contains(name)) return numbers;
  TANDEM_ASSIGN_OR_RETURN(const ordered_json* const list, ListOf(object, name));
  if (list->size() != size) {
    return BadReply(absl::StrCat(name, ": expected ", size, " numbers, found ", list->size()));
  }
  for (const ordered_json& value : *list) {
    if (!ReadFloat(value, &numbers.emplace_back())) {
      return BadReply(absl::StrCat(name, ": expected a number, found ", value.dump()));
    }
  }
  return numbers;
}

absl::StatusOr<DrawnCompletion> CompletionOf(const ordered_json& object, int64_t num_prompts) {
  if (!object.is_object()) return BadReply("completions: expected objects");
  DrawnCompletion completion;
  const auto prompt = object.find("prompt");
  if (prompt == object.end() || !prompt->is_number_integer() || prompt->get<int64_t>() < 0 ||
      prompt->get<int64_t>() >= num_prompts) {
    return BadReply(absl::StrCat("prompt: expected an integer from 0 to ", num_prompts - 1));
  }
  completion.prompt = prompt->get<int64_t>();
  TANDEM_ASSIGN_OR_RETURN(const ordered_json* const ids, ListOf(object, "token_ids"));
  for (const ordered_json& id : *ids) {
    if (!id.is_number_integer()) return BadReply("token_ids: expected integers");
    completion.token_ids.push_back(id.get<int32_t>());
  }
  const size_t size = completion.token_ids.size();
  if (size == 0) return BadReply("token_ids: expected at least one");
  TANDEM_ASSIGN_OR_RETURN(completion.logprobs, FloatsOf(object, "logprobs", size, true));
  TANDEM_ASSIGN_OR_RETURN(completion.raw_logprobs, FloatsOf(object, "raw_logprobs", size, false));
  TANDEM_ASSIGN_OR_RETURN(completion.entropies, FloatsOf(object, "entropies", size, false));
  TANDEM_ASSIGN_OR_RETURN(completion.finish_reason, TextOf(object, "finish_reason"));
  return completion;
}

}  // namespace

std::string InfoRequest(int64_t id) { return LineOf({{"id", id}, {"do", "info"}}); }

std::string SampleRequest(int64_t id, const std::vector<std::vector<int32_t>>& prompts,
                          const EngineSampling& sampling) {
  return LineOf({{"id", id},
                 {"do", "sample"},
                 {"prompts", prompts},
                 {"n", sampling.num_completions},
                 {"temperature", sampling.temperature},
                 {"top_k", sampling.top_k},
                 {"top_p", sampling.top_p},
                 {"max_new_tokens", sampling.max_new_tokens},
                 {"seed", sampling.seed},
                 {"logprobs", sampling.raw ? "raw" : "processed"}});
}

std::string ScoreRequest(int64_t id, const std::vector<RowToScore>& rows, double temperature) {
  ordered_json request = {
      {"id", id}, {"do", "score"}, {"rows", ordered_json::array()}, {"temperature", temperature}};
  for (const RowToScore& row : rows) {
    request["rows"].push_back({{"token_ids", row.token_ids}, {"prompt_length", row.prompt_length}});
  }
  return LineOf(request);
}

std::string LoadWeightsRequest(int64_t id, const std::string& directory) {
  return LineOf({{"id", id}, {"do", "load_weights"}, {"directory", directory}});
}

absl::StatusOr<EngineInfo> ReadInfo(std::string_view line, int64_t id) {
  TANDEM_ASSIGN_OR_RETURN(const ordered_json reply, ParseReply(line, id));
  const auto protocol = reply.find("protocol");
  if (protocol == reply.end() || *protocol != kEngineProtocol) {
    return BadReply(absl::StrCat("protocol: expected ", kEngineProtocol));
  }
  EngineInfo info;
  TANDEM_ASSIGN_OR_RETURN(info.engine, TextOf(reply, "engine"));
  TANDEM_ASSIGN_OR_RETURN(info.version, TextOf(reply, "version"));
  TANDEM_ASSIGN_OR_RETURN(info.dtype, TextOf(reply, "dtype"));
  TANDEM_ASSIGN_OR_RETURN(const ordered_json* const can, ListOf(reply, "can"));
  for (const ordered_json& each : *can) info.can_load_weights |= each == "load_weights";
  return info;
}

absl::StatusOr<std::vector<DrawnCompletion>> ReadCompletions(std::string_view line, int64_t id,
                                                             int64_t num_prompts) {
  TANDEM_ASSIGN_OR_RETURN(const ordered_json reply, ParseReply(line, id));
  TANDEM_ASSIGN_OR_RETURN(const ordered_json* const list, ListOf(reply, "completions"));
  std::vector<DrawnCompletion> completions;
  for (const ordered_json& object : *list) {
    TANDEM_ASSIGN_OR_RETURN(completions.emplace_back(), CompletionOf(object, num_prompts));
  }
  return completions;
}

absl::StatusOr<std::vector<RowScore>> ReadScores(std::string_view line, int64_t id,
                                                 const std::vector<RowToScore>& rows) {
  TANDEM_ASSIGN_OR_RETURN(const ordered_json reply, ParseReply(line, id));
  TANDEM_ASSIGN_OR_RETURN(const ordered_json* const list, ListOf(reply, "rows"));
  if (list->size() != rows.size()) {
    return BadReply(absl::StrCat("rows: expected ", rows.size(), ", found ", list->size()));
  }
  std::vector<RowScore> scores;
  for (size_t i = 0; i < rows.size(); ++i) {
    const ordered_json& object = list->at(i);
    if (!object.is_object()) return BadReply("rows: expected objects");
    const size_t size = rows[i].token_ids.size() - static_cast<size_t>(rows[i].prompt_length);
    RowScore& score = scores.emplace_back();
    TANDEM_ASSIGN_OR_RETURN(score.logprobs, FloatsOf(object, "logprobs", size, true));
    TANDEM_ASSIGN_OR_RETURN(score.entropies, FloatsOf(object, "entropies", size, false));
  }
  return scores;
}

absl::Status ReadLoaded(std::string_view line, int64_t id) {
  TANDEM_ASSIGN_OR_RETURN(const ordered_json reply, ParseReply(line, id));
  return TextOf(reply, "loaded").status();
}

}  // namespace tandem::cli
