#include "common/comm/store.h"

#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/comm/store_connection.h"

namespace tandem::comm {
namespace {

// Answers of a store that is up come at once.
constexpr absl::Duration kAnswerTime = absl::Seconds(10);

std::chrono::milliseconds Milliseconds(absl::Duration duration) {
  return std::chrono::milliseconds(std::max<int64_t>(1, absl::ToInt64Milliseconds(duration)));
}

std::string Place(const std::string& host, int port) { return absl::StrCat(host, ":", port); }

// The first line: c10d appends a stack.
std::string FirstLine(const std::string& text) { return text.substr(0, text.find('\n')); }

absl::StatusOr<std::shared_ptr<StoreConnection>> Open(const std::string& host, int port,
                                                      bool is_server, absl::Duration deadline) {
  c10d::TCPStoreOptions options;
  options.port = static_cast<uint16_t>(port);
  options.isServer = is_server;
  options.waitWorkers = false;
  options.timeout = Milliseconds(deadline);
  auto connection = std::make_shared<StoreConnection>();
  const auto tcp = c10::make_intrusive<c10d::TCPStore>(host, options);
  connection->tcp = connection->prefixed = tcp;
  connection->host = host;
  connection->port = tcp->getPort();
  return connection;
}

std::vector<uint8_t> Bytes(const std::string& text) { return {text.begin(), text.end()}; }

// Calls c10d, whose errors are exceptions.
template <typename Call>
auto Guarded(const StoreConnection& at, const Call& call) -> absl::StatusOr<decltype(call())> {
  try {
    return call();
  } catch (const std::exception& error) {
    return absl::UnavailableError(
        absl::StrCat("the store at ", Place(at.host, at.port),
                     " does not answer (the process that holds it, rank 0, "
                     "is gone?): ",
                     FirstLine(error.what())));
  }
}

}  // namespace

absl::StatusOr<Store> Store::Host(int port) {
  try {
    auto connection = Open("127.0.0.1", port, true, kAnswerTime);
    return Store(std::move(*connection));
  } catch (const std::exception& error) {
    return absl::UnavailableError(absl::StrCat(
        "cannot listen on port ", port,
        " (does an older run hold it? MASTER_PORT sets another): ", FirstLine(error.what())));
  }
}

absl::StatusOr<Store> Store::Connect(const std::string& host, int port, absl::Duration deadline) {
  try {
    auto connection = Open(host, port, false, deadline);
    return Store(std::move(*connection));
  } catch (const std::exception& error) {
    return absl::DeadlineExceededError(absl::StrCat("nobody listens at ", Place(host, port),
                                                    " within ", absl::FormatDuration(deadline),
                                                    ": ", FirstLine(error.what())));
  }
}

Store Store::Under(const std::string& prefix) const {
  auto connection = std::make_shared<StoreConnection>(*connection_);
  connection->prefix =
      connection_->prefix.empty() ? prefix : absl::StrCat(connection_->prefix, "/", prefix);
  connection->prefixed =
      c10::make_intrusive<c10d::PrefixStore>(connection->prefix, connection->tcp);
  return Store(std::move(connection));
}

int Store::port() const { return connection_->port; }

absl::Status Store::Set(const std::string& name, const std::string& value) const {
  return Guarded(*connection_,
                 [&] {
                   connection_->prefixed->set(name, Bytes(value));
                   return true;
                 })
      .status();
}

absl::StatusOr<std::string> Store::Get(const std::string& name, absl::Duration deadline) const {
  // Waiting inside c10d would hold the connection, and its timeouts look like lost connections.
  const absl::Time end = absl::Now() + deadline;
  for (absl::Duration pause = absl::Milliseconds(1);;
       pause = std::min(2 * pause, absl::Milliseconds(20))) {
    const absl::StatusOr<bool> has = Has(name);
    if (!has.ok()) return has.status();
    if (*has) break;
    if (absl::Now() >= end) {
      return absl::DeadlineExceededError(
          absl::StrCat("nobody set ", name, " within ", absl::FormatDuration(deadline)));
    }
    absl::SleepFor(std::min(pause, std::max(end - absl::Now(), absl::ZeroDuration())));
  }
  return Guarded(*connection_, [&] {
    const std::vector<uint8_t> value = connection_->prefixed->get(name);
    return std::string(value.begin(), value.end());
  });
}

absl::StatusOr<bool> Store::Has(const std::string& name) const {
  return Guarded(*connection_, [&] { return connection_->prefixed->check({name}); });
}

absl::StatusOr<std::string> Store::SetOnce(const std::string& name,
                                           const std::string& value) const {
  return Guarded(*connection_, [&] {
    const std::vector<uint8_t> now = connection_->prefixed->compareSet(name, {}, Bytes(value));
    return std::string(now.begin(), now.end());
  });
}

}  // namespace tandem::comm
