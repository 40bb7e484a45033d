#include "trainer/foreign/vllm_server.h"

#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "trainer/rewards/external/http_client.h"

namespace tandem::trainer {
namespace {

using nlohmann::json;

constexpr double kQuickSeconds = 10;

// Whether `text` is a JSON object in which `name` is true.
bool Says(const std::string& text, const char* name) {
  const json parsed = json::parse(text, nullptr, /*allow_exceptions=*/false);
  const auto found = parsed.is_object() ? parsed.find(name) : parsed.end();
  return parsed.is_object() && found != parsed.end() && found->is_boolean() && found->get<bool>();
}

absl::Status StatusOf(const HttpReply& reply) {
  const absl::Status& status = reply.attempt.status;
  if (reply.http_status == 400 || reply.http_status == 422) {
    return InvalidArgument(status.message());
  }
  return status;
}

}  // namespace

std::string StartTimeOf(const std::string& metrics) {
  constexpr std::string_view kName = "\nprocess_start_time_seconds ";
  const size_t found = metrics.find(kName);
  if (found == std::string::npos) return "";
  const size_t begin = found + kName.size();
  return metrics.substr(begin, metrics.find('\n', begin) - begin);
}

VllmServer::VllmServer(const std::string& host_port, double call_seconds, double push_seconds)
    : url_("http://" + host_port), call_seconds_(call_seconds), push_seconds_(push_seconds) {}

void VllmServer::Stop() { end_.Give(); }

absl::StatusOr<std::string> VllmServer::Ask(const std::string& path, const std::string* body,
                                            double seconds, const Cancelled& cancelled) {
  HttpClient client({.url = url_}, seconds, &end_);
  client.UseCancel(cancelled);
  HttpReply reply = body == nullptr ? client.Get(path) : client.Post(path, *body);
  TANDEM_RETURN_IF_ERROR(StatusOf(reply));
  return std::move(reply.body);
}

absl::StatusOr<std::string> VllmServer::AskDevelopment(const std::string& path,
                                                       const std::string* body, double seconds) {
  HttpClient client({.url = url_}, seconds, &end_);
  HttpReply reply = body == nullptr ? client.Get(path) : client.Post(path, *body);
  if (reply.http_status == 404 || reply.http_status == 405) {
    return FailedPrecondition(url_, " has no ", path,
                              ": start vLLM with VLLM_SERVER_DEV_MODE=1 in its environment, or a "
                              "release that has this route");
  }
  TANDEM_RETURN_IF_ERROR(StatusOf(reply));
  return std::move(reply.body);
}

absl::Status VllmServer::CheckHealth() { return Ask("/health", nullptr, kQuickSeconds).status(); }

absl::StatusOr<VllmFacts> VllmServer::Facts() {
  const std::string version = Ask("/version", nullptr, kQuickSeconds).value_or("");
  TANDEM_ASSIGN_OR_RETURN(const std::string models, Ask("/v1/models", nullptr, kQuickSeconds));
  // The first answer looks over the whole machine, which takes seconds.
  TANDEM_ASSIGN_OR_RETURN(const std::string info, AskDevelopment("/server_info?config_format=json",
                                                                 nullptr, push_seconds_));
  return ReadFacts(version, models, info);
}

absl::StatusOr<std::vector<int32_t>> VllmServer::Tokenize(const std::string& model,
                                                          const std::string& text) {
  const std::string body =
      json{{"model", model}, {"prompt", text}, {"add_special_tokens", false}}.dump();
  TANDEM_ASSIGN_OR_RETURN(const std::string answer, Ask("/tokenize", &body, kQuickSeconds));
  return ReadTokens(answer);
}

absl::StatusOr<std::string> VllmServer::Complete(const std::string& body,
                                                 const Cancelled& cancelled) {
  return Ask("/v1/completions", &body, call_seconds_, cancelled);
}

absl::StatusOr<std::vector<float>> VllmServer::Score(const std::string& model,
                                                     std::span<const int32_t> ids,
                                                     const Cancelled& cancelled) {
  TANDEM_ASSIGN_OR_RETURN(const std::string answer, Complete(ScoreBody(model, ids), cancelled));
  return ReadScores(ids, answer);
}

absl::Status VllmServer::Pause(bool waits) {
  const std::string none = "{}";
  return AskDevelopment(absl::StrCat("/pause?mode=", waits ? "wait" : "abort", "&clear_cache=true"),
                        &none, push_seconds_)
      .status();
}

absl::Status VllmServer::Resume() {
  const std::string none = "{}";
  return AskDevelopment("/resume", &none, push_seconds_).status();
}

absl::StatusOr<bool> VllmServer::IsPaused() {
  TANDEM_ASSIGN_OR_RETURN(const std::string answer,
                          AskDevelopment("/is_paused", nullptr, kQuickSeconds));
  return Says(answer, "is_paused");
}

absl::Status VllmServer::LoadWeights(const std::string& directory) {
  const std::string load =
      json{{"method", "reload_weights"}, {"kwargs", {{"weights_path", directory}}}}.dump();
  TANDEM_RETURN_IF_ERROR(AskDevelopment("/collective_rpc", &load, push_seconds_).status());
  const std::string none = "{}";
  TANDEM_ASSIGN_OR_RETURN(const std::string answer,
                          AskDevelopment("/reset_prefix_cache", &none, push_seconds_));
  // Servers before 0.1x answer without a body.
  if (answer.empty() || Says(answer, "success")) return absl::OkStatus();
  return Unavailable(url_,
                     " loaded weights and did not forget the prefixes that the ones before "
                     "computed (/reset_prefix_cache: ",
                     answer, ")");
}

absl::StatusOr<std::map<std::string, std::string>> VllmServer::Checksums() {
  const std::string body = json{{"action", "checksum"}}.dump();
  const auto answer = AskDevelopment("/weight_checker", &body, push_seconds_);
  if (absl::IsFailedPrecondition(answer.status())) return std::map<std::string, std::string>();
  TANDEM_RETURN_IF_ERROR(answer.status());
  return ReadChecksums(*answer);
}

absl::StatusOr<std::string> VllmServer::Mark() {
  const auto mark = AskDevelopment("/weight_info", nullptr, kQuickSeconds);
  if (mark.ok()) return *mark;
  if (!absl::IsFailedPrecondition(mark.status())) return mark.status();
  const auto metrics = AskDevelopment("/metrics", nullptr, kQuickSeconds);
  if (metrics.ok()) return StartTimeOf(*metrics);
  return absl::IsFailedPrecondition(metrics.status())
             ? ""
             : absl::StatusOr<std::string>(metrics.status());
}

absl::Status VllmServer::SetMark(const std::string& text) {
  const std::string body = json{{"new_version", text}}.dump();
  const auto set = AskDevelopment("/update_weight_version", &body, kQuickSeconds);
  // A server without marks is told by the time of its start.
  return absl::IsFailedPrecondition(set.status()) ? absl::OkStatus() : set.status();
}

}  // namespace tandem::trainer
