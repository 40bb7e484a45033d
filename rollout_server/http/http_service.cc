#include "rollout_server/http/http_service.h"

#include <algorithm>
#include <map>
#include <random>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/status_macros.h"
#include "common/base/version.h"
#include "common/http/http_server.h"
#include "common/rpc/caller_secret.h"
#include "rollout_server/groups/worker_thread.h"
#include "rollout_server/http/answer_form.h"
#include "rollout_server/http/answer_writer.h"
#include "rollout_server/http/http_error.h"
#include "rollout_server/http/prompt_fields.h"
#include "rollout_server/http/request_fields.h"
#include "rollout_server/http/request_reader.h"
#include "rollout_server/vllm/control_requests.h"
#include "rollout_server/vllm/weight_control.h"

namespace tandem::rollout {
namespace {

constexpr size_t kMostWaiting = 4096;  // requests, to be read

HttpReply JsonReply(const Json& json) { return {.body = JsonText(json)}; }

std::string NewId(const char* prefix) {
  thread_local std::mt19937_64 ids{std::random_device{}()};
  return absl::StrCat(prefix, absl::Hex(ids(), absl::kZeroPad16), absl::Hex(ids() >> 32));
}

CallerProof ProofOf(const HttpHead& head) {
  CallerProof who = {.certificate = rpc::IdentityOf(head.peer)};
  if (const std::string* const secret = head.Header(rpc::kCallerSecretKey)) who.secret = *secret;
  return who;
}

// A browser sends JSON to another site only if that site says so, and this server does not.
bool IsJson(const HttpHead& head) {
  const std::string* const type = head.Header("content-type");
  return type != nullptr && absl::StartsWithIgnoreCase(*type, "application/json");
}

}  // namespace

struct HttpService::Impl {
  using Endpoint = void (Impl::*)(const std::shared_ptr<HttpCall>&);
  struct Route {
    std::string_view method;
    Endpoint endpoint;
  };

  Impl(const ServiceParts& service_parts, Needs service_needs)
      : parts(service_parts),
        needs(std::move(service_needs)),
        started(static_cast<int64_t>(UnixSeconds())) {}

  static const std::map<std::string_view, Route>& Routes() {
    static const std::map<std::string_view, Route> routes = {
        {"/v1/models", {"GET", &Impl::Models}},
        {"/v1/completions", {"POST", &Impl::Completions}},
        {"/v1/chat/completions", {"POST", &Impl::ChatCompletions}},
        {"/v1/chat/completions/tokens", {"POST", &Impl::ChatOfIds}},
        {"/inference/v1/generate", {"POST", &Impl::Generate}},
        {"/tokenize", {"POST", &Impl::Tokenize}},
        {"/detokenize", {"POST", &Impl::Detokenize}},
        {"/health", {"GET", &Impl::Health}},
        {"/ping", {"GET", &Impl::Health}},
        {"/version", {"GET", &Impl::Version}},
        {"/metrics", {"GET", &Impl::Metrics}},
        {"/pause", {"POST", &Impl::Pause}},
        {"/resume", {"POST", &Impl::Resume}},
        {"/is_paused", {"GET", &Impl::IsPaused}},
        {"/start_weight_update", {"POST", &Impl::StartWeightUpdate}},
        {"/update_weights", {"POST", &Impl::UpdateWeights}},
        {"/finish_weight_update", {"POST", &Impl::FinishWeightUpdate}},
        {"/weight_info", {"GET", &Impl::WeightInfo}},
        {"/get_world_size", {"GET", &Impl::WorldSize}},
    };
    return routes;
  }

  // A slash at the path's end, which some clients write, is left out of the route.
  static const Route* Find(const HttpHead& head) {
    std::string_view path = head.path;
    if (path.size() > 1 && path.ends_with('/')) path.remove_suffix(1);
    const auto found = Routes().find(path);
    return found == Routes().end() ? nullptr : &found->second;
  }

  static std::string Paths() {
    std::vector<std::string> paths;
    for (const auto& [path, route] : Routes()) paths.emplace_back(path);
    return absl::StrJoin(paths, ", ");
  }

