// CertificateAuthority: signs certificates for development and tests. What a cluster uses
// (cert-manager, SPIRE) signs the same kind. OpenSSL stays behind this header.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace tandem::cli {

// Both PEM; the key without a passphrase.
struct CertifiedKey {
  std::string certificate, key;
};

struct CertificateRequest {
  std::string common_name;
  std::vector<std::string> uris, dns, ips;  // subject alternative names
  bool serves = false, calls = false;       // extended key usage
  absl::Time not_before, not_after;         // the latter is cut at the authority's own
};

// Thread-compatible.
class CertificateAuthority {
 public:
  // A new one: ECDSA on P-256, signs leaves only.
  static absl::StatusOr<CertificateAuthority> Make(const std::string& common_name,
                                                   absl::Time not_before, absl::Time not_after);
  //   INVALID_ARGUMENT  not a certificate and its key, in PEM without a passphrase
  static absl::StatusOr<CertificateAuthority> Load(CertifiedKey own);

  // With a new key of its own, also P-256.
  //   INVALID_ARGUMENT  a name that is no DNS name, address or URI
  absl::StatusOr<CertifiedKey> Sign(const CertificateRequest& request) const;

  const std::string& certificate() const { return own_.certificate; }
  const std::string& key() const { return own_.key; }

 private:
  explicit CertificateAuthority(CertifiedKey own) : own_(std::move(own)) {}
  CertifiedKey own_;
};

}  // namespace tandem::cli
