// tandem critique-revise: data of Constitutional AI's supervised stage (Bai et al. 2022, arXiv
// 2212.08073, section 3.1): a response of a rollout server to each prompt, and its revisions after
// critiques by the principles of a constitution.
#include <signal.h>

#include <CLI/CLI.hpp>
#include <atomic>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "cli/data/constitution.h"
#include "cli/data/line_job.h"
#include "cli/data/sampling_server.h"
#include "cli/io/json_lines.h"
#include "cli/io/live_line.h"
#include "cli/io/shared_flags.h"
#include "cli/io/subcommand.h"
#include "common/base/exit_codes.h"
#include "common/base/status_macros.h"
#include "common/files/file_system.h"
#include "common/options/command_line.h"
#include "common/weights/digest.h"
#include "trainer/preferences/step_data.h"
#include "trainer/rewards/judge/chat_client.h"

namespace tandem::cli {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;

struct ReviseFlags {
  ServerFlags server;
  LineJob job;
  std::string constitution_file, pairs;
  int64_t revisions = 1;
  SampleRequest sampling;
  // Who criticises and revises; without a URL the rollout server does.
  trainer::JudgeOptions critic;
};

// What became of lines without a row.
struct Skipped {
  std::atomic<int64_t> cut = 0, unparsed = 0;
};

// A reply of the critic, or why there is none; each thread has one.
class Critic {
 public:
  Critic(const ReviseFlags& flags, SamplingServer* server, trainer::ServiceCaller* caller,
         EndSign* end)
      : sampling_(flags.sampling), server_(server) {
    if (!flags.critic.client.url.empty()) {
      client_ = std::make_unique<trainer::ChatClient>(flags.critic, caller, end);
    }
  }

  absl::StatusOr<SampledText> Ask(const std::string& content, uint64_t seed) {
    if (client_ == nullptr) return AskServer(content, seed);
    TANDEM_ASSIGN_OR_RETURN(trainer::JudgeReply reply, client_->Ask(content));
    return SampledText{std::move(reply.text), reply.is_cut};
  }

  // The server's reply to a text as one message of the user, or to messages.
  absl::StatusOr<SampledText> AskServer(const std::string& content, uint64_t seed,
                                        const std::string& messages = "") {
    TANDEM_ASSIGN_OR_RETURN(SampleRequest request, Encode(content, messages));
    request.seed = seed;
    TANDEM_ASSIGN_OR_RETURN(SampledGroup group, server_->sampler().Sample(request));
    return std::move(group.completions[0]);
  }

 private:
  absl::StatusOr<SampleRequest> Encode(const std::string& content, const std::string& messages) {
    SampleRequest request = sampling_;
    TANDEM_ASSIGN_OR_RETURN(request.prompt,
                            trainer::EncodePrompt(content, messages, server_->tokenizer()));
    const int64_t context = server_->sampler().server().max_context_tokens;
    const auto tokens = static_cast<int64_t>(request.prompt.size());
    if (tokens + request.max_new_tokens <= context) return request;
    return absl::OutOfRangeError(absl::StrCat(tokens, " tokens and --max-new-tokens ",
                                              request.max_new_tokens, " are over the context of ",
                                              context));
  }

  const SampleRequest& sampling_;
  SamplingServer* const server_;
  std::unique_ptr<trainer::ChatClient> client_;  // null: the server
};

class Reviser {
 public:
  Reviser(const ReviseFlags& flags, const Constitution& constitution, SamplingServer* server)
      : flags_(flags),
        constitution_(constitution),
        server_(server),
        caller_("critic", flags.critic.service, &tally_) {}

  // Thread-safe.
  absl::StatusOr<std::optional<ordered_json>> Revise(const json& line, int64_t number) {
    const json prompt = line.value("prompt", line.value("messages", json()));
    if (!prompt.is_string() && !prompt.is_array()) {
      return absl::InvalidArgumentError("want \"prompt\", a text, or messages");
    }
    Critic critic(flags_, server_, &caller_, &end_);
    // Draws of a line depend on nothing else, so that a job goes on with what it would have drawn.
    std::mt19937_64 draws(flags_.sampling.seed ^
                          (0x9E3779B97F4A7C15ull * static_cast<uint64_t>(number)));
    absl::StatusOr<ordered_json> row = Row(prompt, critic, draws);
    if (row.ok()) return *std::move(row);
    switch (row.status().code()) {
      case absl::StatusCode::kOutOfRange:
        ++skipped.cut;
        return std::nullopt;
      case absl::StatusCode::kDataLoss:
        ++skipped.unparsed;
        return std::nullopt;
      default:
        return row.status();
    }
  }

