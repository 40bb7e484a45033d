// Credentials: what every gRPC channel and listening port of the project is made with. With TLS,
// both sides show a certificate of an authority the other trusts, a server lets a call in by the
// role in it (roles.h) and, where it has tokens, by a bearer token, and a caller goes on only with
// a server of role rollout: the host name is not asked, since pods come and go, but no other holder
// of a certificate can pose as a server. Renewed files are taken while it runs (tls_identity.h).
//
// gRPC stays behind this header. Thread-safe.
#ifndef TANDEM_COMMON_RPC_CREDENTIALS_H_
#define TANDEM_COMMON_RPC_CREDENTIALS_H_

#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/rpc/roles.h"
#include "common/rpc/tls_identity.h"

namespace grpc {
class AuthContext;
class ChannelCredentials;
class ServerCredentials;
}  // namespace grpc

namespace tandem::rpc {

// Who a peer is by its certificate; empty in plaintext.
PeerName PeerOf(const grpc::AuthContext& context);

// How a process calls rollout servers; copies are the same caller. Default: in plaintext, as
// nobody. Each has a secret of its own (caller_secret.h), which CallerChannel shows to servers.
class Caller {
 public:
  Caller();

  // In plaintext without options.directory. Messages name `options_section` ("trainer.tls") or,
  // where it is empty, the flags of a command line.
  //   INVALID_ARGUMENT  a token without TLS; TlsIdentity::Load
  static absl::StatusOr<Caller> Load(const TlsOptions& options, Roles roles,
                                     const std::string& options_section);

  // The errors of Load, without doing anything.
  static absl::Status Check(const TlsOptions& options, Roles roles,
                            const std::string& options_section);

  bool is_plaintext() const { return identity_ == nullptr; }
  std::shared_ptr<grpc::ChannelCredentials> credentials() const;

  // From now on the caller with this secret: of a run that goes on in another process.
  void UseSecret(std::string secret) { secret_ = std::move(secret); }
  // What the server at `address` is shown.
  std::string SecretFor(const std::string& address) const;

 private:
  std::string secret_;
  std::shared_ptr<TlsIdentity> identity_;  // shared with gRPC's threads
  std::shared_ptr<grpc::ChannelCredentials>
      credentials_;  // null: plaintext, so that gRPC starts late
};

// How a rollout server lets callers in.
class Doorkeeper {
 public:
  // As Caller::Load, of section `server`.
  static absl::StatusOr<Doorkeeper> Load(const TlsOptions& options);

  // The errors of Load, without doing anything.
  static absl::Status Check(const TlsOptions& options);

  bool is_plaintext() const { return identity_ == nullptr; }
  std::shared_ptr<grpc::ServerCredentials> credentials() const;
  absl::Time valid_until() const;  // of the certificate in use; infinite in plaintext

 private:
  std::shared_ptr<TlsIdentity> identity_;                 // shared with gRPC's threads
  std::shared_ptr<grpc::ServerCredentials> credentials_;  // null: plaintext
};

}  // namespace tandem::rpc

#endif  // TANDEM_COMMON_RPC_CREDENTIALS_H_
