#include "common/rpc/credentials.h"

#include <grpc/grpc_security_constants.h>
#include <grpcpp/grpcpp.h>
#include <grpcpp/security/auth_metadata_processor.h>
#include <grpcpp/security/tls_certificate_provider.h>
#include <grpcpp/security/tls_certificate_verifier.h>
#include <grpcpp/security/tls_credentials_options.h>

#include <map>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/mutex.h"
#include "common/base/status_macros.h"
#include "common/rpc/caller_secret.h"
#include "common/rpc/grpc_call.h"

namespace tandem::rpc {
namespace {

namespace tls = grpc::experimental;

constexpr unsigned kRefreshSeconds = 1;  // how often gRPC reads the files in memory

std::string Text(grpc::string_ref text) { return std::string(text.data(), text.size()); }

// Checks, after a handshake with a peer of a trusted authority, that the peer is a rollout server.
class ServerCheck : public tls::ExternalCertificateVerifier {
 public:
  explicit ServerCheck(std::shared_ptr<TlsIdentity> identity) : identity_(std::move(identity)) {}

  bool Verify(tls::TlsCustomVerificationCheckRequest* request, std::function<void(grpc::Status)>,
              grpc::Status* status) override {
    PeerName name = {.common_name = Text(request->common_name())};
    for (const grpc::string_ref& uri : request->uri_names()) name.uris.push_back(Text(uri));
    const Role role = RoleOf(name);
    if (role != Role::kRollout) {
      *status = {grpc::StatusCode::UNAUTHENTICATED,
                 absl::StrCat("the peer's certificate is of role ", std::string(RoleName(role)),
                              ", not of a rollout server")};
    }
    return true;  // the check is synchronous
  }

  void Cancel(tls::TlsCustomVerificationCheckRequest*) override {}

 private:
  const std::shared_ptr<TlsIdentity> identity_;  // keeps its files as long as the credentials
};

// Adds the first token to every call. gRPC does this over TLS only.
class TokenOfEveryCall : public grpc::MetadataCredentialsPlugin {
 public:
  explicit TokenOfEveryCall(std::shared_ptr<TlsIdentity> identity)
      : identity_(std::move(identity)) {}

  bool IsBlocking() const override { return false; }
  const char* GetType() const override { return "tandem-token"; }
  grpc::string DebugString() override { return "bearer token"; }

  grpc::Status GetMetadata(grpc::string_ref, grpc::string_ref, const grpc::AuthContext&,
                           std::multimap<grpc::string, grpc::string>* metadata) override {
    metadata->emplace("authorization", absl::StrCat("Bearer ", identity_->tokens()->front()));
    return grpc::Status::OK;
  }

 private:
  const std::shared_ptr<TlsIdentity> identity_;
};

std::shared_ptr<tls::CertificateProviderInterface> FilesOf(const TlsIdentity& identity) {
  return std::make_shared<tls::FileWatcherCertificateProvider>(
      identity.pair_path(), identity.pair_path(), identity.authorities_path(), kRefreshSeconds);
}

IdentityNeeds CallerNeeds(Roles roles, const std::string& section) {
  return {.use = TlsUse::kCall,
          .roles = roles,
          .tls_option = section.empty() ? "--tls" : section + ".tls",
          .token_option = section.empty() ? "--token-file" : section + ".token_file",
          .announced = !section.empty()};
}

IdentityNeeds ServerNeeds() {
  return {.use = TlsUse::kServe,
          .roles = {Role::kRollout},
          .tls_option = "server.tls",
          .token_option = "server.token_file"};
}

}  // namespace

// Authorises a call before anything of it is read.
class CallCheck : public grpc::AuthMetadataProcessor {
 public:
  explicit CallCheck(std::shared_ptr<TlsIdentity> identity) : identity_(std::move(identity)) {}

  bool IsBlocking() const override { return false; }

  grpc::Status Process(const InputMetadata& metadata, grpc::AuthContext* context,
                       OutputMetadata* consumed, OutputMetadata*) override {
    const auto path = metadata.find(":path");
    const std::string method = path == metadata.end() ? "" : Text(path->second);
    const auto offered = metadata.find("authorization");
    const std::string token = offered == metadata.end() ? "" : Text(offered->second);
    const absl::Status allowed =
        Check(PeerOf(*context), method, offered == metadata.end() ? nullptr : &token);
    if (!allowed.ok()) return ToGrpc(allowed);
    // Consumes the token, so that no handler sees it.
    if (offered != metadata.end()) consumed->emplace("authorization", token);
    return grpc::Status::OK;
  }

  // `authorization`: null, if none came.
  absl::Status Check(const PeerName& peer, const std::string& method,
                     const std::string* authorization) {
    absl::Status allowed = CheckCall(peer, method);
    if (allowed.ok()) allowed = CheckToken(authorization);
    if (!allowed.ok()) Log(peer, method, allowed);
    return allowed;
  }

 private:
  absl::Status CheckToken(const std::string* offered) const {
    const auto tokens = identity_->tokens();
    if (tokens == nullptr) return absl::OkStatus();
    if (offered == nullptr) {
      return Unauthenticated("this server asks for a bearer token, and none came");
    }
    return TokenIsRight(*tokens, *offered) ? absl::OkStatus()
                                           : Unauthenticated("not a bearer token of this server");
  }