  absl::Status Admit(const HttpHead& head) const {
    const Route* const route = Find(head);
    if (route == nullptr) {
      return NotFound("there is no ", head.path, " here; there are ", Paths());
    }
    std::string path = head.path;
    if (path.ends_with('/')) path.pop_back();
    TANDEM_RETURN_IF_ERROR(
        needs.access_control->CheckHttp(head.peer, path, head.Header("authorization")));
    const bool is_get = head.method == "GET" || head.method == "HEAD";
    if (is_get ? route->method != "GET" : head.method != route->method) {
      return WithHttpStatus(
          405, InvalidArgument(head.path, " takes ", route->method, ", not ", head.method));
    }
    // vLLM's clients pause and resume without a body.
    const std::string* const length = head.Header("content-length");
    const bool is_empty =
        (length == nullptr || *length == "0") && head.Header("transfer-encoding") == nullptr;
    if (route->method == "POST" && !IsJson(head) && !is_empty) {
      return WithHttpStatus(415,
                            InvalidArgument(head.path, " takes Content-Type: application/json"));
    }
    return absl::OkStatus();
  }

  static HttpReply Refuse(const HttpHead& head, const absl::Status& why) {
    HttpReply reply = ErrorReply(why);
    const Route* const route = Find(head);
    if (reply.status == 405 && route != nullptr) {
      reply.headers.emplace_back("Allow", std::string(route->method));
    }
    return reply;
  }

  void Handle(const std::shared_ptr<HttpCall>& call) {
    (this->*Find(call->head())->endpoint)(call);
  }

  // What only tells.

  void Models(const std::shared_ptr<HttpCall>& call) {
    Json list = Json::array();
    const auto add = [&](const std::string& name, const Json& parent) {
      list.push_back({{"id", name},
                      {"object", "model"},
                      {"created", started},
                      {"owned_by", "tandem"},
                      {"root", facts.root},
                      {"parent", parent},
                      {"max_model_len", facts.context_tokens},
                      {"vocab_size", facts.vocab_size},
                      {"weight_version", parts.weights->live()->version.value}});
    };
    add(facts.name, nullptr);
    for (const std::string& adapter : facts.adapters) add(adapter, facts.name);
    call->Answer(JsonReply({{"object", "list"}, {"data", std::move(list)}}));
  }

  void Health(const std::shared_ptr<HttpCall>& call) {
    const ProbeAnswer answer = needs.health();
    if (!answer.yes) return call->Answer(ErrorReply(Unavailable(answer.why)));
    call->Answer({});
  }

  void Version(const std::shared_ptr<HttpCall>& call) {
    call->Answer(JsonReply({{"version", std::string(ProjectVersion())}}));
  }

  void Metrics(const std::shared_ptr<HttpCall>& call) {
    call->Answer({.content_type = "text/plain; version=0.0.4; charset=utf-8",
                  .body = needs.metrics->Render()});
  }

  // Text and ids.

  absl::StatusOr<HttpReply> TokenizeReply(const std::string& body) {
    TANDEM_ASSIGN_OR_RETURN(const Json json, ParseBody(body));
    JsonFields fields(json);
    CompletionJob job;
    TANDEM_RETURN_IF_ERROR(ReadModel(fields, facts, &job));
    const bool shows_texts = fields.Flag("return_token_strs").value_or(false);
    std::vector<int32_t> ids;
    if (fields.Find("messages") != nullptr) {
      TANDEM_ASSIGN_OR_RETURN(ids, reader.prompts().ReadChat(fields));
    } else {
      const std::optional<std::string> prompt = fields.Text("prompt");
      const bool special = fields.Flag("add_special_tokens").value_or(true);
      TANDEM_RETURN_IF_ERROR(fields.status());
      if (!prompt) return BadField("prompt", "want a text `prompt` or a list of `messages`");
      TANDEM_ASSIGN_OR_RETURN(ids, reader.prompts().Encode(*prompt, special));
    }
    Json reply = {{"count", ids.size()}, {"max_model_len", facts.context_tokens}, {"tokens", ids}};
    reply["token_strs"] = nullptr;
    if (shows_texts) {
      Json texts = Json::array();
      for (const int32_t id : ids) {
        TANDEM_ASSIGN_OR_RETURN(const std::string text, rules.decode()({&id, 1}));
        texts.push_back(text);
      }
      reply["token_strs"] = std::move(texts);
    }
    return JsonReply(reply);
  }

  void Tokenize(const std::shared_ptr<HttpCall>& call) {
    OnWorker(call, [this, call] { AnswerWith(call, TokenizeReply(call->body())); });
  }

