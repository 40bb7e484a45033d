#include "common/http/http_connection.h"

#include <algorithm>
#include <boost/asio/bind_executor.hpp>
#include <boost/asio/buffer.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/ssl/stream.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http/error.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/read.hpp>
#include <boost/beast/http/status.hpp>
#include <boost/beast/http/string_body.hpp>
#include <deque>
#include <exception>
#include <optional>
#include <string>
#include <type_traits>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/http/url_query.h"
#include "common/rpc/tls_directory.h"

namespace tandem {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = boost::beast::http;
using tcp = asio::ip::tcp;
using Error = boost::system::error_code;
using TlsStream = asio::ssl::stream<tcp::socket>;

constexpr uint32_t kMaxHeadBytes = 32 << 10;
constexpr size_t kReadBytes = 64 << 10;
// What a client still sends of a refused request is read and dropped for so long, since closing at
// once would take the reply away from it.
constexpr std::chrono::seconds kLinger(30);
constexpr std::chrono::seconds kClosing(2);

HttpHead HeadOf(const http::request<http::string_body>& request, const rpc::PeerName& peer) {
  HttpHead head;
  head.method = std::string(request.method_string());
  const std::string target(request.target());
  const size_t question = target.find('?');
  head.path = target.substr(0, question);
  if (question != std::string::npos) head.query = ParseQuery(target.substr(question + 1));
  for (const auto& field : request) {
    head.headers[absl::AsciiStrToLower(std::string(field.name_string()))] =
        std::string(field.value());
  }
  head.peer = peer;
  return head;
}

// The head of an answer on the wire. `length`: of its body; none for a chunked one.
std::string HeadText(const HttpReply& reply, std::optional<size_t> length, bool chunked,
                     bool keep_alive) {
  const auto reason = http::obsolete_reason(static_cast<http::status>(reply.status));
  std::string text = absl::StrCat(
      "HTTP/1.1 ", reply.status, " ", std::string(reason), "\r\nContent-Type: ", reply.content_type,
      "\r\nDate: ", absl::FormatTime("%a, %d %b %Y %H:%M:%S GMT", absl::Now(), absl::UTCTimeZone()),
      "\r\nConnection: ", keep_alive ? "keep-alive" : "close", "\r\n");
  if (length) absl::StrAppend(&text, "Content-Length: ", *length, "\r\n");
  if (chunked) absl::StrAppend(&text, "Transfer-Encoding: chunked\r\n");
  for (const auto& [name, value] : reply.headers) {
    absl::StrAppend(&text, name, ": ", value, "\r\n");
  }
  return text + "\r\n";
}

std::string Chunk(const std::string& piece) {
  return piece.empty() ? "" : absl::StrCat(absl::Hex(piece.size()), "\r\n", piece, "\r\n");
}

template <typename Stream>
class Connection;

// A request under way. The connection's strand guards what is not constant.
template <typename Stream>
class Call : public HttpCall, public std::enable_shared_from_this<Call<Stream>> {
 public:
  Call(const std::shared_ptr<Connection<Stream>>& connection, HttpHead head, std::string body,
       bool keep_alive, bool chunks)
      : keep_alive(keep_alive),
        chunks(chunks),
        connection_(connection),
        head_(std::move(head)),
        body_(std::move(body)) {}

  const HttpHead& head() const override { return head_; }
  const std::string& body() const override { return body_; }

  void Answer(HttpReply reply) override {
    OnStrand([reply = std::move(reply)](auto& connection, auto& call) mutable {
      std::string text = HeadText(reply, reply.body.size(), false, call.keep_alive);
      if (call.head().method != "HEAD") text += reply.body;
      connection.Send(std::move(text), nullptr);
      connection.Done();
    });
  }

  void Begin(HttpReply reply) override {
    OnStrand([reply = std::move(reply)](auto& connection, auto& call) mutable {
      if (!call.chunks) call.keep_alive = false;  // the end is the end of the connection
      std::string text = HeadText(reply, std::nullopt, call.chunks, call.keep_alive);
      text += call.chunks ? Chunk(reply.body) : reply.body;
      connection.Send(std::move(text), nullptr);
    });
  }

  void Write(std::string piece, std::function<void()> written) override {
    OnStrand([piece = std::move(piece), written = std::move(written)](auto& connection,
                                                                      auto& call) mutable {
      connection.Send(call.chunks ? Chunk(piece) : std::move(piece), std::move(written));
    });
  }

