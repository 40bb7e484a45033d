#include "common/hub/hub_settings.h"

#include <cstdlib>
#include <string_view>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/files/file_system.h"
#include "common/rendezvous/loopback.h"

namespace tandem::hub {
namespace {

constexpr char kPublicHub[] = "https://huggingface.co";

// The variables, with the two expansions of Python's os.path. A variable that is set and empty
// counts as set, as there.
class Variables {
 public:
  explicit Variables(const Environment& environment) : environment_(environment) {}

  std::string Get(const char* name, const std::string& otherwise) const {
    const char* const value = environment_(name);
    return value == nullptr ? otherwise : value;
  }

  bool IsTrue(const char* name) const {
    const std::string value = absl::AsciiStrToUpper(Get(name, ""));
    return value == "1" || value == "ON" || value == "YES" || value == "TRUE";
  }

  // ~ at the start, then $NAME and ${NAME}. A name that is not set stays as it is.
  std::string Expanded(std::string path) const {
    if (path == "~" || path.starts_with("~/")) path = Get("HOME", "~") + path.substr(1);
    std::string out;
    for (size_t i = 0; i < path.size();) {
      const size_t length = path[i] == '$' ? ReferenceLength(path, i) : 0;
      if (length == 0) {
        out += path[i++];
        continue;
      }
      const std::string reference = path.substr(i, length);
      const bool braced = reference[1] == '{';
      const std::string name = braced ? reference.substr(2, length - 3) : reference.substr(1);
      out += Get(name.c_str(), reference);
      i += length;
    }
    return out;
  }

 private:
  // The length of the $NAME or ${NAME} at `begin`; 0 if none is there.
  static size_t ReferenceLength(const std::string& path, size_t begin) {
    if (path.compare(begin, 2, "${") == 0) {
      const size_t end = path.find('}', begin);
      return end == std::string::npos ? 0 : end + 1 - begin;
    }
    size_t end = begin + 1;
    while (end < path.size() && (absl::ascii_isalnum(path[end]) || path[end] == '_')) ++end;
    return end == begin + 1 ? 0 : end - begin;
  }

  const Environment& environment_;
};

std::string Clean(const std::string& token) {
  std::string clean;
  for (const char c : token) {
    if (c != '\r' && c != '\n') clean += c;
  }
  return std::string(absl::StripAsciiWhitespace(clean));
}

// The token and its origin.
std::pair<std::string, std::string> FindToken(const Variables& variables, const std::string& home) {
  if (variables.IsTrue("HF_HUB_DISABLE_IMPLICIT_TOKEN")) {
    return {"", "HF_HUB_DISABLE_IMPLICIT_TOKEN is set, so none was sent"};
  }
  for (const char* name : {"HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"}) {
    std::string token = Clean(variables.Get(name, ""));
    if (!token.empty()) return {std::move(token), absl::StrCat("of ", name)};
  }
  const std::string path = variables.Expanded(variables.Get("HF_TOKEN_PATH", home + "/token"));
  const auto contents = ReadFile(path);
  std::string token = contents.ok() ? Clean(*contents) : "";
  if (!token.empty()) return {std::move(token), "of the file " + path};
  return {"", absl::StrCat("none was sent: HF_TOKEN is not set and ", path, " is not there")};
}

bool IsPlaintextToAnotherMachine(const std::string& endpoint) {
  if (!endpoint.starts_with("http://")) return false;
  const std::string authority = endpoint.substr(7, endpoint.find('/', 7) - 7);
  const bool has_port = authority.rfind(':') != std::string::npos && !authority.ends_with(']');
  return !IsLoopback(has_port ? authority : authority + ":0");
}

}  // namespace

HubSettings ReadHubSettings(const Environment& environment) {
  const Variables variables(environment);
  HubSettings settings;
  const std::string cache_home = variables.Get("XDG_CACHE_HOME", variables.Expanded("~/.cache"));
  const std::string home =
      variables.Expanded(variables.Get("HF_HOME", cache_home + "/huggingface"));
  settings.cache = variables.Expanded(
      variables.Get("HF_HUB_CACHE", variables.Get("HUGGINGFACE_HUB_CACHE", home + "/hub")));
  settings.endpoint = variables.Get("HF_ENDPOINT", kPublicHub);
  while (settings.endpoint.ends_with('/')) settings.endpoint.pop_back();
  std::tie(settings.token, settings.token_origin) = FindToken(variables, home);
  if (!settings.token.empty() && IsPlaintextToAnotherMachine(settings.endpoint)) {
    settings.token.clear();
    settings.token_origin =
        "none was sent: HF_ENDPOINT is http:// to another machine, and a token never travels in "
        "plaintext";
  }
  settings.offline = variables.IsTrue("HF_HUB_OFFLINE") || variables.IsTrue("TRANSFORMERS_OFFLINE");
  settings.symlinks = !variables.IsTrue("HF_HUB_DISABLE_SYMLINKS");
  double seconds = 0;
  if (absl::SimpleAtod(variables.Get("HF_HUB_DOWNLOAD_TIMEOUT", ""), &seconds) && seconds > 0) {
    settings.stall_seconds = seconds;
  }
  return settings;
}

HubSettings ReadHubSettings() {
  return ReadHubSettings([](const char* name) -> const char* { return std::getenv(name); });
}

}  // namespace tandem::hub
