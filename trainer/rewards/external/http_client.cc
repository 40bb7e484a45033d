#include "trainer/rewards/external/http_client.h"

#include <curl/curl.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <string_view>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/clock.h"
#include "common/base/exit_codes.h"
#include "common/base/status_macros.h"
#include "common/files/file_system.h"
#include "common/rendezvous/loopback.h"

namespace tandem::trainer {
namespace {

constexpr size_t kMostBodyBytes = size_t{16} << 20;
constexpr size_t kShownBodyBytes = 200;  // of an error's body in a message
constexpr long kConnectSeconds = 10;     // NOLINT: libcurl takes long

// HOST:PORT, HOST or [ADDRESS]:PORT of a URL, with what stands before an @.
std::string AuthorityOf(const std::string& url) {
  const size_t begin = url.find("://") + 3;
  return url.substr(begin, url.find_first_of("/?#\\", begin) - begin);
}

bool IsThisMachine(const std::string& url) {
  const std::string authority = AuthorityOf(url);
  const bool has_port = authority.rfind(':') != std::string::npos && !authority.ends_with(']');
  return IsLoopback(has_port ? authority : authority + ":0");
}

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

// libcurl wants to be initialised once, before other threads use it; its own lock makes a second
// call harmless.
void InitialiseCurl() {
  static const CURLcode code = curl_global_init(CURL_GLOBAL_DEFAULT);
  TANDEM_CHECK(code == CURLE_OK);
}

struct FreeHeaders {
  void operator()(curl_slist* list) const { curl_slist_free_all(list); }
};
using HeaderList = std::unique_ptr<curl_slist, FreeHeaders>;

void AddHeader(HeaderList* list, const std::string& header) {
  curl_slist* const longer = curl_slist_append(list->get(), header.c_str());
  TANDEM_CHECK(longer != nullptr);
  static_cast<void>(list->release());
  list->reset(longer);
}

Attempt AttemptOfStatus(long code, const std::string& url, const std::string& body) {
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
  if (absl::StrContains(AuthorityOf(options.url), '@')) {
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

double RetryAfterSeconds(const std::string& value, double now) {
  double seconds = 0;
  if (absl::SimpleAtod(value, &seconds)) return std::isfinite(seconds) ? std::max(0.0, seconds) : 0;
  const time_t date = curl_getdate(value.c_str(), nullptr);
  return date < 0 ? 0 : std::max(0.0, static_cast<double>(date) - now);
}

// The handle, and what its callbacks fill for one request.
struct HttpClient::Handle {
  CURL* easy = nullptr;
  EndSign* end = nullptr;
  std::function<bool()> cancelled;  // may be empty
  std::string body;
  bool too_long = false;
  std::string retry_after;
  char error[CURL_ERROR_SIZE] = {};

  ~Handle() { curl_easy_cleanup(easy); }

  static size_t OnBody(char* bytes, size_t, size_t count, void* self) {
    Handle& handle = *static_cast<Handle*>(self);
    handle.too_long = handle.body.size() + count > kMostBodyBytes;
    if (handle.too_long) return 0;
    handle.body.append(bytes, count);
    return count;
  }

  static size_t OnHeader(char* bytes, size_t, size_t count, void* self) {
    const std::string_view line(bytes, count);
    constexpr std::string_view kName = "retry-after:";
    if (absl::StartsWithIgnoreCase({line.data(), line.size()}, {kName.data(), kName.size()})) {
      const std::string_view value = line.substr(kName.size());
      static_cast<Handle*>(self)->retry_after =
          std::string(absl::StripAsciiWhitespace({value.data(), value.size()}));
    }
    return count;
  }

  // libcurl calls it all the time, at least once a second. Other than 0 ends the request.
  static int OnProgress(void* self, curl_off_t, curl_off_t, curl_off_t, curl_off_t) {
    const Handle& handle = *static_cast<Handle*>(self);
    if (handle.cancelled && handle.cancelled()) return 1;
    return handle.end->WaitFor(std::chrono::milliseconds(0)) ? 1 : 0;
  }
};

HttpClient::HttpClient(const HttpClientOptions& options, double timeout_seconds, EndSign* end)
    : options_(options), timeout_seconds_(timeout_seconds), handle_(std::make_unique<Handle>()) {
  InitialiseCurl();
  handle_->easy = curl_easy_init();
  TANDEM_CHECK(handle_->easy != nullptr);
  handle_->end = end;
  CURL* const easy = handle_->easy;
  curl_easy_setopt(easy, CURLOPT_NOSIGNAL, 1L);
  curl_easy_setopt(easy, CURLOPT_PROTOCOLS_STR, "http,https");
  // No proxy of the environment for this machine: it could not reach it, and would see the token.
  if (IsThisMachine(options.url)) curl_easy_setopt(easy, CURLOPT_PROXY, "");
  curl_easy_setopt(easy, CURLOPT_CONNECTTIMEOUT, kConnectSeconds);
  curl_easy_setopt(easy, CURLOPT_TIMEOUT_MS,
                   std::max(1L, static_cast<long>(timeout_seconds * 1e3)));
  curl_easy_setopt(easy, CURLOPT_SSL_VERIFYPEER, options.verify_tls ? 1L : 0L);
  curl_easy_setopt(easy, CURLOPT_SSL_VERIFYHOST, options.verify_tls ? 2L : 0L);
  if (!options.ca_file.empty()) curl_easy_setopt(easy, CURLOPT_CAINFO, options.ca_file.c_str());
  curl_easy_setopt(easy, CURLOPT_ERRORBUFFER, handle_->error);
  curl_easy_setopt(easy, CURLOPT_WRITEFUNCTION, Handle::OnBody);
  curl_easy_setopt(easy, CURLOPT_WRITEDATA, handle_.get());
  curl_easy_setopt(easy, CURLOPT_HEADERFUNCTION, Handle::OnHeader);
  curl_easy_setopt(easy, CURLOPT_HEADERDATA, handle_.get());
  curl_easy_setopt(easy, CURLOPT_NOPROGRESS, 0L);
  curl_easy_setopt(easy, CURLOPT_XFERINFOFUNCTION, Handle::OnProgress);
  curl_easy_setopt(easy, CURLOPT_XFERINFODATA, handle_.get());
}

HttpClient::~HttpClient() = default;

void HttpClient::UseCancel(std::function<bool()> cancelled) {
  handle_->cancelled = std::move(cancelled);
}

HttpReply HttpClient::Post(const std::string& path, const std::string& json) {
  curl_easy_setopt(handle_->easy, CURLOPT_POST, 1L);
  curl_easy_setopt(handle_->easy, CURLOPT_POSTFIELDSIZE_LARGE,
                   static_cast<curl_off_t>(json.size()));
  curl_easy_setopt(handle_->easy, CURLOPT_POSTFIELDS, json.data());
  return Send(path);
}

HttpReply HttpClient::Get(const std::string& path) {
  curl_easy_setopt(handle_->easy, CURLOPT_HTTPGET, 1L);
  return Send(path);
}

HttpReply HttpClient::Send(const std::string& path) {
  const std::string url = options_.url + path;
  HeaderList headers;
  AddHeader(&headers, "Content-Type: application/json");
  AddHeader(&headers, "Expect:");  // no pause for the answer "100 Continue" before a long body
  for (const std::string& header : options_.headers) AddHeader(&headers, header);
  if (!options_.token_file.empty()) {
    const auto token = ReadToken(options_.token_file);
    if (!token.ok()) return {.attempt = {.status = FailedPrecondition(token.status().message())}};
    AddHeader(&headers, "Authorization: Bearer " + *token);
  }
  Handle& handle = *handle_;
  handle.body.clear();
  handle.retry_after.clear();
  handle.too_long = false;
  handle.error[0] = '\0';
  curl_easy_setopt(handle.easy, CURLOPT_URL, url.c_str());
  curl_easy_setopt(handle.easy, CURLOPT_HTTPHEADER, headers.get());
  const CURLcode code = curl_easy_perform(handle.easy);
  curl_easy_setopt(handle.easy, CURLOPT_HTTPHEADER, nullptr);
  const std::string why =
      absl::StrCat(url, ": ", handle.error[0] != '\0' ? handle.error : curl_easy_strerror(code));
  if (code == CURLE_ABORTED_BY_CALLBACK) return {.attempt = {.status = Cancelled("the run ends")}};
  if (handle.too_long) {
    return {.attempt = {.status = ResourceExhausted(url, ": an answer over 16 MiB")}};
  }
  if (code == CURLE_OPERATION_TIMEDOUT) {
    return {.attempt = {.status = DeadlineExceeded(why), .may_repeat = true}};
  }
  if (code != CURLE_OK) return {.attempt = {.status = Unavailable(why), .may_repeat = true}};
  long status = 0;
  curl_easy_getinfo(handle.easy, CURLINFO_RESPONSE_CODE, &status);
  HttpReply reply = {.attempt = AttemptOfStatus(status, url, handle.body),
                     .http_status = static_cast<int>(status)};
  reply.attempt.retry_after_seconds = RetryAfterSeconds(handle.retry_after, UnixSeconds());
  if (reply.attempt.status.ok()) reply.body = std::move(handle.body);
  return reply;
}

}  // namespace tandem::trainer