  void End() override {
    OnStrand([](auto& connection, auto& call) {
      if (call.chunks) connection.Send("0\r\n\r\n", nullptr);
      connection.Done();
    });
  }

  void Post(std::function<void()> work) override {
    OnStrand([work = std::move(work)](auto&, auto&) { work(); });
  }

  void WhenGone(std::function<void()> then) override {
    const auto connection = connection_.lock();
    if (connection == nullptr) return then();
    asio::post(connection->executor(),
               [connection, self = this->shared_from_this(), then = std::move(then)]() mutable {
                 if (connection->Serves(self.get())) {
                   self->gone = std::move(then);
                 } else if (!self->answered) {
                   then();
                 }
               });
  }

  bool keep_alive;
  const bool chunks;  // an HTTP/1.1 client
  bool answered = false;
  std::function<void()> gone;

 private:
  template <typename Action>
  void OnStrand(Action action) {
    const auto connection = connection_.lock();
    if (connection == nullptr) return;
    asio::post(connection->executor(),
               [connection, self = this->shared_from_this(), action = std::move(action)]() mutable {
                 if (connection->Serves(self.get())) action(*connection, *self);
               });
  }

  const std::weak_ptr<Connection<Stream>> connection_;
  const HttpHead head_;
  const std::string body_;
};

// All of it runs on the strand of its socket. A read is always under way, of the next request's head
// while a call is served, which shows that the client has gone.
template <typename Stream>
class Connection : public OpenConnection, public std::enable_shared_from_this<Connection<Stream>> {
 public:
  Connection(std::shared_ptr<HttpShared> shared, tcp::socket socket,
             std::shared_ptr<asio::ssl::context> context)
      : shared_(std::move(shared)),
        context_(std::move(context)),
        stream_(MakeStream(std::move(socket), context_.get())),
        reading_(stream_.get_executor()),
        writing_(stream_.get_executor()) {}
  ~Connection() override { shared_->Closed(); }
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

  auto executor() { return stream_.get_executor(); }

  void Start() {
    shared_->Opened(this->shared_from_this());
    asio::post(executor(), [self = this->shared_from_this()] { self->Handshake(); });
  }

  void CloseSoon() override {
    asio::post(executor(), [self = this->shared_from_this()] { self->Gone(); });
  }

  bool Serves(const Call<Stream>* call) const { return call_.get() == call; }

  void Send(std::string bytes, std::function<void()> written) {
    pieces_.push_back({std::move(bytes), std::move(written)});
    if (pieces_.size() == 1) WriteSome();
  }

  // The answer of the call is complete with what was sent.
  void Done() {
    call_->answered = true;
    if (pieces_.empty()) EndCall();
  }

 private:
  struct Piece {
    std::string bytes;
    std::function<void()> written;  // may be null
  };

  static Stream MakeStream(tcp::socket socket, asio::ssl::context* context) {
    if constexpr (std::is_same_v<Stream, TlsStream>) {
      return TlsStream(std::move(socket), *context);
    } else {
      return socket;
    }
  }

  tcp::socket& socket() {
    if constexpr (std::is_same_v<Stream, TlsStream>) {
      return stream_.next_layer();
    } else {
      return stream_;
    }
  }

  void Handshake() {
    if constexpr (std::is_same_v<Stream, TlsStream>) {
      Expire(reading_, shared_->options.patience);
      stream_.async_handshake(asio::ssl::stream_base::server,
                              [self = this->shared_from_this()](Error error) {
                                if (error) return self->Close();
                                self->TakePeer();
                                self->ReadHead(self->shared_->options.patience);
                              });
    } else {
      ReadHead(shared_->options.patience);
    }
  }

  void TakePeer() {
    if constexpr (std::is_same_v<Stream, TlsStream>) {
      X509* const certificate = SSL_get1_peer_certificate(stream_.native_handle());
      if (certificate == nullptr) return;
      peer_ = rpc::NameInCertificate(certificate);
      X509_free(certificate);
    }
  }

  void ReadHead(absl::Duration at_most) {
    parser_.emplace();
    parser_->header_limit(kMaxHeadBytes);
    parser_->body_limit(static_cast<uint64_t>(shared_->options.max_body_bytes));
    Expire(reading_, at_most);
    http::async_read_header(
        stream_, buffer_, *parser_,
        [self = this->shared_from_this()](Error error, size_t) { self->OnHead(error); });
  }

