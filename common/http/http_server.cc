#include "common/http/http_server.h"

#include <sys/resource.h>
#include <sys/stat.h>

#include <algorithm>
#include <atomic>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/ssl/context.hpp>
#include <boost/asio/ssl/stream.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/strand.hpp>
#include <chrono>
#include <optional>
#include <thread>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/base/log.h"
#include "common/base/mutex.h"
#include "common/base/status_macros.h"
#include "common/http/http_connection.h"

namespace tandem {
namespace {

namespace asio = boost::asio;
using tcp = asio::ip::tcp;
using Error = boost::system::error_code;

constexpr std::chrono::milliseconds kAfterFailedAccept(100);
constexpr rlim_t kOtherFiles = 256;  // descriptors that the rest of the process needs

absl::StatusOr<tcp::endpoint> Resolve(asio::io_context& io, const std::string& listen) {
  const size_t colon = listen.rfind(':');
  int port = -1;
  if (colon == std::string::npos || colon == 0 ||
      !absl::SimpleAtoi(listen.substr(colon + 1), &port) || port < 0 || port > 65535) {
    return InvalidArgument("'", listen, "' is not HOST:PORT");
  }
  std::string host = listen.substr(0, colon);
  if (host.front() == '[' && host.back() == ']') host = host.substr(1, host.size() - 2);
  Error error;
  tcp::resolver resolver(io);
  const auto found = resolver.resolve(host, absl::StrCat(port), tcp::resolver::passive, error);
  if (error || found.empty()) {
    return Unavailable("'", host, "' is no address of this machine: ", error.message());
  }
  return found.begin()->endpoint();
}

// The certificates, read again when a file changes.
class TlsContext {
 public:
  TlsContext(std::string identity, std::string authorities)
      : identity_(std::move(identity)), authorities_(std::move(authorities)) {}

  // From one thread at a time. The context before stays when the files cannot be used.
  absl::StatusOr<std::shared_ptr<asio::ssl::context>> Get() {
    const auto times = std::pair(ChangedAt(identity_), ChangedAt(authorities_));
    if (context_ != nullptr && times == times_) return context_;
    try {
      auto context = std::make_shared<asio::ssl::context>(asio::ssl::context::tls_server);
      context->set_options(asio::ssl::context::default_workarounds | asio::ssl::context::no_tlsv1 |
                           asio::ssl::context::no_tlsv1_1);
      context->use_certificate_chain_file(identity_);
      context->use_private_key_file(identity_, asio::ssl::context::pem);
      context->load_verify_file(authorities_);
      context->set_verify_mode(asio::ssl::verify_peer | asio::ssl::verify_fail_if_no_peer_cert);
      context_ = std::move(context);
      times_ = times;
    } catch (const boost::system::system_error& error) {
      if (context_ == nullptr) return InvalidArgument("TLS files: ", error.what());
    }
    return context_;
  }

 private:
  static int64_t ChangedAt(const std::string& path) {
    struct stat facts = {};
    return stat(path.c_str(), &facts) == 0
               ? facts.st_mtim.tv_sec * int64_t{1000000000} + facts.st_mtim.tv_nsec
               : -1;
  }

  const std::string identity_, authorities_;
  std::shared_ptr<asio::ssl::context> context_;
  std::pair<int64_t, int64_t> times_;
};

}  // namespace

struct HttpServer::Impl {
  Impl(const HttpServerOptions& wanted, Handlers handlers)
      : options(wanted),
        shared(std::make_shared<HttpShared>(wanted, std::move(handlers))),
        accepting(asio::make_strand(shared->io)),
        acceptor(accepting),
        retry(accepting),
        work(asio::make_work_guard(shared->io)) {
    if (!options.identity_file.empty()) {
      tls.emplace(options.identity_file, options.authorities_file);
    }
    rlimit files = {};
    if (getrlimit(RLIMIT_NOFILE, &files) == 0 && files.rlim_cur != RLIM_INFINITY) {
      const rlim_t left =
          files.rlim_cur > 2 * kOtherFiles ? files.rlim_cur - kOtherFiles : files.rlim_cur / 2;
      options.max_connections =
          std::min(options.max_connections, static_cast<int64_t>(std::max<rlim_t>(left, 1)));
    }
  }

