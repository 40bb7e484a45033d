#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "cli/bench/serve_load.h"
#include "common/base/clock.h"
#include "common/base/status_macros.h"
#include "common/http/http_session.h"
#include "common/rpc/caller_secret.h"
#include "nlohmann/json.hpp"

namespace tandem::cli {
namespace {

using Json = nlohmann::json;

constexpr int64_t kIdsOfAnyModel = 1000;  // a vocabulary where a server does not name its own
constexpr double kReachSeconds = 5;

// When the tokens of a choice came.
struct Arrivals {
  double first = 0, last = 0, longest_gap = 0;
  int64_t events = 0;

  void Add(double now) {
    if (events++ == 0) {
      first = now;
    } else {
      longest_gap = std::max(longest_gap, now - last);
    }
    last = now;
  }
};

// Reads server-sent events as they arrive. It looks for what it needs and parses no JSON but that
// of the last event: a measurement shares the machine's cores with the server.
class EventReader {
 public:
  void Read(std::string_view bytes) {
    text_ += bytes;
    size_t end = 0;
    for (size_t at = 0; (end = text_.find("\n\n", at)) != std::string::npos; at = end + 2) {
      Take(std::string_view(text_).substr(at, end - at));
      done_ = end + 2;
    }
    text_.erase(0, std::exchange(done_, 0));
  }

  const std::map<int64_t, Arrivals>& arrivals() const { return arrivals_; }
  int64_t tokens() const { return tokens_; }
  const std::string& error() const { return error_; }

 private:
  void Take(std::string_view event) {
    if (!event.starts_with("data: {")) return;
    event.remove_prefix(6);
    if (event.starts_with("{\"error\"")) {
      error_ = event;
    } else if (event.find("\"choices\":[]") != std::string_view::npos) {
      const Json json = Json::parse(event, nullptr, false);
      if (json.contains("usage")) tokens_ = json["usage"].value("completion_tokens", 0);
    } else if (const size_t at = event.find("\"index\":"); at != std::string_view::npos) {
      int64_t index = 0;
      std::string_view number = event.substr(at + 8);
      number = number.substr(0, number.find_first_not_of("0123456789"));
      if (absl::SimpleAtoi(std::string(number), &index)) arrivals_[index].Add(MonotonicSeconds());
    }
  }

  std::string text_, error_;
  size_t done_ = 0;
  std::map<int64_t, Arrivals> arrivals_;
  int64_t tokens_ = 0;
};

class HttpTarget : public ServeTarget {
 public:
  explicit HttpTarget(const ServeLoad& load) : load_(load) {
    const bool secure = !load.tls.directory.empty();
    url_ = absl::StartsWith(load.address, "http")
               ? load.address
               : absl::StrCat(secure ? "https://" : "http://", load.address);
    while (url_.ends_with('/')) url_.pop_back();
    if (url_.ends_with("/v1")) url_.resize(url_.size() - 3);
    if (secure) {
      options_.ca_file = load.tls.directory + "/ca.crt";
      options_.certificate_file = load.tls.directory + "/tls.crt";
      options_.key_file = load.tls.directory + "/tls.key";
    }
  }

  absl::StatusOr<Limits> Reach() override {
    if (!load_.tls.token_file.empty()) {
      TANDEM_ASSIGN_OR_RETURN(const auto tokens, rpc::ReadTokens(load_.tls.token_file));
      token_ = tokens.front();
    }
    HttpSessionOptions options = options_;
    options.timeout_seconds = kReachSeconds;
    HttpSession session(options);
    std::string body;
    const HttpAnswer answer =
        Send(session, {.url = url_ + "/v1/models"}, [&](std::string_view bytes) { body += bytes; });
    TANDEM_RETURN_IF_ERROR(answer.status);
    const Json json = Json::parse(body, nullptr, false);
    if (answer.http_status != 200 || !json.is_object() || !json.contains("data") ||
        !json["data"].is_array() || json["data"].empty()) {
      return Unavailable(url_, "/v1/models answers HTTP ", answer.http_status, " ",
                         body.substr(0, 200));
    }
    const Json& model = json["data"][0];
    model_ = model.value("id", "");
    return Limits{model.value("vocab_size", kIdsOfAnyModel),
                  model.value("max_model_len", std::numeric_limits<int64_t>::max() / 2)};
  }

  ServedGroup Ask(const ServeRequest& asked) override {
    const bool streams = load_.protocol == ServeProtocol::kHttpStream;
    Json request = {{"model", model_},       {"prompt", asked.prompt},
                    {"n", load_.group_size}, {"max_tokens", load_.new_tokens},
                    {"temperature", 1},      {"seed", asked.seed >> 1},
                    {"ignore_eos", true}};
    if (streams) {
      request["stream"] = true;
      request["stream_options"] = {{"include_usage", true}};
    }
    const std::string body = request.dump();
    HttpSessionOptions options = options_;
    options.timeout_seconds = load_.timeout_seconds;
    HttpSession session(options);
    const double sent = MonotonicSeconds();
    EventReader events;
    std::string text;
    const HttpAnswer answer =
        Send(session,
             {.method = HttpRequest::Method::kPost, .url = url_ + "/v1/completions", .body = body},
             [&](std::string_view bytes) {
               if (streams) events.Read(bytes);
               if (!streams || text.size() < 1000) text += bytes;
             });
    ServedGroup group = {.queue_ms = NAN, .prefill_ms = NAN};
    if (!answer.status.ok()) {
      group.code = absl::StatusCodeToString(answer.status.code());
      group.message = std::string(answer.status.message());
    } else if (answer.http_status != 200 || !events.error().empty()) {
      group.code = absl::StrCat("HTTP ", answer.http_status);
      group.message = events.error().empty() ? text.substr(0, 300) : events.error();
    } else if (streams) {
      Measure(events, sent, &group);
    } else {
      const Json json = Json::parse(text, nullptr, false);
      if (json.contains("usage")) group.tokens = json["usage"].value("completion_tokens", 0);
    }
    return group;
  }

 private:
  template <typename OnBytes>
  HttpAnswer Send(HttpSession& session, HttpRequest request, const OnBytes& on_bytes) {
    request.headers.push_back("Content-Type: application/json");
    if (!token_.empty()) request.headers.push_back("Authorization: Bearer " + token_);
    return session.Send(request, [&](const HttpAnswer&, std::string_view bytes) {
      on_bytes(bytes);
      return absl::OkStatus();
    });
  }

  static void Measure(const EventReader& events, double sent, ServedGroup* group) {
    group->tokens = events.tokens();
    double first = std::numeric_limits<double>::infinity();
    for (const auto& [index, times] : events.arrivals()) {
      first = std::min(first, times.first);
      group->longest_gap_ms.push_back(times.longest_gap * 1e3);
      if (times.events < 2) continue;
      group->between_tokens_ms.push_back((times.last - times.first) * 1e3 /
                                         static_cast<double>(times.events - 1));
    }
    if (std::isfinite(first)) group->prefill_ms = (first - sent) * 1e3;
  }

  const ServeLoad load_;
  HttpSessionOptions options_;
  std::string url_, model_, token_;
};

}  // namespace

std::unique_ptr<ServeTarget> MakeHttpTarget(const ServeLoad& load) {
  return std::make_unique<HttpTarget>(load);
}

}  // namespace tandem::cli
