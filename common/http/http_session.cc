#include "common/http/http_session.h"

#include <curl/curl.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/status_macros.h"
#include "common/rendezvous/loopback.h"

namespace tandem {
namespace {

constexpr long kConnectSeconds = 10;  // NOLINT: libcurl takes long

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

std::string Trimmed(std::string_view text) {
  return std::string(absl::StripAsciiWhitespace({text.data(), text.size()}));
}

}  // namespace

std::string HttpAnswer::Header(const std::string& name) const {
  const auto found = headers.find(name);
  return found == headers.end() ? "" : found->second;
}

double RetryAfterSeconds(const std::string& value, double now) {
  double seconds = 0;
  if (absl::SimpleAtod(value, &seconds)) return std::isfinite(seconds) ? std::max(0.0, seconds) : 0;
  const time_t date = curl_getdate(value.c_str(), nullptr);
  return date < 0 ? 0 : std::max(0.0, static_cast<double>(date) - now);
}

std::string UrlAuthority(const std::string& url) {
  const size_t scheme = url.find("://");
  const size_t begin = scheme == std::string::npos ? 0 : scheme + 3;
  return url.substr(begin, url.find_first_of("/?#\\", begin) - begin);
}

bool IsThisMachine(const std::string& url) {
  const std::string authority = UrlAuthority(url);
  const bool has_port = authority.rfind(':') != std::string::npos && !authority.ends_with(']');
  return IsLoopback(has_port ? authority : authority + ":0");
}

// The handle, and what its callbacks use during one request.
struct HttpSession::Handle {
  CURL* easy = nullptr;
  std::function<bool()> cancelled;  // may be empty
  const Sink* sink = nullptr;
  HttpAnswer answer;
  absl::Status refused;  // what the sink returned
  char error[CURL_ERROR_SIZE] = {};

  ~Handle() { curl_easy_cleanup(easy); }

  static size_t OnBody(char* bytes, size_t, size_t count, void* self) {
    Handle& handle = *static_cast<Handle*>(self);
    handle.refused = (*handle.sink)(handle.answer, {bytes, count});
    return handle.refused.ok() ? count : 0;
  }

  static size_t OnHeader(char* bytes, size_t, size_t count, void* self) {
    Handle& handle = *static_cast<Handle*>(self);
    const std::string_view line(bytes, count);
    if (line.starts_with("HTTP/")) {  // also after an answer 100 Continue
      handle.answer.headers.clear();
      const std::string code =
          Trimmed(line.substr(std::min(line.size(), line.find(' ')))).substr(0, 3);
      if (!absl::SimpleAtoi(code, &handle.answer.http_status)) handle.answer.http_status = 0;
    } else if (const size_t colon = line.find(':'); colon != std::string_view::npos) {
      const std::string name = absl::AsciiStrToLower(Trimmed(line.substr(0, colon)));
      handle.answer.headers[name] = Trimmed(line.substr(colon + 1));
    }
    return count;
  }

  // libcurl calls it all the time, at least once a second. Other than 0 ends the request.
  static int OnProgress(void* self, curl_off_t, curl_off_t, curl_off_t, curl_off_t) {
    const Handle& handle = *static_cast<Handle*>(self);
    return handle.cancelled && handle.cancelled() ? 1 : 0;
  }

