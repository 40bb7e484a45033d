// TlsDirectory: the three files of a process's TLS identity: tls.crt (its certificate, then any
// intermediates), tls.key and ca.crt (the authorities it trusts; several during a rotation). They
// are PEM files, named as in a Kubernetes TLS secret and by cert-manager. OpenSSL is not visible in
// this header.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "common/rpc/roles.h"

struct x509_st;  // OpenSSL's X509

namespace tandem::rpc {

// TlsOptions: the two options of transport security, the same for servers and callers.

// Empty texts mean plaintext and no token.
struct TlsOptions {
  std::string directory;   // directory with tls.crt, tls.key and ca.crt
  std::string token_file;  // bearer tokens, one per line
};

// `section` is the options' section, for messages; empty for flags of a command line.
//   INVALID_ARGUMENT  a token without TLS
inline absl::Status CheckTlsOptions(const TlsOptions& options, const std::string& section) {
  if (!options.directory.empty() || options.token_file.empty()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      section.empty() ? "--token-file without --tls: a bearer token is never sent in plaintext"
                      : absl::StrCat(section, ".token_file without ", section,
                                     ".tls: a bearer token never travels in plaintext"));
}

struct TlsFiles {
  std::string certificate, key, authorities;  // contents
  bool operator==(const TlsFiles&) const = default;
};

// Facts of the certificate in tls.crt.
struct CertificateFacts {
  PeerName name;
  absl::Time not_before, not_after;
};

enum class TlsUse { kServe, kCall };

// Reads the three files. Error messages of this function and of CheckTlsFiles name the file and the
// remedy, and never the contents of a file.
//   INVALID_ARGUMENT  a file is missing, unreadable or empty
absl::StatusOr<TlsFiles> ReadTlsFiles(const std::string& directory);

// Checks that a peer that trusts the same authorities would accept these files.
//   INVALID_ARGUMENT  a file is not PEM; the key has a passphrase or belongs to another
//                     certificate; the certificate has expired, is not valid yet, is not signed by
//                     ca.crt, or is not for this use
absl::StatusOr<CertificateFacts> CheckTlsFiles(const std::string& directory, const TlsFiles& files,
                                               TlsUse use, absl::Time now);

// The names in a certificate.
PeerName NameInCertificate(x509_st* certificate);

// True if others than owner and group can read the key. Kubernetes mounts secrets in this way by
// default.
bool KeyIsOpenToOthers(const std::string& directory);

}  // namespace tandem::rpc
