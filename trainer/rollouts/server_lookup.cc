#include "trainer/rollouts/server_lookup.h"

#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <set>
#include <string_view>
#include <thread>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/base/mutex.h"
#include "common/base/status_macros.h"

namespace tandem::trainer {
namespace {

constexpr std::string_view kNamePrefix = "dns:";
constexpr std::string_view kVllmPrefix = "vllm://";

struct Entry {
  bool is_name = false;
  std::string host, port;
  std::vector<std::string> addresses;  // HOST:PORT
  std::string problem;
};

absl::StatusOr<Entry> Parse(const std::string& text) {
  Entry entry;
  entry.is_name = text.starts_with(kNamePrefix);
  const bool is_foreign = text.starts_with(kVllmPrefix);
  const std::string place = entry.is_name ? text.substr(kNamePrefix.size())
                            : is_foreign  ? ForeignHostPort(text)
                                          : text;
  const size_t colon = place.rfind(':');
  int port = 0;
  if (colon == std::string::npos || colon == 0 || place.find('/') != std::string::npos ||
      !absl::SimpleAtoi(place.substr(colon + 1), &port) || port < 1 || port > 65535) {
    return InvalidArgument("trainer.servers: '", text,
                           "' is neither HOST:PORT nor dns:NAME:PORT (a server at each of the ",
                           "name's addresses) nor vllm://HOST:PORT");
  }
  entry.host = place.substr(0, colon);
  entry.port = place.substr(colon + 1);
  if (entry.is_name) {
    entry.problem = "not looked up yet";
  } else {
    entry.addresses = {text};
  }
  return entry;
}

}  // namespace

absl::StatusOr<std::vector<std::string>> ResolveHost(const std::string& host) {
  addrinfo hints = {};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const int error = getaddrinfo(host.c_str(), nullptr, &hints, &found);
  if (error == EAI_NONAME || error == EAI_NODATA) {
    return NotFound(gai_strerror(error));
  }
  if (error != 0) return Unavailable(gai_strerror(error));
  std::vector<std::string> addresses;
  for (const addrinfo* each = found; each != nullptr; each = each->ai_next) {
    char text[NI_MAXHOST];
    if (getnameinfo(each->ai_addr, each->ai_addrlen, text, sizeof(text), nullptr, 0,
                    NI_NUMERICHOST) != 0) {
      continue;
    }
    addresses.push_back(each->ai_family == AF_INET6 ? absl::StrCat("[", text, "]") : text);
  }
  freeaddrinfo(found);
  return addresses;
}

std::string ForeignHostPort(const std::string& entry) {
  return entry.starts_with(kVllmPrefix) ? entry.substr(kVllmPrefix.size()) : "";
}

absl::Status CheckServerEntries(const std::vector<std::string>& entries) {
  for (const std::string& text : entries) {
    const absl::StatusOr<Entry> entry = Parse(text);
    if (!entry.ok() && !text.starts_with("unix:")) return entry.status();
  }
  return absl::OkStatus();
}

bool HasNames(const std::vector<std::string>& entries) {
  return std::ranges::any_of(entries,
                             [](const std::string& text) { return text.starts_with(kNamePrefix); });
}

struct ServerLookup::Impl {
  // One round over all names. The resolver may take its time: without the lock.
  void LookUp() {
    for (size_t i = 0; i < entries.size(); ++i) {
      if (!entries[i].is_name) continue;
      const auto found = resolver(entries[i].host);
      std::set<std::string> addresses;
      if (found.ok()) {
        for (const std::string& address : *found) {
          addresses.insert(absl::StrCat(address, ":", entries[i].port));
        }
      }
      MutexLock lock(&mu);
      entries[i].problem = found.ok() && !addresses.empty() ? "" : "has no address";
      if (!found.ok()) entries[i].problem = std::string(found.status().message());
      if (absl::IsUnavailable(found.status())) continue;
      entries[i].addresses.assign(addresses.begin(), addresses.end());
    }
  }

  void Run(std::chrono::milliseconds period) {
    do {
      LookUp();
    } while (!end.WaitFor(period));
  }

  Resolver resolver;
  mutable Mutex mu;
  std::vector<Entry> entries;  // addresses and problems change, under mu
  EndSign end;
  std::thread thread;
};

ServerLookup::ServerLookup(const std::vector<std::string>& entries,
                           std::chrono::milliseconds period, Resolver resolver)
    : impl_(std::make_unique<Impl>()) {
  impl_->resolver = std::move(resolver);
  for (const std::string& text : entries) {
    absl::StatusOr<Entry> entry = Parse(text);
    impl_->entries.push_back(entry.ok() ? *std::move(entry) : Entry{.addresses = {text}});
  }
  if (!HasNames(entries)) return;
  impl_->thread = std::thread([this, period] { impl_->Run(period); });
}

ServerLookup::~ServerLookup() {
  impl_->end.Give();
  if (impl_->thread.joinable()) impl_->thread.join();
}

std::vector<std::string> ServerLookup::Addresses() const {
  MutexLock lock(&impl_->mu);
  std::vector<std::string> all;
  for (const Entry& entry : impl_->entries) {
    for (const std::string& address : entry.addresses) {
      if (std::ranges::find(all, address) == all.end()) all.push_back(address);
    }
  }
  return all;
}

std::string ServerLookup::Problems() const {
  MutexLock lock(&impl_->mu);
  std::string text;
  for (const Entry& entry : impl_->entries) {
    if (!entry.is_name || !entry.addresses.empty()) continue;
    absl::StrAppend(&text, text.empty() ? "" : "; ", entry.host, ": ", entry.problem);
  }
  return text;
}

}  // namespace tandem::trainer