  Skipped skipped;

 private:
  // OUT_OF_RANGE: a text was cut or does not fit; DATA_LOSS: a reply could not be read.
  absl::StatusOr<ordered_json> Row(const json& prompt, Critic& critic, std::mt19937_64& draws) {
    const std::string messages = prompt.is_array() ? prompt.dump() : "";
    const std::string asked = prompt.is_string() ? prompt.get<std::string>() : Shown(prompt);
    TANDEM_ASSIGN_OR_RETURN(
        const std::string first,
        Whole(critic.AskServer(messages.empty() ? asked : "", draws(), messages)));
    if (first.find_first_not_of(" \t\r\n") == std::string::npos) {
      return DataLoss("the response is blank");
    }
    std::string response = first;
    ordered_json steps = ordered_json::array();
    for (int64_t r = 0; r < flags_.revisions; ++r) {
      const std::string& principle =
          constitution_.principles[draws() % constitution_.principles.size()];
      CritiqueTexts texts = {.prompt = asked, .response = response, .principle = principle};
      TANDEM_ASSIGN_OR_RETURN(
          const std::string critique,
          Whole(critic.Ask(FillTemplate(constitution_.critique, texts), draws())));
      texts.critique = critique;
      TANDEM_ASSIGN_OR_RETURN(
          const std::string reply,
          Whole(critic.Ask(FillTemplate(constitution_.revision, texts), draws())));
      const auto revision = ParseRevision(reply);
      if (!revision.ok()) return DataLoss(revision.status().message());
      steps.push_back({{"principle", principle}, {"critique", critique}});
      response = *revision;
    }
    return ordered_json{{prompt.is_string() ? "prompt" : "messages", prompt},
                        {"answer", response},
                        {"first_response", first},
                        {"critiques", steps}};
  }

  // A text that was not cut at its limit. A reply that an endpoint did not write is one that cannot
  // be read.
  static absl::StatusOr<std::string> Whole(const absl::StatusOr<SampledText>& text) {
    if (text.status().code() == absl::StatusCode::kInvalidArgument) {
      return DataLoss(text.status().message());
    }
    TANDEM_RETURN_IF_ERROR(text.status());
    if (text->is_truncated) return absl::OutOfRangeError("a text was cut");
    return text->text;
  }

  // Messages as one text, for the critic.
  static std::string Shown(const json& messages) {
    std::string shown;
    for (const json& message : messages) {
      if (!message.is_object()) continue;
      const json content = message.value("content", json());
      absl::StrAppend(&shown, shown.empty() ? "" : "\n\n", message.value("role", ""), ": ",
                      content.is_string() ? content.get<std::string>() : content.dump());
    }
    return shown;
  }

