// Development identities: a certificate authority in a directory, and one TLS directory per role
// that it signed. `tandem certs` is this.
//
//   OUT/authority/{ca.crt,ca.key}               signs; its key stays on the machine that made it
//   OUT/authority/before.crt                    the one before, while it is still trusted
//   OUT/{rollout,trainer,client,viewer}/        tls.crt, tls.key and ca.crt: for server.tls and so
//   on
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"

namespace tandem::cli {

struct DevelopmentNames {
  std::string domain = "development.invalid";  // SPIFFE trust domain
  std::vector<std::string> dns, ips;           // of the rollout server, beside localhost
  int64_t days = 30;                           // leaves; the authority: at least a year
};

// Errors of all: INVALID_ARGUMENT (names), those of the file system (file_system.h).

//   ALREADY_EXISTS  an authority is there
absl::Status MakeIdentities(const std::string& out, const DevelopmentNames& names);

// New keys and certificates of every role under the authority that is there.
//   NOT_FOUND  none is
absl::Status RenewIdentities(const std::string& out, const DevelopmentNames& names);

// A change of authority that no connection notices is made in three steps, each after every process
// has taken the one before: a new authority that all trust beside the one in use; RenewIdentities,
// which uses it; and the end of trust in the one before.
//   FAILED_PRECONDITION  NewAuthority: one before is still trusted
absl::Status NewAuthority(const std::string& out, const DevelopmentNames& names);
//   FAILED_PRECONDITION  a role's certificate is of the one before
absl::Status DropAuthorityBefore(const std::string& out);

}  // namespace tandem::cli