  absl::StatusOr<HttpReply> DetokenizeReply(const std::string& body) {
    TANDEM_ASSIGN_OR_RETURN(const Json json, ParseBody(body));
    JsonFields fields(json);
    CompletionJob job;
    TANDEM_RETURN_IF_ERROR(ReadModel(fields, facts, &job));
    const auto ids = fields.Ids("tokens", 0, facts.vocab_size - 1);
    TANDEM_RETURN_IF_ERROR(fields.status());
    if (!ids) return BadField("tokens", "tokens is missing, want an array of token ids");
    TANDEM_ASSIGN_OR_RETURN(const std::string text, rules.decode()(*ids));
    return JsonReply({{"prompt", text}});
  }

  void Detokenize(const std::shared_ptr<HttpCall>& call) {
    OnWorker(call, [this, call] { AnswerWith(call, DetokenizeReply(call->body())); });
  }

  // Off the server's thread, which serves all streams.
  void OnWorker(const std::shared_ptr<HttpCall>& call, std::function<void()> task) {
    if (text_worker.Run(std::move(task))) return;
    call->Answer(ErrorReply(ResourceExhausted("too many requests wait to be read")));
  }

  static void AnswerWith(const std::shared_ptr<HttpCall>& call, absl::StatusOr<HttpReply> reply) {
    call->Answer(reply.ok() ? *std::move(reply) : ErrorReply(reply.status()));
  }

  // Completions.

  using Read = absl::StatusOr<AnswerContext> (RequestReader::*)(const std::string& body) const;

  void Complete(const std::shared_ptr<HttpCall>& call, Read read, const AnswerForm& form,
                const char* prefix) {
    OnWorker(call, [this, call, read, &form, prefix] {
      auto context = std::make_shared<absl::StatusOr<AnswerContext>>((reader.*read)(call->body()));
      call->Post(
          [this, call, context, &form, prefix] { Begin(call, *std::move(context), form, prefix); });
    });
  }

  void Begin(const std::shared_ptr<HttpCall>& call, absl::StatusOr<AnswerContext> context,
             const AnswerForm& form, const char* prefix) {
    if (!context.ok()) return call->Answer(ErrorReply(context.status()));
    context->id = context->job.request_id.empty() ? NewId(prefix) : context->job.request_id;
    context->model = context->job.adapter.empty() ? facts.name : context->job.adapter;
    context->created = static_cast<int64_t>(UnixSeconds());
    context->fingerprint = absl::StrCat("tandem-", std::string(GitCommit()), "-weights-",
                                        parts.weights->live()->version.value);
    context->eos_token_ids = parts.model->config.eos_token_ids;
    context->job.stream = context->rules.stream;
    TextRules& text = context->text;
    text.tokenizer = &parts.engine->tokenizer();
    text.skip_special_tokens = context->rules.skip_special_tokens;
    text.include_stop = context->rules.include_stop;
    text.stop_strings = context->job.sampling.stop_strings;
    text.stop_ids = StopIds(context->job.sampling, context->eos_token_ids, facts.vocab_size);
    WriteAnswer(parts, call, ProofOf(call->head()), *std::move(context), form);
  }

  void Completions(const std::shared_ptr<HttpCall>& call) {
    Complete(call, &RequestReader::ReadCompletions, CompletionsForm(), "cmpl-");
  }

  void ChatCompletions(const std::shared_ptr<HttpCall>& call) {
    Complete(call, &RequestReader::ReadChat, ChatForm(), "chatcmpl-");
  }

  void ChatOfIds(const std::shared_ptr<HttpCall>& call) {
    Complete(call, &RequestReader::ReadChatOfIds, ChatForm(), "chatcmpl-");
  }

  void Generate(const std::shared_ptr<HttpCall>& call) {
    Complete(call, &RequestReader::ReadGenerate, GenerateForm(), "gen-");
  }

  // vLLM's endpoints of pauses and weights.

  static WeightControl::Done AnswerWhenDone(const std::shared_ptr<HttpCall>& call, Json json) {
    return [call, json = std::move(json)](const absl::Status& status) {
      AnswerWith(call, status.ok() ? absl::StatusOr<HttpReply>(JsonReply(json)) : status);
    };
  }

  static std::string CertificateOf(const std::shared_ptr<HttpCall>& call) {
    return rpc::IdentityOf(call->head().peer);
  }

  void Pause(const std::shared_ptr<HttpCall>& call) {
    const auto& query = call->head().query;
    const auto found = query.find("mode");
    const std::string mode = found == query.end() ? "abort" : found->second;
    const absl::StatusOr<PauseHow> how = PauseHowNamed(mode);
    if (!how.ok()) return call->Answer(ErrorReply(how.status()));
    needs.control->Pause(CertificateOf(call), *how, AnswerWhenDone(call, {{"status", "paused"}}));
  }