  const ReviseFlags& flags_;
  const Constitution& constitution_;
  SamplingServer* const server_;
  trainer::RewardTally tally_;
  trainer::ServiceCaller caller_;
  EndSign end_;
};

// A pair for each row of OUT whose revision differs from the first response. Returns how many.
absl::StatusOr<int64_t> WritePairs(const std::string& rows, const std::string& pairs) {
  TANDEM_ASSIGN_OR_RETURN(const std::string contents, ReadFile(rows));
  std::string out;
  int64_t count = 0;
  for (const absl::string_view line : absl::StrSplit(contents, '\n')) {
    const auto row = ordered_json::parse(line, nullptr, /*allow_exceptions=*/false);
    if (!row.is_object() || row["answer"] == row["first_response"]) continue;
    const bool is_text = row.contains("prompt");
    const auto side = [&](const ordered_json& text) {
      return is_text ? text : ordered_json::array({{{"role", "assistant"}, {"content", text}}});
    };
    const ordered_json pair = {{"prompt", is_text ? row["prompt"] : row["messages"]},
                               {"chosen", side(row["answer"])},
                               {"rejected", side(row["first_response"])}};
    absl::StrAppend(&out, pair.dump(), "\n");
    ++count;
  }
  TANDEM_RETURN_IF_ERROR(
      trainer::WithExitCode(WriteFileAtomically(pairs, out), ExitCode::kStorage));
  return count;
}

std::string ReviseSettings(const ReviseFlags& flags, const std::string& constitution) {
  return absl::StrCat(
      "data ", flags.job.data, "\nconstitution ", Digest128(std::as_bytes(std::span(constitution))),
      "\nrevisions ", flags.revisions, "\ntemperature ", flags.sampling.temperature, "\ntop_p ",
      flags.sampling.top_p, "\nmax_new_tokens ", flags.sampling.max_new_tokens, "\nseed ",
      flags.sampling.seed, "\ncritic ", flags.critic.client.url, " ", flags.critic.model, "\n");
}

absl::Status CheckCritic(const trainer::JudgeOptions& critic) {
  if (critic.client.url.empty()) return absl::OkStatus();
  if (critic.model.empty()) {
    return AsUsageError(InvalidArgument("--critic-url needs --critic-model, the endpoint's name"));
  }
  return trainer::CheckHttpClientOptions(critic.client, "--critic-url");
}

absl::Status CritiqueRevise(ReviseFlags& flags) {
  TANDEM_RETURN_IF_ERROR(CheckCritic(flags.critic));
  TANDEM_ASSIGN_OR_RETURN(const std::string text, ReadFile(flags.constitution_file));
  TANDEM_ASSIGN_OR_RETURN(const Constitution constitution,
                          ParseConstitution(text, flags.constitution_file));
  flags.job.settings = ReviseSettings(flags, text);
  flags.critic.temperature = flags.sampling.temperature;
  flags.critic.max_tokens = flags.sampling.max_new_tokens;
  flags.critic.service.workers = flags.job.workers;
  TANDEM_ASSIGN_OR_RETURN(const auto server, SamplingServer::Open(flags.server));
  signal(SIGPIPE, SIG_IGN);  // an endpoint that died is an error of the write
  Reviser reviser(flags, constitution, server.get());
  LiveLine live;
  const auto counts = RunLines(
      flags.job, [&](const json& line, int64_t number) { return reviser.Revise(line, number); },
      [&](int64_t done, int64_t total) {
        live.Update(absl::StrCat("revise ", ProgressBar(done, total, 30), " prompts"));
      });
  live.Clear();
  TANDEM_RETURN_IF_ERROR(counts.status());
  std::string line = absl::StrCat(
      "{\"prompts\":", counts->lines, ",\"resumed\":", counts->resumed, ",\"rows\":", counts->rows,
      ",\"cut\":", reviser.skipped.cut.load(), ",\"unparsed\":", reviser.skipped.unparsed.load());
  if (!flags.pairs.empty()) {
    TANDEM_ASSIGN_OR_RETURN(const int64_t pairs, WritePairs(flags.job.out, flags.pairs));
    absl::StrAppend(&line, ",\"pairs\":", pairs);
  }
  PrintLine(line + "}");
  return absl::OkStatus();
}

}  // namespace

void AddCritiqueReviseCommand(CLI::App& app, Action& chosen) {
  auto flags = std::make_shared<ReviseFlags>();
  CLI::App* sub = app.add_subcommand(
      "critique-revise", "Responses revised by a constitution, as data for sft and preferences");
  AddServerFlags(sub, flags->server);
  sub->add_option("--data", flags->job.data, "JSON lines: prompt (text or messages) or messages")
      ->required();
  sub->add_option("--constitution", flags->constitution_file,
                  "a principle a line; before them templates of critique and revision may stand, "
                  "each ended by a line ---")
      ->required();
  sub->add_option("--out", flags->job.out, "JSON lines for sft; one that was begun goes on")
      ->required();
  sub->add_option("--pairs", flags->pairs,
                  "also write revision and first response as pairs for train-preferences");
  AddRange(sub, "--revisions", flags->revisions, 1, 64,
           "critiques and revisions of a response, each by a principle that is drawn");
  AddSampleFlags(sub, flags->sampling);
  sub->add_option("--critic-url", flags->critic.client.url,
                  "endpoint with the API of OpenAI's chat completions that criticises and revises, "
                  "up to and with /v1; default: the rollout server");
  sub->add_option("--critic-model", flags->critic.model, "its name of the model");
  sub->add_option("--critic-key-file", flags->critic.client.token_file,
                  "bearer token: the first line of this file");
  AddRange(sub, "--workers", flags->job.workers, 1, 1024, "prompts at a time");
  EndHelp(*sub,
          "Texts that were cut at --max-new-tokens and replies that cannot be read are counted and "
          "give no row.",
          "tandem critique-revise --model MODEL --data prompts.jsonl --constitution "
          "constitution.txt --out revised.jsonl");
  SetAction(*sub, chosen, [flags] { return Finish(CritiqueRevise(*flags)); });
}

}  // namespace tandem::cli
