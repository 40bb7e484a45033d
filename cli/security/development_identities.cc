#include "cli/security/development_identities.h"

#include <unistd.h>

#include <algorithm>
#include <filesystem>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "cli/security/certificate_authority.h"
#include "common/base/status_macros.h"
#include "common/files/file_system.h"
#include "common/rpc/roles.h"
#include "common/rpc/tls_directory.h"

namespace tandem::cli {
namespace {

constexpr rpc::Role kRoles[] = {rpc::Role::kRollout, rpc::Role::kTrainer, rpc::Role::kClient,
                                rpc::Role::kViewer};
constexpr int64_t kAuthorityDays = 365;

std::string AuthorityFile(const std::string& out) { return out + "/authority/ca.crt"; }
std::string AuthorityKey(const std::string& out) { return out + "/authority/ca.key"; }
std::string BeforeFile(const std::string& out) { return out + "/authority/before.crt"; }
std::string RoleDirectory(const std::string& out, rpc::Role role) {
  return absl::StrCat(out, "/", std::string(rpc::RoleName(role)));
}

bool Exists(const std::string& path) {
  std::error_code ignored;
  return std::filesystem::exists(path, ignored);
}

// A little in the past, because the clocks of machines differ.
absl::Time Start() { return absl::Now() - absl::Minutes(5); }

absl::StatusOr<CertificateAuthority> MakeAuthority(const std::string& out,
                                                   const DevelopmentNames& names) {
  const absl::Time now = absl::Now();
  TANDEM_ASSIGN_OR_RETURN(
      CertificateAuthority authority,
      CertificateAuthority::Make(
          absl::StrCat("Tandem development authority ",
                       absl::FormatTime("%Y-%m-%d %H:%M:%E3S", now, absl::UTCTimeZone())),
          Start(), now + absl::Hours(24 * std::max(kAuthorityDays, names.days))));
  TANDEM_RETURN_IF_ERROR(WritePrivateFile(AuthorityKey(out), authority.key()));
  TANDEM_RETURN_IF_ERROR(WriteFileAtomically(AuthorityFile(out), authority.certificate()));
  return authority;
}

absl::StatusOr<CertificateAuthority> LoadAuthority(const std::string& out) {
  if (!Exists(AuthorityKey(out))) {
    return NotFound(AuthorityKey(out), " is not there: `tandem certs ", out,
                    "` makes an authority first");
  }
  CertifiedKey own;
  TANDEM_ASSIGN_OR_RETURN(own.certificate, ReadFile(AuthorityFile(out)));
  TANDEM_ASSIGN_OR_RETURN(own.key, ReadFile(AuthorityKey(out)));
  return CertificateAuthority::Load(std::move(own));
}

// The authorities that the roles trust: the current one and, while it exists, the previous one.
absl::StatusOr<std::string> Trusted(const std::string& out) {
  TANDEM_ASSIGN_OR_RETURN(std::string bundle, ReadFile(AuthorityFile(out)));
  if (!Exists(BeforeFile(out))) return bundle;
  TANDEM_ASSIGN_OR_RETURN(const std::string before, ReadFile(BeforeFile(out)));
  return bundle + before;
}

absl::Status WriteTrusted(const std::string& out) {
  TANDEM_ASSIGN_OR_RETURN(const std::string bundle, Trusted(out));
  for (const rpc::Role role : kRoles) {
    TANDEM_RETURN_IF_ERROR(WriteFileAtomically(RoleDirectory(out, role) + "/ca.crt", bundle));
  }
  return absl::OkStatus();
}

CertificateRequest RequestOf(rpc::Role role, const DevelopmentNames& names) {
  const std::string name(rpc::RoleName(role));
  CertificateRequest request = {.common_name = "tandem-" + name,
                                .uris = {absl::StrCat("spiffe://", names.domain, "/tandem/", name)},
                                .serves = role == rpc::Role::kRollout,
                                .calls = role != rpc::Role::kRollout,
                                .not_before = Start(),
                                .not_after = absl::Now() + absl::Hours(24 * names.days)};
  if (role == rpc::Role::kRollout) {  // only servers have names at which they are called
    request.dns = {"localhost"};
    request.ips = {"127.0.0.1", "::1"};
    request.dns.insert(request.dns.end(), names.dns.begin(), names.dns.end());
    request.ips.insert(request.ips.end(), names.ips.begin(), names.ips.end());
  }
  return request;
}

// Writes the key first. A process that reads between the two writes sees a pair that does not
// match, and keeps its identity (common/rpc/tls_identity.h).
absl::Status WriteIdentity(const std::string& directory, const CertifiedKey& leaf) {
  TANDEM_RETURN_IF_ERROR(MakeDirectories(directory));
  TANDEM_RETURN_IF_ERROR(WritePrivateFile(directory + "/tls.key", leaf.key));
  return WriteFileAtomically(directory + "/tls.crt", leaf.certificate);
}

absl::Status SignRoles(const std::string& out, const CertificateAuthority& authority,
                       const DevelopmentNames& names) {
  for (const rpc::Role role : kRoles) {
    TANDEM_ASSIGN_OR_RETURN(const CertifiedKey leaf, authority.Sign(RequestOf(role, names)));
    TANDEM_RETURN_IF_ERROR(WriteIdentity(RoleDirectory(out, role), leaf));
  }
  return WriteTrusted(out);
}

}  // namespace

absl::Status MakeIdentities(const std::string& out, const DevelopmentNames& names) {
  if (Exists(out + "/authority")) {
    return AlreadyExists(out,
                         " holds an authority already: --renew makes new certificates under it, "
                         "--new-ca begins a change to another, or name a new directory");
  }
  for (const rpc::Role role : kRoles) {
    if (Exists(RoleDirectory(out, role))) {
      return AlreadyExists(RoleDirectory(out, role), " is there already: name a new directory");
    }
  }
  TANDEM_RETURN_IF_ERROR(MakeDirectories(out + "/authority"));
  TANDEM_ASSIGN_OR_RETURN(const CertificateAuthority authority, MakeAuthority(out, names));
  return SignRoles(out, authority, names);
}

absl::Status RenewIdentities(const std::string& out, const DevelopmentNames& names) {
  TANDEM_ASSIGN_OR_RETURN(const CertificateAuthority authority, LoadAuthority(out));
  return SignRoles(out, authority, names);
}

absl::Status NewAuthority(const std::string& out, const DevelopmentNames& names) {
  TANDEM_ASSIGN_OR_RETURN(const CertificateAuthority before, LoadAuthority(out));
  if (Exists(BeforeFile(out))) {
    return FailedPrecondition(BeforeFile(out),
                              " is still trusted: end the last change first (--renew, then "
                              "--drop-old-ca)");
  }
  TANDEM_RETURN_IF_ERROR(WriteFileAtomically(BeforeFile(out), before.certificate()));
  TANDEM_RETURN_IF_ERROR(MakeAuthority(out, names).status());
  return WriteTrusted(out);
}

absl::Status DropAuthorityBefore(const std::string& out) {
  TANDEM_ASSIGN_OR_RETURN(const CertificateAuthority authority, LoadAuthority(out));
  for (const rpc::Role role : kRoles) {
    const std::string directory = RoleDirectory(out, role);
    TANDEM_ASSIGN_OR_RETURN(rpc::TlsFiles files, rpc::ReadTlsFiles(directory));
    files.authorities = authority.certificate();
    const rpc::TlsUse use = role == rpc::Role::kRollout ? rpc::TlsUse::kServe : rpc::TlsUse::kCall;
    const auto good = rpc::CheckTlsFiles(directory, files, use, absl::Now());
    if (!good.ok()) {
      return FailedPrecondition(good.status().message(),
                                "; --renew first, and wait until every process has "
                                "taken the new certificates");
    }
  }
  std::error_code ignored;
  std::filesystem::remove(BeforeFile(out), ignored);
  return WriteTrusted(out);
}

}  // namespace tandem::cli
