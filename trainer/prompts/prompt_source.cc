#include "trainer/prompts/prompt_source.h"

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <span>
#include <sstream>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/base/foreign_json.h"
#include "common/base/stable_random.h"
#include "common/base/status_macros.h"
#include "common/files/file_system.h"
#include "common/weights/digest.h"
#include "nlohmann/json.hpp"

namespace tandem::trainer {

namespace {

using nlohmann::json;

constexpr char kForms[] =
    "want {\"prompt\": text or messages, \"answer\": ..}, {\"messages\": [..], \"answer\": ..}, "
    "{\"question\": .., \"answer\": ..}, or verl rows with reward_model.ground_truth";

absl::Status Malformed(const std::string& place, const std::string& what) {
  return InvalidArgument(place, ": ", what, "; ", kForms);
}

bool IsMessages(const json& value) {
  const auto is_message = [](const json& message) {
    return message.is_object() && message.value("role", json()).is_string() &&
           message.value("content", json()).is_string();
  };
  return value.is_array() && !value.empty() && std::ranges::all_of(value, is_message);
}

absl::StatusOr<std::string> AnswerOf(const json& row, const std::string& place) {
  const json* answer = nullptr;
  if (row.contains("answer")) {
    answer = &row["answer"];
  } else if (row.contains("reward_model") && row["reward_model"].is_object() &&
             row["reward_model"].contains("ground_truth")) {
    answer = &row["reward_model"]["ground_truth"];
  } else {
    return Malformed(place, "no \"answer\" and no \"reward_model\": {\"ground_truth\": ..}");
  }
  if (answer->is_string()) return answer->get<std::string>();
  if (answer->is_number() || answer->is_boolean()) return answer->dump();
  return Malformed(place,
                   absl::StrCat("the answer is ", answer->type_name(), ", want text or a number"));
}

absl::StatusOr<experience::v1::Prompt> Tokenise(const PromptRow& row, const std::string& place,
                                                bool chat, const Tokenizer& tokenizer) {
  experience::v1::Prompt prompt;
  prompt.set_answer(row.answer);
  if (!chat && row.text.empty()) {
    return InvalidArgument(
        place, ": a list of messages needs the chat template: set trainer.data.chat to true");
  }
  if (chat) {
    std::string messages = row.messages_json;
    if (messages.empty()) {
      messages = json::array({{{"role", "user"}, {"content", row.text}}}).dump();
    }
    absl::StatusOr<std::string> text =
        tokenizer.RenderChat(messages, /*add_generation_prompt=*/true);
    if (!text.ok()) {
      return absl::Status(text.status().code(), absl::StrCat(place, ": ", text.status().message()));
    }
    prompt.set_text(*std::move(text));
  } else {
    prompt.set_text(row.text);
  }
  const absl::StatusOr<std::vector<int32_t>> ids = tokenizer.Encode(prompt.text());
  if (!ids.ok()) {
    return absl::Status(ids.status().code(), absl::StrCat(place, ": ", ids.status().message()));
  }
  if (ids->empty()) return Malformed(place, "the prompt has no tokens");
  prompt.mutable_token_ids()->Add(ids->begin(), ids->end());
  return prompt;
}

}  // namespace

void BindOptions(OptionBinder& binder, DataOptions& options) {
  binder.Text("train", &options.train, "JSON lines with the prompts to train on");
  binder.Text("eval", &options.eval, "JSON lines with held-out prompts; empty: no evaluation");
  binder.Flag("chat", &options.chat, "render prompts through the model's chat template");
  binder.Text("suffix", &options.suffix, "added to the text of `prompt` and `question` rows");
  binder.Integer("max_prompt_tokens", &options.max_prompt_tokens, {.min = 1}, "tokens",
                 "longest prompt");
  binder.Choice("over_length", &options.over_length,
                {{"refuse", OverLength::kRefuse}, {"drop", OverLength::kDrop}},
                "a prompt over max_prompt_tokens ends the run, or is left out and counted");
  binder.Flag("shuffle", &options.shuffle, "a new order each epoch, from the run's seed");
}

absl::StatusOr<PromptRow> ParsePromptRow(std::string_view line, const std::string& place,
                                         const std::string& suffix) {
  const json row = json::parse(line, nullptr, /*allow_exceptions=*/false);
  if (row.is_discarded()) return Malformed(place, JsonFault(line));
  if (!row.is_object())
    return Malformed(place, absl::StrCat("is ", row.type_name(), ", not an object"));
  PromptRow parsed;
  TANDEM_ASSIGN_OR_RETURN(parsed.answer, AnswerOf(row, place));
  for (const char* key : {"messages", "prompt", "question"}) {
    if (!row.contains(key)) continue;
    const json& value = row[key];
    if (IsMessages(value)) {
      parsed.messages_json = value.dump();
      return parsed;
    }
    if (std::string_view(key) != "messages" && value.is_string() &&
        !value.get<std::string>().empty()) {
      parsed.text = absl::StrCat(value.get<std::string>(), suffix);
      return parsed;
    }
    return Malformed(place, absl::StrCat("\"", key,
                                         "\" is neither text nor a list of {\"role\", "
                                         "\"content\"} messages, or is empty"));
  }
  return Malformed(place, "no \"prompt\", \"messages\" or \"question\"");
}

std::vector<int64_t> EpochOrder(int64_t n, uint64_t seed, int64_t epoch) {
  std::vector<int64_t> order(static_cast<size_t>(n));
  std::iota(order.begin(), order.end(), 0);
  // Fisher-Yates over a stateless hash: std::shuffle differs between standard libraries.
  for (int64_t i = n - 1; i > 0; --i) {
    const uint64_t draw =
        StableHash({seed, static_cast<uint64_t>(epoch), static_cast<uint64_t>(i)});
    std::swap(order[static_cast<size_t>(i)], order[draw % static_cast<uint64_t>(i + 1)]);
  }
  return order;
}

absl::StatusOr<std::unique_ptr<PromptSource>> PromptSource::Open(const std::string& path,
                                                                 const DataOptions& options,
                                                                 uint64_t seed,
                                                                 const Tokenizer& tokenizer) {
  TANDEM_ASSIGN_OR_RETURN(const std::string contents, ReadFile(path));
  std::unique_ptr<PromptSource> source(new PromptSource(seed, options.shuffle));
  int64_t line_number = 0;
  std::istringstream lines(contents);
  for (std::string line; std::getline(lines, line);) {
    ++line_number;
    if (!line.empty() && line.back() == '\r') line.pop_back();
    if (line.find_first_not_of(" \t") == std::string_view::npos) continue;
    const std::string place = absl::StrCat(path, ":", line_number);
    TANDEM_ASSIGN_OR_RETURN(const PromptRow row, ParsePromptRow(line, place, options.suffix));
    TANDEM_ASSIGN_OR_RETURN(experience::v1::Prompt prompt,
                            Tokenise(row, place, options.chat, tokenizer));
    if (prompt.token_ids_size() > options.max_prompt_tokens) {
      if (options.over_length == OverLength::kRefuse) {
        return InvalidArgument(
            place, ": the prompt has ", prompt.token_ids_size(), " tokens, limit ",
            options.max_prompt_tokens,
            "; raise trainer.data.max_prompt_tokens or set trainer.data.over_length to drop");
      }
      ++source->num_dropped_;
      continue;
    }
    prompt.set_index(line_number - 1);
    prompt.set_source_json(line);
    source->prompts_.push_back(std::move(prompt));
  }
  if (source->prompts_.empty()) {
    return InvalidArgument(path, ": no prompt (", line_number, " lines, ", source->num_dropped_,
                           " over length)");
  }
  return source;
}

std::string PromptSource::digest() const {
  std::vector<uint64_t> hashes = {shuffle_};
  for (const experience::v1::Prompt& prompt : prompts_) {
    const auto& ids = prompt.token_ids();
    hashes.push_back(HashTokenIds({ids.data(), static_cast<size_t>(ids.size())}));
  }
  return Digest128(std::as_bytes(std::span(hashes)));
}

int64_t PromptSource::PositionAt(int64_t cursor) {
  const int64_t n = static_cast<int64_t>(prompts_.size());
  const int64_t epoch = cursor / n;
  if (epoch != order_epoch_) {
    order_ = EpochOrder(n, seed_, shuffle_ ? epoch : 0);
    if (!shuffle_) std::iota(order_.begin(), order_.end(), 0);
    order_epoch_ = epoch;
  }
  return order_[static_cast<size_t>(cursor % n)];
}

const experience::v1::Prompt& PromptSource::Row(int64_t position, int64_t epoch) {
  experience::v1::Prompt& prompt = prompts_[static_cast<size_t>(position)];
  prompt.set_epoch(epoch);
  return prompt;
}

absl::StatusOr<RunPrompts> OpenRunPrompts(const DataOptions& data, int64_t run_seed,
                                          int64_t max_new_tokens, const ModelConfig& model,
                                          const Tokenizer& tokenizer) {
  RunPrompts prompts;
  const auto seed = static_cast<uint64_t>(run_seed);
  TANDEM_ASSIGN_OR_RETURN(prompts.train, PromptSource::Open(data.train, data, seed, tokenizer));
  if (!data.eval.empty()) {
    TANDEM_ASSIGN_OR_RETURN(prompts.eval, PromptSource::Open(data.eval, data, seed, tokenizer));
  }
  const auto longest = std::ranges::max_element(
      prompts.train->prompts(), {}, [](const auto& prompt) { return prompt.token_ids_size(); });
  const int64_t needed = longest->token_ids_size() + max_new_tokens;
  if (needed > model.max_position_embeddings) {
    return InvalidArgument(data.train, ":", longest->index() + 1, ": ", longest->token_ids_size(),
                           " prompt tokens and sampling.max_new_tokens ", max_new_tokens,
                           " exceed the model's context of ", model.max_position_embeddings);
  }
  return prompts;
}

}  // namespace tandem::trainer
