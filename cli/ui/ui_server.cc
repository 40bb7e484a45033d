#include "cli/ui/ui_server.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "cli/report/html_page.h"
#include "cli/report/report.h"
#include "cli/ui/run_follower.h"
#include "cli/ui/run_list.h"
#include "common/base/status_macros.h"
#include "common/files/file_system.h"
#include "common/http/http_server.h"
#include "common/http/url_query.h"
#include "common/rendezvous/loopback.h"

namespace tandem::ui {
namespace {

using Json = nlohmann::json;

constexpr std::string_view kScripts[] = {"dom.js",   "charts.js",  "intervals.js", "tokens.js",
                                         "theme.js", "ui_runs.js", "ui_charts.js", "ui_main.js"};
constexpr char kHtml[] = "text/html; charset=utf-8";

std::string Dump(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

// A page of another site may not read this one by a name that it makes resolve to this machine.
bool IsOurHost(const HttpHead& head) {
  const std::string* const host = head.Header("host");
  if (host == nullptr) return false;
  const size_t colon = host->rfind(':');
  const bool has_port = colon != std::string::npos && !host->ends_with(']');
  return IsLoopback(has_port ? *host : *host + ":0");
}

class Site {
 public:
  explicit Site(std::vector<std::string> roots) : roots_(std::move(roots)) {}

  absl::Status Admit(const HttpHead& head) const {
    if (!IsOurHost(head)) return PermissionDenied("ask for this page by a name of this machine");
    if (head.method != "GET" && head.method != "HEAD") {
      return InvalidArgument("only GET is taken");
    }
    return absl::OkStatus();
  }

  absl::StatusOr<HttpReply> Answer(const HttpHead& head) const {
    if (head.path == "/") {
      return HttpReply{.content_type = kHtml,
                       .body = report::RenderHtml({.title = "Tandem runs",
                                                   .data = Dump({{"roots", roots_}}),
                                                   .scripts = kScripts,
                                                   .fetches = true})};
    }
    if (head.path == "/api/runs") {
      Json list = Json::array();
      for (const Run& run : FindRuns(roots_)) list.push_back(SummaryOf(run));
      return HttpReply{.body = Dump(list)};
    }
    if (head.path == "/api/rows") return Rows(head);
    if (absl::StartsWith(head.path, "/runs/")) return Page(head.path.substr(6));
    return NotFound("there is no ", head.path);
  }

 private:
  std::optional<Run> Named(const std::string& name) const {
    for (Run& run : FindRuns(roots_)) {
      if (run.name == name) return std::move(run);
    }
    return std::nullopt;
  }

  absl::StatusOr<HttpReply> Rows(const HttpHead& head) const {
    const auto value = [&](const char* name) {
      const auto found = head.query.find(name);
      return found == head.query.end() ? std::string() : found->second;
    };
    const std::optional<Run> run = Named(value("run"));
    if (!run) return NotFound("there is no run ", value("run"));
    int64_t after = 0;
    if (!value("after").empty() && (!absl::SimpleAtoi(value("after"), &after) || after < 0)) {
      return InvalidArgument("after is ", value("after"), ", want a number of bytes");
    }
    const std::vector<std::string> keys = absl::StrSplit(value("keys"), ',', absl::SkipEmpty());
    return HttpReply{.body = Dump(RowsAfter(run->path, after, keys))};
  }

  // NAME/report.html or NAME/captures/step_N/attribution.html, the name percent-encoded.
  absl::StatusOr<HttpReply> Page(const std::string& encoded) const {
    const std::string path = PercentDecoded(encoded);
    constexpr std::string_view kReport = "/report.html", kAttribution = "/attribution.html",
                               kCaptures = "/captures/step_";
    if (absl::EndsWith(path, {kReport.data(), kReport.size()})) {
      const std::optional<Run> run = Named(path.substr(0, path.size() - kReport.size()));
      if (!run) return NotFound("there is no ", path);
      TANDEM_ASSIGN_OR_RETURN(std::string page, report::RenderReport(run->path, "."));
      return HttpReply{.content_type = kHtml, .body = std::move(page)};
    }
    const size_t at = path.rfind(kCaptures);
    if (at == std::string::npos ||
        !absl::EndsWith(path, {kAttribution.data(), kAttribution.size()})) {
      return NotFound("there is no ", path);
    }
    const std::string step = path.substr(at + kCaptures.size(),
                                         path.size() - at - kCaptures.size() - kAttribution.size());
    const std::optional<Run> run = Named(path.substr(0, at));
    const bool is_number =
        !step.empty() && std::ranges::all_of(step, [](char c) { return c >= '0' && c <= '9'; });
    if (!run || !is_number) return NotFound("there is no ", path);
    TANDEM_ASSIGN_OR_RETURN(
        std::string page,
        ReadFile(absl::StrCat(run->path, std::string(kCaptures), step, std::string(kAttribution))));
    return HttpReply{.content_type = kHtml, .body = std::move(page)};
  }

  const std::vector<std::string> roots_;
};

HttpReply Refusal(const absl::Status& why) {
  const int status = absl::IsNotFound(why)           ? 404
                     : absl::IsPermissionDenied(why) ? 403
                     : absl::IsInvalidArgument(why)  ? 400
                                                     : 500;
  return {.status = status,
          .content_type = "text/plain; charset=utf-8",
          .body = std::string(why.message()) + "\n"};
}

}  // namespace

UiServer::UiServer(std::unique_ptr<HttpServer> server) : server_(std::move(server)) {}
UiServer::~UiServer() = default;

absl::StatusOr<std::unique_ptr<UiServer>> UiServer::Listen(const std::string& listen,
                                                           std::vector<std::string> roots) {
  if (!IsLoopback(listen)) {
    return InvalidArgument(
        "--listen ", listen,
        " is not on loopback: the page shows prompts and asks nobody for a name. From another "
        "machine use ssh -L 6007:127.0.0.1:6007 HOST");
  }
  const auto site = std::make_shared<const Site>(std::move(roots));
  TANDEM_ASSIGN_OR_RETURN(
      auto server,
      HttpServer::Listen({.listen = listen, .max_body_bytes = 1 << 10},
                         {[site](const HttpHead& head) { return site->Admit(head); },
                          [](const HttpHead&, const absl::Status& why) { return Refusal(why); },
                          [site](const std::shared_ptr<HttpCall>& call) {
                            absl::StatusOr<HttpReply> reply = site->Answer(call->head());
                            call->Answer(reply.ok() ? *std::move(reply) : Refusal(reply.status()));
                          }}));
  return std::unique_ptr<UiServer>(new UiServer(std::move(server)));
}

int UiServer::port() const { return server_->port(); }

}  // namespace tandem::ui
