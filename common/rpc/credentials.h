// Credentials: TLS for every gRPC channel and listening port of the project. With TLS, each side
// shows a certificate whose authority the other trusts. A server authorises a call by the role in
// the caller's certificate (roles.h) and, if it has tokens, by a bearer token. A caller continues
// only with a server of role rollout. The host name is not checked, because pods come and go, but a
// holder of another certificate cannot pose as a server. Renewed files are used without a restart
// (tls_identity.h).
//
// gRPC is not visible in this header. Thread-safe.
#pragma once

#include <map>
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

// The peer's name in its certificate; empty over plaintext.
PeerName PeerOf(const grpc::AuthContext& context);

// How a process calls rollout servers. Copies are the same caller. The default calls over
// plaintext, without an identity. Each caller has a secret (caller_secret.h), which CallerChannel
// shows to servers.
class Caller {
 public:
  Caller();

  // Plaintext if options.directory is empty. Messages name `options_section` ("trainer.tls") or, if
  // it is empty, flags of the command line.
  //   INVALID_ARGUMENT  a token without TLS, or an error of TlsIdentity::Load
  static absl::StatusOr<Caller> Load(const TlsOptions& options, Roles roles,
                                     const std::string& options_section);

  // The errors of Load, without doing anything.
  static absl::Status Check(const TlsOptions& options, Roles roles,
                            const std::string& options_section);

  bool is_plaintext() const { return identity_ == nullptr; }
  std::shared_ptr<grpc::ChannelCredentials> credentials() const;

  // Continues as the caller with this secret, for a run that goes on in another process.
  void UseSecret(std::string secret) { secret_ = std::move(secret); }
  // The secret for the server at `address`.
  std::string SecretFor(const std::string& address) const;

  // Calls to `address` go to `target` over plaintext: to a service of this process, at a place that
  // no other user can reach. Call it before the caller is copied.
  void Route(const std::string& address, const std::string& target) { routes_[address] = target; }
  // Where calls to `address` go, and by which credentials.
  std::string TargetOf(const std::string& address) const;
  std::shared_ptr<grpc::ChannelCredentials> CredentialsFor(const std::string& address) const;

 private:
  std::map<std::string, std::string> routes_;  // address to target
  std::string secret_;
  std::shared_ptr<TlsIdentity> identity_;  // shared with gRPC's threads
  // Null for plaintext, so that gRPC is not initialised before it is needed.
  std::shared_ptr<grpc::ChannelCredentials> credentials_;
};

class CallCheck;  // credentials.cc

// How a rollout server authorises its callers.
class AccessControl {
 public:
  // As Caller::Load, with the options of section `server`.
  static absl::StatusOr<AccessControl> Load(const TlsOptions& options);

  // The errors of Load, without doing anything.
  static absl::Status Check(const TlsOptions& options);

  bool is_plaintext() const { return identity_ == nullptr; }
  std::shared_ptr<grpc::ServerCredentials> credentials() const;
  // Authorises a call of HTTP by a peer's certificate, as those of gRPC are. `authorization`: the
  // header's value, or null. OK over plaintext.
  //   PERMISSION_DENIED  CheckCall
  //   UNAUTHENTICATED    no bearer token of this server
  absl::Status CheckHttp(const PeerName& peer, const std::string& path,
                         const std::string* authorization) const;
  // PEM files of the certificates in use, for a server of HTTP; empty over plaintext.
  std::string identity_file() const;
  std::string authorities_file() const;

  absl::Time valid_until() const;  // end of the certificate in use; infinite over plaintext

 private:
  std::shared_ptr<TlsIdentity> identity_;                 // shared with gRPC's threads
  std::shared_ptr<CallCheck> check_;                      // null: plaintext
  std::shared_ptr<grpc::ServerCredentials> credentials_;  // null: plaintext
};

}  // namespace tandem::rpc
