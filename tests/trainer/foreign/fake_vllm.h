// FakeVllm: a vLLM server in this process whose answers are worked out by hand: completion i of a
// group is the tokens 5 and 6 with log-probs -0.5 - i and -0.25. It keeps what it is told of weights,
// and notes each call. For tests of trainer/foreign.
#pragma once

#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "common/base/mutex.h"
#include "tests/support/json_service.h"

namespace tandem::testing {

class FakeVllm {
 public:
  FakeVllm() : service_([this](const JsonService::Request& request) { return Answer(request); }) {}

  // As trainer.servers names it.
  std::string address() const { return "vllm://" + service_.url().substr(7); }

  // The routes that were called, without those that only ask.
  std::vector<std::string> calls() const {
    MutexLock lock(&mu_);
    return calls_;
  }
  std::vector<nlohmann::json> bodies(const std::string& route) const {
    std::vector<nlohmann::json> found;
    for (const JsonService::Request& request : service_.requests()) {
      if (request.path == route) found.push_back(nlohmann::json::parse(request.body));
    }
    return found;
  }

  // As if the process ended and another began: the mark is gone.
  void Restart() {
    MutexLock lock(&mu_);
    mark_ = "default";
  }
  void set_paused(bool paused) {
    MutexLock lock(&mu_);
    paused_ = paused;
  }
  void set_development(bool on) {
    MutexLock lock(&mu_);
    development_ = on;
  }
  void set_logprobs_mode(const std::string& mode) {
    MutexLock lock(&mu_);
    mode_ = mode;
  }
  void set_tokens(std::vector<int32_t> tokens) {
    MutexLock lock(&mu_);
    tokens_ = std::move(tokens);
  }
  // Called, without a lock, before each group is answered; its result is the finish reason.
  void set_during_group(std::function<std::string()> during) {
    MutexLock lock(&mu_);
    during_ = std::move(during);
  }
  // Parameter to digest, as /weight_checker gives them; without any the route is not there.
  void set_checksums(const std::map<std::string, std::string>& checksums) {
    MutexLock lock(&mu_);
    checksums_ = checksums;
  }
  void set_prefix_cache_resets(bool works) {
    MutexLock lock(&mu_);
    resets_ = works;
  }

 private:
  using Json = nlohmann::json;

  JsonService::Reply Answer(const JsonService::Request& request) {
    const std::string& path = request.path;
    if (path == "/health") return {.body = "{}"};
    if (path == "/version") return {.body = R"({"version":"0.32.0"})"};
    if (path == "/v1/models") {
      return {.body = R"({"data":[{"id":"m","root":"/models/m","max_model_len":64}]})"};
    }
    if (path == "/v1/completions") return Complete(Json::parse(request.body));
    MutexLock lock(&mu_);
    if (path == "/tokenize") return {.body = Json{{"tokens", tokens_}}.dump()};
    if (!development_) return {.status = 404, .body = R"({"detail":"Not Found"})"};
    return Develop(path, request.body);
  }

  JsonService::Reply Complete(const Json& body) {
    std::function<std::string()> during;
    float shift = 0;
    {
      MutexLock lock(&mu_);
      during = during_;
      shift = static_cast<float>(num_loads_) / 8;
    }
    Json scores = {nullptr};
    for (size_t t = 1; t < body["prompt"].size(); ++t) {
      scores.push_back({{std::to_string(body["prompt"][t].get<int>()), {{"logprob", -1 - shift}}}});
    }
    const bool asks_score = body.contains("prompt_logprobs");
    const std::string finish = during && !asks_score ? during() : "stop";
    Json choices = Json::array();
    for (int i = 0; i < body.value("n", 1); ++i) {
      choices.push_back({{"text", "hi"},
                         {"finish_reason", finish},
                         {"token_ids", {5, 6}},
                         {"logprobs", {{"token_logprobs", {-0.5 - i, -0.25}}}},
                         {"prompt_logprobs", asks_score ? scores : Json()}});
    }
    return {.body = Json{{"choices", choices}}.dump()};
  }

  JsonService::Reply Develop(const std::string& path, const std::string& body)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    if (path == "/server_info") {
      return {.body =
                  Json{{"vllm_config",
                        {{"model_config", {{"dtype", "torch.float32"}, {"logprobs_mode", mode_}}}}}}
                      .dump()};
    }
    if (path == "/weight_info") return {.body = Json{{"weight_version", mark_}}.dump()};
    if (path == "/is_paused") return {.body = Json{{"is_paused", paused_}}.dump()};
    if (path == "/weight_checker") {
      if (checksums_.empty()) return {.status = 404, .body = "{}"};
      return {.body = Json{{"checksums", checksums_}}.dump()};
    }
    calls_.push_back(path);
    if (path == "/pause") paused_ = true;
    if (path == "/resume") paused_ = false;
    if (path == "/collective_rpc") ++num_loads_;
    if (path == "/update_weight_version") mark_ = Json::parse(body)["new_version"];
    return {.body = Json{{"success", path != "/reset_prefix_cache" || resets_}}.dump()};
  }

  mutable Mutex mu_;
  std::vector<std::string> calls_ ABSL_GUARDED_BY(mu_);
  std::string mark_ ABSL_GUARDED_BY(mu_) = "default";
  std::string mode_ ABSL_GUARDED_BY(mu_) = "processed_logprobs";
  std::vector<int32_t> tokens_ ABSL_GUARDED_BY(mu_);
  std::function<std::string()> during_ ABSL_GUARDED_BY(mu_);
  std::map<std::string, std::string> checksums_ ABSL_GUARDED_BY(mu_);
  bool development_ ABSL_GUARDED_BY(mu_) = true;
  bool paused_ ABSL_GUARDED_BY(mu_) = false;
  bool resets_ ABSL_GUARDED_BY(mu_) = true;
  int num_loads_ ABSL_GUARDED_BY(mu_) = 0;
  JsonService service_;  // last: its threads use the others
};

}  // namespace tandem::testing
