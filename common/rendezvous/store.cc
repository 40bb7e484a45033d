#include "common/rendezvous/store.h"

#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/clock.h"
#include "common/base/printable.h"
#include "common/base/status_macros.h"
#include "common/rendezvous/store_connection.h"

namespace tandem::comm {
namespace {

// A store that is up answers at once.
constexpr absl::Duration kAnswerTime = absl::Seconds(10);

std::chrono::milliseconds Milliseconds(absl::Duration duration) {
  return std::chrono::milliseconds(std::max<int64_t>(1, absl::ToInt64Milliseconds(duration)));
}

std::string Place(const std::string& host, int port) { return absl::StrCat(host, ":", port); }

// A key, below no prefix, that is set where the store listens on loopback only.
constexpr char kLoopbackOnly[] = "of_machine";

// A socket that listens on `port` of 127.0.0.1, since c10d itself would listen on all interfaces.
// Negative if the port cannot be had; c10d then tries by itself and reports why not, or uses the
// store that torchrun already runs there.
int ListenOnLoopback(int port) {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  const int on = 1;
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (fd >= 0 && (setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)) != 0 ||
                  bind(fd, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0 ||
                  listen(fd, SOMAXCONN) != 0)) {
    close(fd);
    return -1;
  }
  return fd;
}

// Throws exceptions of c10d.
std::shared_ptr<StoreConnection> Open(const std::string& host, c10d::TCPStoreOptions options,
                                      absl::Duration deadline) {
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

// Calls c10d and turns its exceptions into statuses.
template <typename Call>
auto Guarded(const StoreConnection& at, const Call& call) -> absl::StatusOr<decltype(call())> {
  try {
    return call();
  } catch (const std::exception& error) {
    return Unavailable("the store at ", Place(at.host, at.port),
                       " does not answer (the process that holds it, rank 0, "
                       "is gone?): ",
                       FirstLine(error.what()));
  }
}

}  // namespace

absl::StatusOr<Store> Store::Host(int port, Reach reach) {
  try {
    c10d::TCPStoreOptions options{.port = static_cast<uint16_t>(port), .isServer = true};
    const int own = reach == Reach::kMachine ? ListenOnLoopback(port) : -1;
    if (own >= 0) options.masterListenFd = own;
    Store store(Open("127.0.0.1", options, kAnswerTime));
    if (reach == Reach::kMachine) TANDEM_RETURN_IF_ERROR(store.Set(kLoopbackOnly, ""));
    return store;
  } catch (const std::exception& error) {
    return Unavailable(
        "cannot listen on port ", port,
        " (does an older run hold it? MASTER_PORT sets another): ", FirstLine(error.what()));
  }
}

absl::StatusOr<Store> Store::Connect(const std::string& host, int port, absl::Duration deadline) {
  try {
    return Store(Open(host, {.port = static_cast<uint16_t>(port)}, deadline));
  } catch (const std::exception& error) {
    return DeadlineExceeded("nobody listens at ", Place(host, port), " within ",
                            absl::FormatDuration(deadline), ": ", FirstLine(error.what()));
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
  // Polls, because waiting inside c10d would occupy the connection, and c10d's timeouts look like
  // lost connections.
  const absl::Time end = SteadyNow() + deadline;
  for (absl::Duration pause = absl::Milliseconds(1);;
       pause = std::min(2 * pause, absl::Milliseconds(20))) {
    TANDEM_ASSIGN_OR_RETURN(const bool has, Has(name));
    if (has) break;
    if (SteadyNow() >= end) {
      return DeadlineExceeded("nobody set ", name, " within ", absl::FormatDuration(deadline));
    }
    absl::SleepFor(std::min(pause, std::max(end - SteadyNow(), absl::ZeroDuration())));
  }
  return Guarded(*connection_, [&] {
    const std::vector<uint8_t> value = connection_->prefixed->get(name);
    return std::string(value.begin(), value.end());
  });
}

absl::StatusOr<Reach> Store::GetReach() const {
  return Guarded(*connection_, [&] {
    return connection_->tcp->check({kLoopbackOnly}) ? Reach::kMachine : Reach::kNetwork;
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

absl::StatusOr<int64_t> Store::Add(const std::string& name, int64_t amount) const {
  return Guarded(*connection_, [&] { return connection_->prefixed->add(name, amount); });
}

absl::Status Store::Delete(const std::string& name) const {
  return Guarded(*connection_, [&] { return connection_->prefixed->deleteKey(name); }).status();
}

}  // namespace tandem::comm
