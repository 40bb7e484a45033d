// TlsDirectory: the three files a process shows who it is with: tls.crt (its certificate, then any
// intermediates), tls.key and ca.crt (the authorities it trusts; several during a rotation), all
// PEM, named as in a Kubernetes TLS secret and by cert-manager. OpenSSL stays behind this header.
#ifndef TANDEM_COMMON_RPC_TLS_DIRECTORY_H_
#define TANDEM_COMMON_RPC_TLS_DIRECTORY_H_

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/rpc/roles.h"

namespace tandem::rpc {

struct TlsFiles {
  std::string certificate, key, authorities;  // contents
  bool operator==(const TlsFiles&) const = default;
};

// Of the certificate in tls.crt.
struct CertificateFacts {
  PeerName name;
  absl::Time not_before, not_after;
};

enum class TlsUse { kServe, kCall };

// Errors of both name the file and what to do about it, and nothing of what a file holds.

//   INVALID_ARGUMENT  a file is missing, unreadable or empty
absl::StatusOr<TlsFiles> ReadTlsFiles(const std::string& directory);

// Would a peer that trusts the same authorities take them?
//   INVALID_ARGUMENT  not PEM; a key with a passphrase, or of another certificate; a certificate
//   that
//                     has expired, is not valid yet, is not signed by ca.crt, or is not for this
//                     use
absl::StatusOr<CertificateFacts> CheckTlsFiles(const std::string& directory, const TlsFiles& files,
                                               TlsUse use, absl::Time now);

// Can others than owner and group read the key? Kubernetes mounts secrets so unless told otherwise.
bool KeyIsOpenToOthers(const std::string& directory);

}  // namespace tandem::rpc

#endif  // TANDEM_COMMON_RPC_TLS_DIRECTORY_H_
