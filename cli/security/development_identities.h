// Identities for development: a certificate authority in a directory, and one TLS directory per
// role with a certificate that the authority signed. `tandem certs` makes them.
//
//   OUT/authority/{ca.crt,ca.key}         the authority; its key stays on the machine that made it
//   OUT/authority/before.crt              the previous authority, while it is still trusted
//   OUT/{rollout,trainer,client,viewer}/  tls.crt, tls.key and ca.crt, for server.tls etc.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"

namespace tandem::cli {

struct DevelopmentNames {
  std::string domain = "development.invalid";  // SPIFFE trust domain
  std::vector<std::string> dns, ips;           // of the rollout server, in addition to localhost
  int64_t days = 30;                           // of the leaves; an authority has at least a year
};

// All functions also return INVALID_ARGUMENT for bad names, and errors of the file system
// (file_system.h).

// Makes an authority and the identities of all roles.
//   ALREADY_EXISTS  the directory has an authority or a role
absl::Status MakeIdentities(const std::string& out, const DevelopmentNames& names);

// Makes new keys and certificates for every role with the existing authority.
//   NOT_FOUND  there is no authority
absl::Status RenewIdentities(const std::string& out, const DevelopmentNames& names);

// Changes the authority without breaking a connection, in three steps. Before each next step, all
// processes must have taken the files of the step before. NewAuthority makes a new authority, which
// all roles trust in addition to the old one; RenewIdentities signs with it; DropAuthorityBefore
// ends the trust in the old one.
//   FAILED_PRECONDITION  the previous authority is still trusted
absl::Status NewAuthority(const std::string& out, const DevelopmentNames& names);
//   FAILED_PRECONDITION  a role's certificate was signed by the old authority
absl::Status DropAuthorityBefore(const std::string& out);

}  // namespace tandem::cli