  void UseMethod(const HttpRequest& request) {
    curl_easy_setopt(easy, CURLOPT_HTTPGET, 1L);  // also undoes the settings of another method
    curl_easy_setopt(easy, CURLOPT_NOBODY, 0L);
    if (request.method == HttpRequest::Method::kHead) {
      curl_easy_setopt(easy, CURLOPT_NOBODY, 1L);
    } else if (request.method == HttpRequest::Method::kPost) {
      curl_easy_setopt(easy, CURLOPT_POST, 1L);
      curl_easy_setopt(easy, CURLOPT_POSTFIELDSIZE_LARGE,
                       static_cast<curl_off_t>(request.body.size()));
      curl_easy_setopt(easy, CURLOPT_POSTFIELDS, request.body.data());
    } else {
      curl_easy_setopt(easy, CURLOPT_HTTPGET, 1L);
    }
  }
};

HttpSession::HttpSession(const HttpSessionOptions& options) : handle_(std::make_unique<Handle>()) {
  InitialiseCurl();
  handle_->easy = curl_easy_init();
  TANDEM_CHECK(handle_->easy != nullptr);
  CURL* const easy = handle_->easy;
  curl_easy_setopt(easy, CURLOPT_NOSIGNAL, 1L);
  curl_easy_setopt(easy, CURLOPT_PROTOCOLS_STR, "http,https");
  curl_easy_setopt(easy, CURLOPT_CONNECTTIMEOUT, kConnectSeconds);
  curl_easy_setopt(easy, CURLOPT_USERAGENT, options.user_agent.c_str());
  if (options.timeout_seconds > 0) {
    curl_easy_setopt(easy, CURLOPT_TIMEOUT_MS,
                     std::max(1L, static_cast<long>(options.timeout_seconds * 1e3)));
  }
  if (options.stall_seconds > 0) {
    curl_easy_setopt(easy, CURLOPT_LOW_SPEED_LIMIT, 1L);
    curl_easy_setopt(easy, CURLOPT_LOW_SPEED_TIME,
                     std::max(1L, static_cast<long>(std::ceil(options.stall_seconds))));
  }
  curl_easy_setopt(easy, CURLOPT_SSL_VERIFYPEER, options.verify_tls ? 1L : 0L);
  curl_easy_setopt(easy, CURLOPT_SSL_VERIFYHOST, options.verify_tls ? 2L : 0L);
  if (!options.ca_file.empty()) curl_easy_setopt(easy, CURLOPT_CAINFO, options.ca_file.c_str());
  if (!options.certificate_file.empty()) {
    curl_easy_setopt(easy, CURLOPT_SSLCERT, options.certificate_file.c_str());
    curl_easy_setopt(easy, CURLOPT_SSLKEY, options.key_file.c_str());
  }
  curl_easy_setopt(easy, CURLOPT_ERRORBUFFER, handle_->error);
  curl_easy_setopt(easy, CURLOPT_WRITEFUNCTION, Handle::OnBody);
  curl_easy_setopt(easy, CURLOPT_WRITEDATA, handle_.get());
  curl_easy_setopt(easy, CURLOPT_HEADERFUNCTION, Handle::OnHeader);
  curl_easy_setopt(easy, CURLOPT_HEADERDATA, handle_.get());
  curl_easy_setopt(easy, CURLOPT_NOPROGRESS, 0L);
  curl_easy_setopt(easy, CURLOPT_XFERINFOFUNCTION, Handle::OnProgress);
  curl_easy_setopt(easy, CURLOPT_XFERINFODATA, handle_.get());
}

HttpSession::~HttpSession() = default;

void HttpSession::UseCancel(std::function<bool()> cancelled) {
  handle_->cancelled = std::move(cancelled);
}

HttpAnswer HttpSession::Send(const HttpRequest& request, const Sink& sink) {
  Handle& handle = *handle_;
  HeaderList headers;
  AddHeader(&headers, "Expect:");  // no pause for the answer "100 Continue" before a long body
  for (const std::string& header : request.headers) AddHeader(&headers, header);
  handle.answer = {};
  handle.refused = absl::OkStatus();
  handle.sink = &sink;
  handle.error[0] = '\0';
  handle.UseMethod(request);
  curl_easy_setopt(handle.easy, CURLOPT_PROXY, IsThisMachine(request.url) ? "" : nullptr);
  curl_easy_setopt(handle.easy, CURLOPT_URL, request.url.c_str());
  curl_easy_setopt(handle.easy, CURLOPT_HTTPHEADER, headers.get());
  const CURLcode code = curl_easy_perform(handle.easy);
  curl_easy_setopt(handle.easy, CURLOPT_HTTPHEADER, nullptr);
  handle.sink = nullptr;
  HttpAnswer answer = std::exchange(handle.answer, {});
  if (!handle.refused.ok()) {
    answer.status = handle.refused;
    return answer;
  }
  if (code == CURLE_OK) return answer;
  const std::string why = absl::StrCat(
      request.url, ": ", handle.error[0] != '\0' ? handle.error : curl_easy_strerror(code));
  answer.status = code == CURLE_ABORTED_BY_CALLBACK  ? Cancelled(request.url, ": cancelled")
                  : code == CURLE_OPERATION_TIMEDOUT ? DeadlineExceeded(why)
                                                     : Unavailable(why);
  return answer;
}

}  // namespace tandem