  absl::Status Open() {
    if (tls) TANDEM_RETURN_IF_ERROR(tls->Get().status());
    TANDEM_ASSIGN_OR_RETURN(const tcp::endpoint endpoint, Resolve(shared->io, options.listen));
    Error error;
    acceptor.open(endpoint.protocol(), error);
    if (!error) acceptor.set_option(asio::socket_base::reuse_address(true), error);
    if (!error) acceptor.bind(endpoint, error);
    if (!error) acceptor.listen(asio::socket_base::max_listen_connections, error);
    if (error) return Unavailable("cannot listen on ", options.listen, ": ", error.message());
    port = acceptor.local_endpoint().port();
    shared->WhenClosed([this] { asio::post(accepting, [this] { AcceptNext(); }); });
    asio::post(accepting, [this] { AcceptNext(); });
    for (int i = 0; i < options.num_threads; ++i)
      threads.emplace_back([this] { shared->io.run(); });
    return absl::OkStatus();
  }

  // On the strand. One accept is under way at a time, and none while the most connections are open.
  void AcceptNext() {
    if (stopping || waiting || shared->num_open.load() >= options.max_connections) return;
    waiting = true;
    acceptor.async_accept(asio::make_strand(shared->io), [this](Error error, tcp::socket socket) {
      waiting = false;
      if (stopping) return;
      if (error) {  // no descriptor is free, or the client has gone again
        retry.expires_after(kAfterFailedAccept);
        retry.async_wait([this](Error) { AcceptNext(); });
        return;
      }
      Serve(std::move(socket));
      AcceptNext();
    });
  }

  void Serve(tcp::socket socket) {
    Error ignored;
    socket.set_option(tcp::no_delay(true), ignored);
    if (!tls) return ServePlain(shared, std::move(socket));
    auto context = tls->Get();
    if (context.ok()) ServeTls(shared, std::move(socket), *std::move(context));
  }

  void Stop(absl::Duration at_most) {
    if (threads.empty()) return;
    asio::post(accepting, [this] {
      stopping = true;
      Error ignored;
      acceptor.close(ignored);
      retry.cancel();
    });
    shared->Drain(std::chrono::steady_clock::now() + absl::ToChronoNanoseconds(at_most));
    shared->CloseAll();
    work.reset();  // the threads end when the last connection has
    for (std::thread& thread : threads) thread.join();
    threads.clear();
  }

  HttpServerOptions options;
  std::optional<TlsContext> tls;  // used on the strand
  const std::shared_ptr<HttpShared> shared;
  asio::strand<asio::io_context::executor_type> accepting;
  tcp::acceptor acceptor;
  asio::steady_timer retry;
  asio::executor_work_guard<asio::io_context::executor_type> work;
  bool stopping = false, waiting = false;  // on the strand
  int port = 0;
  std::vector<std::thread> threads;
};

const std::string* HttpHead::Header(const std::string& name) const {
  const auto found = headers.find(name);
  return found == headers.end() ? nullptr : &found->second;
}

HttpServer::HttpServer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

absl::StatusOr<std::unique_ptr<HttpServer>> HttpServer::Listen(const HttpServerOptions& options,
                                                               Handlers handlers) {
  auto impl = std::make_unique<Impl>(options, std::move(handlers));
  TANDEM_RETURN_IF_ERROR(impl->Open());
  return std::unique_ptr<HttpServer>(new HttpServer(std::move(impl)));
}

HttpServer::~HttpServer() { impl_->Stop(absl::ZeroDuration()); }

int HttpServer::port() const { return impl_->port; }

void HttpServer::Stop(absl::Duration at_most) { impl_->Stop(at_most); }

}  // namespace tandem