  // At most one line per second, so that rejected callers cannot fill the disk.
  void Log(const PeerName& peer, const std::string& method, const absl::Status& why) {
    MutexLock lock(&mu_);
    ++num_refused_;
    if (MonotonicSeconds() < next_line_) return;
    next_line_ = MonotonicSeconds() + 1;
    log::Warning("a call was refused", {{"peer", Printable(absl::StrJoin(peer.uris, ","))},
                                        {"common_name", Printable(peer.common_name)},
                                        {"method", Printable(method)},
                                        {"reason", std::string(why.message())},
                                        {"refused_so_far", num_refused_}});
  }

  static std::string Printable(const std::string& text) {
    return absl::CHexEscape(text.substr(0, 128));
  }

  const std::shared_ptr<TlsIdentity> identity_;

  Mutex mu_;
  double next_line_ ABSL_GUARDED_BY(mu_) = 0;
  int64_t num_refused_ ABSL_GUARDED_BY(mu_) = 0;
};

PeerName PeerOf(const grpc::AuthContext& context) {
  PeerName name;
  for (const grpc::string_ref& uri : context.FindPropertyValues(GRPC_PEER_URI_PROPERTY_NAME)) {
    name.uris.push_back(Text(uri));
  }
  const auto common_names = context.FindPropertyValues(GRPC_X509_CN_PROPERTY_NAME);
  if (common_names.size() == 1) name.common_name = Text(common_names[0]);
  return name;
}

Caller::Caller() : secret_(NewSecret()) {}

std::string Caller::SecretFor(const std::string& address) const {
  return SecretForServer(secret_, address);
}

std::shared_ptr<grpc::ChannelCredentials> Caller::credentials() const {
  return credentials_ == nullptr ? grpc::InsecureChannelCredentials() : credentials_;
}

std::string Caller::TargetOf(const std::string& address) const {
  const auto route = routes_.find(address);
  return route == routes_.end() ? address : route->second;
}

std::shared_ptr<grpc::ChannelCredentials> Caller::CredentialsFor(const std::string& address) const {
  return routes_.contains(address) ? grpc::InsecureChannelCredentials() : credentials();
}

absl::Status Caller::Check(const TlsOptions& options, Roles roles, const std::string& section) {
  TANDEM_RETURN_IF_ERROR(CheckTlsOptions(options, section));
  return options.directory.empty() ? absl::OkStatus()
                                   : TlsIdentity::Check(options, CallerNeeds(roles, section));
}

absl::StatusOr<Caller> Caller::Load(const TlsOptions& options, Roles roles,
                                    const std::string& section) {
  TANDEM_RETURN_IF_ERROR(CheckTlsOptions(options, section));
  Caller caller;
  if (options.directory.empty()) return caller;
  TANDEM_ASSIGN_OR_RETURN(caller.identity_,
                          TlsIdentity::Load(options, CallerNeeds(roles, section)));
  tls::TlsChannelCredentialsOptions how;
  how.set_certificate_provider(FilesOf(*caller.identity_));
  how.watch_root_certs();
  how.watch_identity_key_cert_pairs();
  how.set_verify_server_certs(true);
  how.set_check_call_host(false);
  how.set_certificate_verifier(
      tls::ExternalCertificateVerifier::Create<ServerCheck>(caller.identity_));
  caller.credentials_ = tls::TlsCredentials(how);
  if (!options.token_file.empty()) {
    caller.credentials_ = grpc::CompositeChannelCredentials(
        caller.credentials_,
        grpc::MetadataCredentialsFromPlugin(std::make_unique<TokenOfEveryCall>(caller.identity_)));
  }
  return caller;
}

absl::Status AccessControl::Check(const TlsOptions& options) {
  TANDEM_RETURN_IF_ERROR(CheckTlsOptions(options, "server"));
  return options.directory.empty() ? absl::OkStatus() : TlsIdentity::Check(options, ServerNeeds());
}

absl::StatusOr<AccessControl> AccessControl::Load(const TlsOptions& options) {
  TANDEM_RETURN_IF_ERROR(CheckTlsOptions(options, "server"));
  AccessControl access;
  if (options.directory.empty()) return access;
  TANDEM_ASSIGN_OR_RETURN(access.identity_, TlsIdentity::Load(options, ServerNeeds()));
  tls::TlsServerCredentialsOptions how(FilesOf(*access.identity_));
  how.watch_root_certs();
  how.watch_identity_key_cert_pairs();
  how.set_cert_request_type(GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY);
  access.credentials_ = tls::TlsServerCredentials(how);
  access.check_ = std::make_shared<CallCheck>(access.identity_);
  access.credentials_->SetAuthMetadataProcessor(access.check_);
  return access;
}

std::shared_ptr<grpc::ServerCredentials> AccessControl::credentials() const {
  // Has no processor, because gRPC 1.51 ends a process that sets one on insecure credentials.
  return credentials_ == nullptr ? grpc::InsecureServerCredentials() : credentials_;
}

absl::Status AccessControl::CheckHttp(const PeerName& peer, const std::string& path,
                                      const std::string* authorization) const {
  return check_ == nullptr ? absl::OkStatus() : check_->Check(peer, path, authorization);
}

std::string AccessControl::identity_file() const {
  return identity_ == nullptr ? "" : identity_->pair_path();
}

std::string AccessControl::authorities_file() const {
  return identity_ == nullptr ? "" : identity_->authorities_path();
}

absl::Time AccessControl::valid_until() const {
  return identity_ == nullptr ? absl::InfiniteFuture() : identity_->not_after();
}

}  // namespace tandem::rpc