  void Resume(const std::shared_ptr<HttpCall>& call) {
    needs.control->Resume(CertificateOf(call), AnswerWhenDone(call, {{"status", "resumed"}}));
  }

  void IsPaused(const std::shared_ptr<HttpCall>& call) {
    call->Answer(JsonReply({{"is_paused", needs.control->paused()}}));
  }

  void StartWeightUpdate(const std::shared_ptr<HttpCall>& call) {
    needs.control->StartUpdate(CertificateOf(call),
                               AnswerWhenDone(call, {{"message", "Weight update started"}}));
  }

  // prime-rl's {"weight_dir"} updates at once, vLLM's {"update_info"} within an update.
  void UpdateWeights(const std::shared_ptr<HttpCall>& call) {
    const absl::StatusOr<Json> body = ParseBody(call->body());
    if (!body.ok()) return call->Answer(ErrorReply(body.status()));
    const bool at_once = !body->contains("update_info");
    const absl::StatusOr<WeightControl::Update> update =
        ReadUpdate(at_once ? *body : (*body)["update_info"]);
    if (!update.ok()) return call->Answer(ErrorReply(update.status()));
    const auto done = AnswerWhenDone(call, {{"status", "ok"}, {"message", "Weights updated"}});
    if (at_once) {
      needs.control->UpdateAtOnce(CertificateOf(call), *update, done);
    } else {
      needs.control->UpdateWeights(CertificateOf(call), *update, done);
    }
  }

  void FinishWeightUpdate(const std::shared_ptr<HttpCall>& call) {
    std::optional<int64_t> version;
    if (!call->body().empty()) {
      const absl::StatusOr<Json> body = ParseBody(call->body());
      if (!body.ok()) return call->Answer(ErrorReply(body.status()));
      JsonFields fields(*body);
      const std::optional<std::string> name = fields.Text("weight_version");
      if (!fields.status().ok()) return call->Answer(ErrorReply(fields.status()));
      const auto named = VersionNamed(name);
      if (!named.ok()) return call->Answer(ErrorReply(named.status()));
      version = *named;
    }
    needs.control->FinishUpdate(CertificateOf(call), version,
                                AnswerWhenDone(call, {{"message", "Weight update finished"}}));
  }

  void WeightInfo(const std::shared_ptr<HttpCall>& call) {
    call->Answer(JsonReply({{"weight_version", absl::StrCat(needs.control->live_version())}}));
  }

  void WorldSize(const std::shared_ptr<HttpCall>& call) {
    call->Answer(JsonReply({{"world_size", 1}}));
  }

  const ServiceParts parts;
  const Needs needs;
  const int64_t started;  // seconds since 1970
  const RequestReader& reader = *needs.reader;
  const ModelFacts& facts = reader.facts();
  const TextRules rules = {.tokenizer = &parts.engine->tokenizer(), .skip_special_tokens = false};
  WorkerThread text_worker{kMostWaiting};  // reads requests, which may render long chats
  std::unique_ptr<HttpServer> server;      // the last: its threads use the others
};

HttpService::HttpService(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
HttpService::~HttpService() = default;

absl::StatusOr<std::unique_ptr<HttpService>> HttpService::Listen(const ServiceParts& parts,
                                                                 const ServerOptions& options,
                                                                 Needs needs) {
  const rpc::AccessControl& access = *needs.access_control;
  const HttpServerOptions http = {.listen = options.http_listen,
                                  .num_threads = 1,
                                  .identity_file = access.identity_file(),
                                  .authorities_file = access.authorities_file(),
                                  .max_body_bytes = options.max_message_bytes};
  auto impl = std::make_unique<Impl>(parts, std::move(needs));
  Impl* const self = impl.get();
  TANDEM_ASSIGN_OR_RETURN(
      impl->server,
      HttpServer::Listen(http,
                         {[self](const HttpHead& head) { return self->Admit(head); }, &Impl::Refuse,
                          [self](std::shared_ptr<HttpCall> call) { self->Handle(call); }}));
  log::Info("HTTP", {{"listen", options.http_listen}, {"port", impl->server->port()}});
  return std::unique_ptr<HttpService>(new HttpService(std::move(impl)));
}

int HttpService::port() const { return impl_->server->port(); }

void HttpService::Stop(absl::Duration at_most) { impl_->server->Stop(at_most); }

}  // namespace tandem::rollout
