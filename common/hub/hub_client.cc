#include "common/hub/hub_client.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/clock.h"
#include "common/base/exit_codes.h"
#include "common/base/printable.h"
#include "common/base/status_macros.h"

namespace tandem::hub {
namespace {

using nlohmann::json;

constexpr int64_t kMostAttempts = 5;
constexpr double kFirstPauseSeconds = 0.5;
constexpr double kLongestPauseSeconds = 600;  // that a server may ask for
constexpr int kMostRedirects = 10;
constexpr size_t kMostJsonBytes = size_t{256} << 20;
constexpr size_t kShownBytes = 200;  // of an error's body in a message

absl::Status BadRepo(const absl::Status& status) {
  return trainer::WithExitCode(status, ExitCode::kBadModelOrData);
}

absl::Status NoServer(const absl::Status& status) {
  return trainer::WithExitCode(status, ExitCode::kServerLost);
}

// Percent-encoding of everything but unreserved characters and those of `kept`.
std::string Escaped(std::string_view text, std::string_view kept) {
  std::string out;
  for (const char c : text) {
    if (absl::ascii_isalnum(c) || std::string_view("-_.~").find(c) != std::string_view::npos ||
        kept.find(c) != std::string_view::npos) {
      out += c;
    } else {
      absl::StrAppendFormat(&out, "%%%02X", static_cast<unsigned char>(c));
    }
  }
  return out;
}

// SCHEME://HOST:PORT in lower case, by which two URLs have the same server.
std::string OriginOf(const std::string& url) {
  const size_t scheme = url.find("://");
  std::string origin = absl::AsciiStrToLower(url.substr(0, scheme + 3) + UrlAuthority(url));
  if (origin.starts_with("https://") && origin.ends_with(":443")) origin.resize(origin.size() - 4);
  if (origin.starts_with("http://") && origin.ends_with(":80")) origin.resize(origin.size() - 3);
  return origin;
}

// The target of a redirect; empty for a scheme that is not followed.
std::string TargetOf(const std::string& url, const std::string& location) {
  const std::string lower = absl::AsciiStrToLower(location);
  if (lower.starts_with("http://") || lower.starts_with("https://")) return location;
  if (location.starts_with("//")) return url.substr(0, url.find("://") + 1) + location;
  const std::string root = url.substr(0, url.find("://") + 3) + UrlAuthority(url);
  if (location.starts_with('/')) return root + location;
  if (location.empty() || location.find(':') < location.find('/')) return "";
  const std::string path = url.substr(0, url.find_first_of("?#"));
  return path.substr(0, path.rfind('/') + 1) + location;
}

bool IsRedirect(const HttpAnswer& answer) {
  const int code = answer.http_status;
  return (code == 301 || code == 302 || code == 303 || code == 307 || code == 308) &&
         !answer.Header("location").empty();
}

// Without W/ and quotation marks: a file name.
std::string PlainETag(std::string etag) {
  if (etag.starts_with("W/")) etag = etag.substr(2);
  std::erase(etag, '"');
  return etag;
}

int64_t SizeOf(const std::string& text) {
  int64_t size = -1;
  return absl::SimpleAtoi(text, &size) && size >= 0 ? size : -1;
}

std::string TextOf(const json& object, const char* name) {
  const auto found = object.find(name);
  return found != object.end() && found->is_string() ? found->get<std::string>() : "";
}

// A path that stays below the directory it is put into.
bool IsSafePath(const std::string& path) {
  return !path.empty() && path.front() != '/' && path.find('\\') == std::string::npos &&
         path.find('\0') == std::string::npos &&
         ("/" + path + "/").find("/../") == std::string::npos &&
         ("/" + path + "/").find("/./") == std::string::npos &&
         path.find("//") == std::string::npos;
}

absl::StatusOr<RepoListing> ReadListing(const std::string& body, const std::string& url) {
  const json parsed = json::parse(body, nullptr, /*allow_exceptions=*/false);
  const auto no_hub = [&](const std::string& why) {
    return NoServer(FailedPrecondition(
        url, ": ", why,
        ", so what answers is no Hugging Face Hub: check HF_ENDPOINT and the proxy"));
  };
  if (!parsed.is_object()) return no_hub("the answer is no JSON object");
  RepoListing listing = {.commit = TextOf(parsed, "sha")};
  const auto siblings = parsed.find("siblings");
  if (!IsCommit(listing.commit)) return no_hub("the answer has no commit in 'sha'");
  if (siblings == parsed.end() || !siblings->is_array())
    return no_hub("the answer has no 'siblings'");
  for (const json& entry : *siblings) {
    RepoFile file;
    if (entry.is_object()) file.path = TextOf(entry, "rfilename");
    if (!IsSafePath(file.path)) {
      return no_hub("'siblings' has a file without a relative path");
    }
    file.blob_id = TextOf(entry, "blobId");
    const auto size = entry.find("size"), lfs = entry.find("lfs");
    if (size != entry.end() && size->is_number_integer()) file.size = size->get<int64_t>();
    if (lfs != entry.end() && lfs->is_object()) file.lfs_sha256 = TextOf(*lfs, "sha256");
    listing.files.push_back(std::move(file));
  }
  std::ranges::sort(listing.files, {}, &RepoFile::path);
  return listing;
}

const char* ApiFolder(RepoType type) { return type == RepoType::kModel ? "models" : "datasets"; }

}  // namespace

HubClient::HubClient(HubSettings settings, Pause pause, Note note)
    : settings_(std::move(settings)),
      pause_(std::move(pause)),
      note_(std::move(note)),
      session_({.stall_seconds = settings_.stall_seconds}) {
  session_.UseCancel([this] { return pause_(0); });
}

std::string HubClient::FileUrl(const RepoName& name, const std::string& commit,
                               const std::string& path) const {
  return absl::StrCat(settings_.endpoint, name.type == RepoType::kModel ? "/" : "/datasets/",
                      name.id, "/resolve/", commit, "/", Escaped(path, "/"));
}

// Follows redirects: with GET all of them, with HEAD those to the same server, since the facts about
// a file stand in the answer that leads away from it. Only the server of the Hub gets the token.
HttpAnswer HubClient::Follow(HttpRequest request, const HttpSession::Sink& sink) {
  const std::vector<std::string> headers = request.headers;
  for (int i = 0; i < kMostRedirects; ++i) {
    request.headers = headers;
    if (!settings_.token.empty() && OriginOf(request.url) == OriginOf(settings_.endpoint)) {
      request.headers.push_back("Authorization: Bearer " + settings_.token);
    }
    HttpAnswer answer =
        session_.Send(request, [&](const HttpAnswer& so_far, std::string_view bytes) {
          return IsRedirect(so_far) ? absl::OkStatus() : sink(so_far, bytes);
        });
    if (!answer.status.ok() || !IsRedirect(answer)) return answer;
    const std::string target = TargetOf(request.url, answer.Header("location"));
    const bool leads_away = OriginOf(target) != OriginOf(request.url);
    if (request.method == HttpRequest::Method::kHead && leads_away) return answer;
    if (target.empty()) {
      answer.status = FailedPrecondition(request.url, " redirects to '", answer.Header("location"),
                                         "', which is neither http:// nor https://");
      return answer;
    }
    request.url = target;
  }
  return {.status = FailedPrecondition(request.url, ": more than ", kMostRedirects, " redirects")};
}

absl::Status HubClient::StatusOf(const HttpAnswer& answer, const RepoName& name,
                                 const std::string& what, const std::string& body) {
  asked_pause_seconds_ = RetryAfterSeconds(answer.Header("retry-after"), UnixSeconds());
  if (absl::IsCancelled(answer.status)) {
    return trainer::WithExitCode(Cancelled("interrupted"), ExitCode::kInterrupted);
  }
  if (!answer.status.ok()) return NoServer(answer.status);
  const int code = answer.http_status;
  if ((code >= 200 && code < 300) || IsRedirect(answer)) return absl::OkStatus();
  const std::string error = answer.Header("x-error-code"), said = answer.Header("x-error-message"),
                    page =
                        absl::StrCat(settings_.endpoint,
                                     name.type == RepoType::kModel ? "/" : "/datasets/", name.id),
                    who = absl::StrCat(name.TypeWord(), " ", name.id);
  if (error == "RevisionNotFound") {
    return BadRepo(
        NotFound(who, " has no revision '", name.revision, "': see ", page, "/tree/main"));
  }
  if (error == "EntryNotFound") return BadRepo(NotFound(who, " has no file ", what));
  if (error == "GatedRepo") {
    return BadRepo(PermissionDenied(who, " is gated: ask for access at ", page,
                                    ", then set HF_TOKEN to a token of that account (token ",
                                    settings_.token_origin, ")"));
  }
  if (said == "Invalid credentials in Authorization header") {
    return BadRepo(Unauthenticated("the Hub does not take the token ", settings_.token_origin,
                                   ": make one at ", settings_.endpoint, "/settings/tokens"));
  }
  if (error == "RepoNotFound" || code == 401) {
    return BadRepo(
        NotFound("no ", who, " at ", settings_.endpoint,
                 ", or it is private: check the name, and for a private one set HF_TOKEN "
                 "(token ",
                 settings_.token_origin, ")"));
  }
  std::string detail = said.empty() ? body.substr(0, kShownBytes) : said;
  detail = Printable(std::string(absl::StripAsciiWhitespace(detail)));
  const std::string answered = absl::StrCat(who, ": ", what, ": the server answered ", code,
                                            detail.empty() ? "" : ": ", detail);
  if (code == 429) return NoServer(ResourceExhausted(answered));
  if (code == 408) return NoServer(DeadlineExceeded(answered));
  if (code >= 500) return NoServer(Unavailable(answered));
  if (code == 404) return BadRepo(NotFound(answered));
  if (code == 403) {
    return BadRepo(PermissionDenied(answered, " (token ", settings_.token_origin, ")"));
  }
  return BadRepo(FailedPrecondition(answered));
}

bool HubClient::ShouldRepeat(const absl::Status& status) {
  return absl::IsUnavailable(status) || absl::IsDeadlineExceeded(status) ||
         absl::IsResourceExhausted(status);
}

absl::Status HubClient::WaitToRepeat(int64_t failures, const absl::Status& why) {
  if (failures >= kMostAttempts || asked_pause_seconds_ > kLongestPauseSeconds) {
    absl::Status status(
        why.code(),
        absl::StrCat(why.message(), failures > 1 ? absl::StrCat(" (", failures, " attempts)") : "",
                     asked_pause_seconds_ > kLongestPauseSeconds
                         ? absl::StrCat("; it asks to wait ", asked_pause_seconds_, " s")
                         : ""));
    return trainer::WithExitCode(std::move(status), trainer::ExitCodeOf(why));
  }
  const double seconds =
      asked_pause_seconds_ > 0
          ? asked_pause_seconds_
          : kFirstPauseSeconds * static_cast<double>(int64_t{1} << (failures - 1));
  note_(absl::StrCat(why.message(), "; again in ", absl::StrFormat("%.1f", seconds), " s"));
  if (!pause_(seconds)) return absl::OkStatus();
  return trainer::WithExitCode(Cancelled("interrupted"), ExitCode::kInterrupted);
}

// Asks until there is an answer that another attempt would not change.
absl::StatusOr<HttpAnswer> HubClient::Ask(const HttpRequest& request, const RepoName& name,
                                          const std::string& what, std::string* body) {
  if (settings_.offline) {
    return trainer::WithExitCode(
        FailedPrecondition("HF_HUB_OFFLINE (or TRANSFORMERS_OFFLINE) is set, so no server is asked "
                           "for ",
                           name.TypeWord(), " ", name.id, ": unset it to fetch"),
        ExitCode::kUsage);
  }
  for (int64_t failures = 1;; ++failures) {
    body->clear();
    const HttpAnswer answer =
        Follow(request, [&](const HttpAnswer&, std::string_view bytes) -> absl::Status {
          if (body->size() + bytes.size() > kMostJsonBytes) {
            return FailedPrecondition(request.url, ": an answer over 256 MiB");
          }
          body->append(bytes);
          return absl::OkStatus();
        });
    const absl::Status status = StatusOf(answer, name, what, *body);
    if (status.ok()) return answer;
    if (!ShouldRepeat(status)) return status;
    TANDEM_RETURN_IF_ERROR(WaitToRepeat(failures, status));
  }
}

absl::StatusOr<RepoListing> HubClient::List(const RepoName& name) {
  const std::string url =
      absl::StrCat(settings_.endpoint, "/api/", ApiFolder(name.type), "/", name.id, "/revision/",
                   Escaped(name.revision, ""), "?blobs=true");
  std::string body;
  TANDEM_RETURN_IF_ERROR(Ask({.url = url}, name, "its files", &body).status());
  return ReadListing(body, url);
}

absl::StatusOr<FileFacts> HubClient::Facts(const RepoName& name, const std::string& commit,
                                           const std::string& path) {
  const HttpRequest request = {.method = HttpRequest::Method::kHead,
                               .url = FileUrl(name, commit, path),
                               .headers = {"Accept-Encoding: identity"}};
  std::string body;
  TANDEM_ASSIGN_OR_RETURN(const HttpAnswer answer, Ask(request, name, path, &body));
  const auto no_hub = [&](const std::string& why) {
    return NoServer(FailedPrecondition(
        request.url, ": ", why, ", so what answers is no Hugging Face Hub: check HF_ENDPOINT"));
  };
  const std::string said = answer.Header("x-repo-commit");
  if (said.empty()) return no_hub("the answer has no X-Repo-Commit");
  if (said != commit) return no_hub("the answer is of commit " + said);
  const std::string linked = answer.Header("x-linked-etag");
  FileFacts facts = {.etag = PlainETag(linked.empty() ? answer.Header("etag") : linked)};
  if (facts.etag.empty() || facts.etag.front() == '.' ||
      !std::ranges::all_of(facts.etag, [](char c) { return absl::ascii_isgraph(c) && c != '/'; })) {
    return no_hub("the answer has no usable ETag");
  }
  facts.size = SizeOf(answer.Header("x-linked-size"));
  if (facts.size < 0 && !IsRedirect(answer)) facts.size = SizeOf(answer.Header("content-length"));
  return facts;
}

absl::Status HubClient::Get(const RepoName& name, const std::string& commit,
                            const std::string& path, int64_t offset, const ByteSink& sink) {
  HttpRequest request = {.url = FileUrl(name, commit, path),
                         .headers = {"Accept-Encoding: identity"}};
  if (offset > 0) request.headers.push_back(absl::StrCat("Range: bytes=", offset, "-"));
  std::string error_body;
  int64_t position = -1;
  const HttpAnswer answer =
      Follow(request, [&](const HttpAnswer& so_far, std::string_view bytes) -> absl::Status {
        if (so_far.http_status != 200 && so_far.http_status != 206) {
          if (error_body.size() < kShownBytes) error_body.append(bytes);
          return absl::OkStatus();
        }
        if (position < 0) {
          position = so_far.http_status == 206 ? offset : 0;
          const std::string range = so_far.Header("content-range");
          if (so_far.http_status == 206 &&
              !range.starts_with(absl::StrCat("bytes ", offset, "-"))) {
            return DataLoss(request.url, ": asked for bytes from ", offset, " on, got '", range,
                            "'");
          }
        }
        TANDEM_RETURN_IF_ERROR(sink(position, bytes));
        position += static_cast<int64_t>(bytes.size());
        return absl::OkStatus();
      });
  // Nothing lies behind what is there: the caller looks at the size.
  if (answer.status.ok() && answer.http_status == 416) {
    return OutOfRange(request.url, ": no bytes from ", offset, " on");
  }
  const bool is_transport = absl::IsUnavailable(answer.status) ||
                            absl::IsDeadlineExceeded(answer.status) ||
                            absl::IsCancelled(answer.status);
  if (!answer.status.ok() && !is_transport) return answer.status;  // of the sink
  return StatusOf(answer, name, path, error_body);
}

}  // namespace tandem::hub
