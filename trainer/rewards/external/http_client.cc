#include "trainer/rewards/external/http_client.h"

#include <algorithm>
#include <chrono>
#include <string_view>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/clock.h"
#include "common/base/exit_codes.h"
#include "common/base/status_macros.h"
#include "common/files/file_system.h"

namespace tandem::trainer {
namespace {

constexpr size_t kMostBodyBytes = size_t{16} << 20;
constexpr size_t kShownBodyBytes = 200;  // of an error's body in a message

absl::StatusOr<std::string> ReadToken(const std::string& file) {
  TANDEM_ASSIGN_OR_RETURN(const std::string contents, ReadFile(file));
  const std::string line = contents.substr(0, contents.find('\n'));
  std::string token(absl::StripAsciiWhitespace(line));
  if (!token.empty() && std::ranges::all_of(token, absl::ascii_isgraph)) return token;
  return InvalidArgument(file,
                         ": its first line is no token: want printable characters without spaces");
}

absl::Status BadFile(const std::string& option, const absl::Status& why) {
  return WithExitCode(InvalidArgument(option, ": ", why.message()), ExitCode::kBadModelOrData);
}

bool IsHeader(const std::string& header) {
  const size_t colon = header.find(':');
  return colon != std::string::npos && colon > 0 &&
         std::ranges::all_of(
             header.substr(0, colon),
             [](char c) { return absl::ascii_isalnum(c) || c == '-' || c == '_'; }) &&
         std::ranges::none_of(header, absl::ascii_iscntrl);
}

Attempt AttemptOfStatus(int code, const std::string& url, const std::string& body) {
  const std::string said =
      absl::StrCat(url, " answered ", code, body.empty() ? "" : ": ",
                   absl::StripAsciiWhitespace(body.substr(0, kShownBodyBytes)));
  if (code >= 200 && code < 300) return {};
  if (code == 429) return {.status = ResourceExhausted(said), .may_repeat = true, .is_busy = true};
  if (code == 408) return {.status = DeadlineExceeded(said), .may_repeat = true};
  if (code >= 500) return {.status = Unavailable(said), .may_repeat = true};
  return {.status = FailedPrecondition(said)};
}

}  // namespace

void BindOptions(OptionBinder& binder, HttpClientOptions& options, const char* token_option) {
  binder.TextList("headers", &options.headers, "sent with each request: \"Name: value\"");
  binder.Text(token_option, &options.token_file,
              "bearer token: the first line of this file, read for each request; empty: none");
  binder.Text("ca_file", &options.ca_file,
              "PEM of the authorities that a service is verified by; empty: the system's");
  binder.Flag("verify_tls", &options.verify_tls,
              "verify certificate and name of the service; off is refused for other machines");
}

absl::Status CheckHttpClientOptions(const HttpClientOptions& options, const std::string& section) {
  const bool is_plaintext = options.url.starts_with("http://");
  if (!is_plaintext && !options.url.starts_with("https://")) {
    return InvalidArgument(section, ".url is '", options.url,
                           "': want the http:// or https:// URL of the service");
  }
  if (absl::StrContains(UrlAuthority(options.url), '@')) {
    return InvalidArgument(section,
                           ".url has a user or a password, which messages would show: name a file "
                           "with a token instead");
  }
  const bool is_here = IsThisMachine(options.url);
  if (!options.token_file.empty()) {
    if (is_plaintext && !is_here) {
      return InvalidArgument(section, ".url is '", options.url,
                             "': a bearer token never travels in plaintext to another machine; use "
                             "https://");
    }
    const auto token = ReadToken(options.token_file);
    if (!token.ok()) return BadFile(section, token.status());
  }
  if (!options.verify_tls && !is_here) {
    return InvalidArgument(section,
                           ".verify_tls is off for a service of another machine: anybody between "
                           "could make up rewards; name its authority in ",
                           section, ".ca_file");
  }
  for (const std::string& header : options.headers) {
    if (IsHeader(header)) continue;
    return InvalidArgument(section, ".headers: '", header, "' is no \"Name: value\"");
  }
  if (options.ca_file.empty()) return absl::OkStatus();
  const auto authorities = ReadFile(options.ca_file);
  if (authorities.ok()) return absl::OkStatus();
  return BadFile(section + ".ca_file", authorities.status());
}

HttpClient::HttpClient(const HttpClientOptions& options, double timeout_seconds, EndSign* end)
    : options_(options),
      end_(end),
      session_({.ca_file = options.ca_file,
                .verify_tls = options.verify_tls,
                .timeout_seconds = timeout_seconds}) {
  session_.UseCancel([this] {
    return (cancelled_ && cancelled_()) || end_->WaitFor(std::chrono::milliseconds(0));
  });
}

void HttpClient::UseCancel(std::function<bool()> cancelled) { cancelled_ = std::move(cancelled); }

HttpReply HttpClient::Post(const std::string& path, const std::string& json) {
  return Send({.method = HttpRequest::Method::kPost, .url = options_.url + path, .body = json});
}

HttpReply HttpClient::Get(const std::string& path) { return Send({.url = options_.url + path}); }

HttpReply HttpClient::Send(HttpRequest request) {
  request.headers = options_.headers;
  request.headers.insert(request.headers.begin(), "Content-Type: application/json");
  if (!options_.token_file.empty()) {
    const auto token = ReadToken(options_.token_file);
    if (!token.ok()) return {.attempt = {.status = FailedPrecondition(token.status().message())}};
    request.headers.push_back("Authorization: Bearer " + *token);
  }
  std::string body;
  const HttpAnswer answer =
      session_.Send(request, [&](const HttpAnswer&, std::string_view bytes) -> absl::Status {
        if (body.size() + bytes.size() > kMostBodyBytes) {
          return ResourceExhausted(request.url, ": an answer over 16 MiB");
        }
        body.append(bytes);
        return absl::OkStatus();
      });
  if (absl::IsCancelled(answer.status)) return {.attempt = {.status = Cancelled("the run ends")}};
  if (!answer.status.ok()) {
    return {.attempt = {.status = answer.status,
                        .may_repeat = !absl::IsResourceExhausted(answer.status)}};
  }
  HttpReply reply = {.attempt = AttemptOfStatus(answer.http_status, request.url, body),
                     .http_status = answer.http_status};
  reply.attempt.retry_after_seconds =
      RetryAfterSeconds(answer.Header("retry-after"), UnixSeconds());
  if (reply.attempt.status.ok()) reply.body = std::move(body);
  return reply;
}

}  // namespace tandem::trainer
