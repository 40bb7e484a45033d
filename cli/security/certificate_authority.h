// CertificateAuthority: signs certificates for development and tests, of the same kind as those of
// cert-manager or SPIRE in a cluster. OpenSSL stays behind this header.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace tandem::cli {

// Certificate and key in PEM form; the key has no passphrase.
struct CertifiedKey {
  std::string certificate, key;
};

struct CertificateRequest {
  std::string common_name;
  std::vector<std::string> uris, dns, ips;  // subject alternative names
  bool serves = false, calls = false;       // extended key usage
  absl::Time not_before, not_after;         // not_after is at most that of the authority
};

// Thread-compatible.
class CertificateAuthority {
 public:
  // Makes a new authority with an ECDSA key on P-256. It may sign leaf certificates only.
  static absl::StatusOr<CertificateAuthority> Make(const std::string& common_name,
                                                   absl::Time not_before, absl::Time not_after);
  //   INVALID_ARGUMENT  `own` is not a certificate and its key, in PEM without a passphrase
  static absl::StatusOr<CertificateAuthority> Load(CertifiedKey own);

  // Signs a leaf certificate for a new key on P-256.
  //   INVALID_ARGUMENT  a name is not a DNS name, address or URI
  absl::StatusOr<CertifiedKey> Sign(const CertificateRequest& request) const;

  const std::string& certificate() const { return own_.certificate; }
  const std::string& key() const { return own_.key; }

 private:
  explicit CertificateAuthority(CertifiedKey own) : own_(std::move(own)) {}
  CertifiedKey own_;
};

}  // namespace tandem::cli