  void OnHead(Error error) {
    if (closing_) return;
    if (call_ != nullptr) {
      next_ = error;
      next_is_read_ = true;
      // A request that cannot be read is refused in its turn.
      if (IsOfTransport(error)) Gone();
      return;
    }
    if (error) return RefuseError(error);
    TakeHead();
  }

  // Whether the connection failed, rather than what came over it.
  static bool IsOfTransport(Error error) {
    return error && (error == http::error::end_of_stream || error == http::error::partial_message ||
                     error.category() != http::make_error_code(http::error::bad_method).category());
  }

  void RefuseError(Error error) {
    if (IsOfTransport(error)) return Close();
    HttpHead head = HeadOf(parser_->get(), peer_);
    if (error == http::error::body_limit) return Refuse(std::move(head), TooLong());
    Refuse(std::move(head), InvalidArgument("the request is not HTTP/1.1: ", error.message()));
  }

  absl::Status TooLong() const {
    return ResourceExhausted("the body is longer than the ", shared_->options.max_body_bytes,
                             " bytes that this server takes");
  }

  void TakeHead() {
    HttpHead head = HeadOf(parser_->get(), peer_);
    const absl::Status admitted = shared_->handlers.admit(head);
    if (!admitted.ok()) return Refuse(std::move(head), admitted);
    if (beast::iequals(parser_->get()[http::field::expect], "100-continue")) {
      Send("HTTP/1.1 100 Continue\r\n\r\n", nullptr);
    }
    ReadBody();
  }

  void ReadBody() {
    if (parser_->is_done()) return Dispatch();
    Expire(reading_, shared_->options.patience);
    http::async_read_some(stream_, buffer_, *parser_,
                          [self = this->shared_from_this()](Error error, size_t) {
                            if (error) return self->RefuseError(error);
                            self->ReadBody();
                          });
  }

  void Dispatch() {
    Expire(reading_, absl::InfiniteDuration());
    if (!shared_->BeginCall()) return Close();
    auto& request = parser_->get();
    auto call = std::make_shared<Call<Stream>>(this->shared_from_this(), HeadOf(request, peer_),
                                               std::move(request.body()), request.keep_alive(),
                                               request.version() >= 11);
    call_ = call;
    self_ = this->shared_from_this();
    next_is_read_ = false;
    ReadHead(absl::InfiniteDuration());
    try {
      shared_->handlers.handle(call);
    } catch (const std::exception& error) {
      call->Answer(shared_->handlers.refuse(call->head(), Internal(error.what())));
    }
  }

  // Answers a request whose body was not read, drops what comes of it, and closes.
  void Refuse(HttpHead head, const absl::Status& why) {
    HttpReply reply = shared_->handlers.refuse(head, why);
    std::string text = HeadText(reply, reply.body.size(), false, false);
    if (head.method != "HEAD") text += reply.body;
    Send(std::move(text), [self = this->shared_from_this()] { self->CloseSlowly(kLinger); });
  }

  void WriteSome() {
    Expire(writing_, shared_->options.patience);
    stream_.async_write_some(
        asio::buffer(pieces_.front().bytes.data() + sent_, pieces_.front().bytes.size() - sent_),
        [self = this->shared_from_this()](Error error, size_t count) {
          self->OnWritten(error, count);
        });
  }

  void OnWritten(Error error, size_t count) {
    Expire(writing_, absl::InfiniteDuration());
    if (error) return Gone();
    if (pieces_.empty()) return;  // closed meanwhile
    sent_ += count;
    if (sent_ < pieces_.front().bytes.size()) return WriteSome();
    sent_ = 0;
    const std::function<void()> written = std::move(pieces_.front().written);
    pieces_.pop_front();
    if (!pieces_.empty()) {
      WriteSome();
    } else if (call_ != nullptr && call_->answered) {
      EndCall();
    }
    if (written) written();
  }

  void EndCall() {
    const auto self = std::move(self_);
    const bool keep_alive = call_->keep_alive;
    call_->gone = nullptr;
    call_.reset();
    shared_->EndCall();
    if (!keep_alive) return CloseSlowly(kClosing);
    if (!next_is_read_) return Expire(reading_, shared_->options.idle);
    next_is_read_ = false;
    if (next_) return RefuseError(next_);
    TakeHead();
  }

  // The client has gone, or reads too slowly.
  void Gone() {
    const auto self = std::move(self_);
    if (call_ != nullptr) {
      const std::shared_ptr<Call<Stream>> call = std::move(call_);
      call_.reset();
      shared_->EndCall();
      if (call->gone && !call->answered) call->gone();
      call->gone = nullptr;
    }
    Close();
  }

