// TlsOptions: the two options of transport security, the same for servers and callers.
#ifndef TANDEM_COMMON_RPC_TLS_OPTIONS_H_
#define TANDEM_COMMON_RPC_TLS_OPTIONS_H_

#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace tandem::rpc {

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

}  // namespace tandem::rpc

#endif  // TANDEM_COMMON_RPC_TLS_OPTIONS_H_
