// Identities for tests of mutual TLS: authorities, and valid and invalid TLS directories signed by
// them.
#pragma once

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "cli/security/certificate_authority.h"

namespace tandem::testing {

inline cli::CertificateAuthority MakeAuthority(const std::string& name = "test authority") {
  const absl::Time now = absl::Now();
  return *cli::CertificateAuthority::Make(name, now - absl::Hours(48), now + absl::Hours(48));
}

// A request for a certificate with a role, named by its SPIFFE id, for servers and callers alike,
// so that they differ in the role only.
inline cli::CertificateRequest RequestOf(const std::string& role) {
  const absl::Time now = absl::Now();
  return {.common_name = "tandem-" + role,
          .uris = {absl::StrCat("spiffe://test/tandem/", role)},
          .dns = {"localhost"},
          .ips = {"127.0.0.1"},
          .serves = true,
          .calls = true,
          .not_before = now - absl::Hours(1),
          .not_after = now + absl::Hours(24)};
}

inline cli::CertificateRequest Expired(cli::CertificateRequest request) {
  request.not_before = absl::Now() - absl::Hours(24);
  request.not_after = absl::Now() - absl::Hours(1);
  return request;
}

inline void WriteText(const std::string& path, const std::string& text) {
  std::ofstream(path, std::ios::trunc) << text;
}

// Writes a TLS directory with a leaf that `authority` signed, which trusts `trusted`.
inline std::string WriteIdentity(const std::string& directory, const cli::CertifiedKey& leaf,
                                 const std::string& trusted) {
  std::filesystem::create_directories(directory);
  WriteText(directory + "/tls.key", leaf.key);
  WriteText(directory + "/tls.crt", leaf.certificate);
  WriteText(directory + "/ca.crt", trusted);
  return directory;
}

inline std::string WriteIdentity(const std::string& directory,
                                 const cli::CertificateAuthority& authority,
                                 const cli::CertificateRequest& request) {
  const auto leaf = authority.Sign(request);
  EXPECT_TRUE(leaf.ok()) << leaf.status();
  return WriteIdentity(directory, *leaf, authority.certificate());
}

}  // namespace tandem::testing