  // Lets the client read the last answer to its end, and drops what it sends meanwhile.
  void CloseSlowly(std::chrono::seconds at_most) {
    closing_ = true;
    Error ignored;
    socket().shutdown(tcp::socket::shutdown_send, ignored);
    Expire(reading_, absl::FromChrono(at_most));
    Drop();
  }

  void Drop() {
    // The read of a next head, which may be under way, reads on the socket below as well: both end
    // with the connection.
    dropped_.resize(kReadBytes);
    socket().async_read_some(asio::buffer(dropped_),
                             [self = this->shared_from_this()](Error error, size_t) {
                               if (error) return self->Close();
                               self->Drop();
                             });
  }

  void Close() {
    closing_ = true;
    Error ignored;
    socket().close(ignored);
    Expire(reading_, absl::InfiniteDuration());
    Expire(writing_, absl::InfiniteDuration());
    pieces_.clear();
  }

  // Ends the connection when `after` has passed; the time set before counts no more.
  void Expire(asio::steady_timer& timer, absl::Duration after) {
    if (after == absl::InfiniteDuration()) {
      timer.expires_at(asio::steady_timer::time_point::max());
      return;
    }
    timer.expires_after(absl::ToChronoNanoseconds(after));
    timer.async_wait([weak = this->weak_from_this(), &timer](Error error) {
      const auto self = weak.lock();
      if (error || self == nullptr) return;
      // It may have been set anew while this waited for its turn.
      if (timer.expiry() <= asio::steady_timer::clock_type::now()) self->Gone();
    });
  }

  const std::shared_ptr<HttpShared> shared_;
  const std::shared_ptr<asio::ssl::context> context_;  // null: plaintext
  Stream stream_;
  rpc::PeerName peer_;
  beast::flat_buffer buffer_;
  std::optional<http::request_parser<http::string_body>> parser_;  // of the head being read
  Error next_;
  bool closing_ = false;
  bool next_is_read_ = false;  // the head of the next request, or the error `next_`
  asio::steady_timer reading_, writing_;
  std::shared_ptr<Call<Stream>> call_;  // under way
  // Itself while a call is: no read may be under way then, as the next head has been read.
  std::shared_ptr<Connection> self_;
  std::deque<Piece> pieces_;  // to send; the first is being sent
  size_t sent_ = 0;           // of the first piece
  std::string dropped_;
};

}  // namespace

void HttpShared::Opened(const std::shared_ptr<OpenConnection>& connection) {
  num_open.fetch_add(1);
  MutexLock lock(&mu_);
  std::erase_if(connections_, [](const auto& one) { return one.expired(); });
  connections_.push_back(connection);
}

void HttpShared::Closed() {
  num_open.fetch_sub(1);
  MutexLock lock(&mu_);
  if (on_closed_) on_closed_();
}

void HttpShared::WhenClosed(std::function<void()> on_closed) {
  MutexLock lock(&mu_);
  on_closed_ = std::move(on_closed);
}

bool HttpShared::BeginCall() {
  MutexLock lock(&mu_);
  if (draining_) return false;
  ++num_calls_;
  return true;
}

void HttpShared::EndCall() {
  MutexLock lock(&mu_);
  if (--num_calls_ == 0) ended_.NotifyAll();
}

void HttpShared::Drain(std::chrono::steady_clock::time_point deadline) {
  MutexLock lock(&mu_);
  draining_ = true;
  while (num_calls_ > 0 && ended_.WaitUntil(&mu_, deadline)) {
  }
}

void HttpShared::CloseAll() {
  std::vector<std::shared_ptr<OpenConnection>>
      open;  // released without the lock, which Closed takes
  {
    MutexLock lock(&mu_);
    on_closed_ = nullptr;
    for (const auto& one : connections_) {
      if (auto connection = one.lock()) open.push_back(std::move(connection));
    }
  }
  for (const auto& connection : open) connection->CloseSoon();
}

void ServePlain(const std::shared_ptr<HttpShared>& shared, tcp::socket socket) {
  std::make_shared<Connection<tcp::socket>>(shared, std::move(socket), nullptr)->Start();
}

void ServeTls(const std::shared_ptr<HttpShared>& shared, tcp::socket socket,
              std::shared_ptr<asio::ssl::context> context) {
  std::make_shared<Connection<TlsStream>>(shared, std::move(socket), std::move(context))->Start();
}

}  // namespace tandem
