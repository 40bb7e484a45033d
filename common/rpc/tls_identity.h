// TlsIdentity: who a process is over TLS, kept fresh. A thread reads the TLS directory and the
// token file every two seconds; a set of files that holds together replaces the one before, any
// other is named in the log and left alone, so that a renewal caught half-way or gone wrong ends no
// connection. gRPC reads the files in use, not the directory's: they are copies in memory, under
// /proc/self/fd. Logs each change, and an end of validity that comes near.
//
// Thread-safe. Threads: one. Used by credentials.cc.
#ifndef TANDEM_COMMON_RPC_TLS_IDENTITY_H_
#define TANDEM_COMMON_RPC_TLS_IDENTITY_H_

#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/base/mutex.h"
#include "common/rpc/memory_file.h"
#include "common/rpc/roles.h"
#include "common/rpc/tls_directory.h"
#include "common/rpc/tls_options.h"

namespace tandem::rpc {

// What a process may be: its use of TLS, the roles its certificate may name, and the words for both
// options in messages ("server.tls", "server.token_file").
struct IdentityNeeds {
  TlsUse use = TlsUse::kCall;
  Roles roles;
  std::string tls_option, token_option;
  bool announced = true;  // by a line in the log at the start
};

class TlsIdentity {
 public:
  // With options.directory; starts the thread.
  //   INVALID_ARGUMENT  the files (tls_directory.h), the tokens (bearer_tokens.h), or a certificate
  //   of
  //                     another role: the option, the file, and what to do
  static absl::StatusOr<std::shared_ptr<TlsIdentity>> Load(const TlsOptions& options,
                                                           const IdentityNeeds& needs);
  // The errors of Load, without a thread or a line in the log.
  static absl::Status Check(const TlsOptions& options, const IdentityNeeds& needs);

  ~TlsIdentity();
  TlsIdentity(const TlsIdentity&) = delete;
  TlsIdentity& operator=(const TlsIdentity&) = delete;

  // Files to read the identity in use from, valid while this lives. Key and certificates are one
  // file: two could be read as the key of one renewal and the certificate of another.
  std::string pair_path() const { return pair_.path(); }
  std::string authorities_path() const { return authorities_.path(); }

  std::shared_ptr<const std::vector<std::string>> tokens()
      const;  // null: none are asked for, or sent
  absl::Time not_after() const;

 private:
  TlsIdentity(TlsOptions options, IdentityNeeds needs);
  absl::Status Open();
  void Watch();
  void RefreshFiles();
  void RefreshTokens();
  void WarnBeforeTheEnd() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::Status Take(const TlsFiles& files) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const TlsOptions options_;
  const IdentityNeeds needs_;
  MemoryFile pair_, authorities_;

  mutable Mutex mu_;
  CondVar changed_;
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  TlsFiles files_ ABSL_GUARDED_BY(mu_);  // in use
  CertificateFacts facts_ ABSL_GUARDED_BY(mu_);
  std::shared_ptr<const std::vector<std::string>> tokens_ ABSL_GUARDED_BY(mu_);
  // One line in the log per cause, not one per look.
  std::string files_complaint_ ABSL_GUARDED_BY(mu_), tokens_complaint_ ABSL_GUARDED_BY(mu_);
  absl::Time next_warning_ ABSL_GUARDED_BY(mu_) = absl::InfinitePast();
  std::thread watcher_;
};

}  // namespace tandem::rpc

#endif  // TANDEM_COMMON_RPC_TLS_IDENTITY_H_
