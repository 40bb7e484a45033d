// TlsIdentity: the TLS identity of a process, kept up to date. A thread reads the TLS directory and
// the token file every two seconds. A consistent set of files replaces the one in use; any other
// set is reported in the log and ignored, so that an incomplete or failed renewal ends no
// connection. gRPC reads copies of the files in use, in memory under /proc/self/fd, and not the
// directory. Logs each change, and warns before the certificate expires.
//
// Thread-safe. Runs one thread. Used by credentials.cc.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/base/mutex.h"
#include "common/rpc/roles.h"
#include "common/rpc/tls_directory.h"

namespace tandem::rpc {

// MemoryFile: a file in memory without a name in any file system, which other code of this process
// reads by path(). Closed on exec. Thread-compatible.
class MemoryFile {
 public:
  MemoryFile();
  ~MemoryFile();
  MemoryFile(const MemoryFile&) = delete;
  MemoryFile& operator=(const MemoryFile&) = delete;

  // Replaces the contents atomically: a reader sees the contents before or after. Each time, the
  // modification time is one second later, so that readers that compare times notice a change
  // during their reading.
  //   UNAVAILABLE  the system gives no memory file
  absl::Status Write(const std::string& contents);

  std::string path() const;

 private:
  const int fd_;
  int64_t generation_ = 0;
};

// Requirements on an identity: its use of TLS, the roles its certificate may name, and the names of
// the two options in messages ("server.tls", "server.token_file").
struct IdentityNeeds {
  TlsUse use = TlsUse::kCall;
  Roles roles;
  std::string tls_option, token_option;
  bool announced = true;  // writes a line to the log at the start
};

class TlsIdentity {
 public:
  // Requires options.directory. Starts the thread.
  //   INVALID_ARGUMENT  an error of the files (tls_directory.h) or of the tokens (caller_secret.h),
  //                     or a certificate of another role. The message names the option, the file
  //                     and the remedy
  static absl::StatusOr<std::shared_ptr<TlsIdentity>> Load(const TlsOptions& options,
                                                           const IdentityNeeds& needs);
  // The errors of Load, without starting a thread or logging.
  static absl::Status Check(const TlsOptions& options, const IdentityNeeds& needs);

  ~TlsIdentity();
  TlsIdentity(const TlsIdentity&) = delete;
  TlsIdentity& operator=(const TlsIdentity&) = delete;

  // Paths of the identity in use, valid while this object lives. Key and certificates are one file,
  // because a reader of two files could get the key of one renewal and the certificate of another.
  std::string pair_path() const { return pair_.path(); }
  std::string authorities_path() const { return authorities_.path(); }

  // Null if no tokens are required or sent.
  std::shared_ptr<const std::vector<std::string>> tokens() const;
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
  // The last problem that was logged, so that each cause gives one line.
  std::string files_complaint_ ABSL_GUARDED_BY(mu_), tokens_complaint_ ABSL_GUARDED_BY(mu_);
  absl::Time next_warning_ ABSL_GUARDED_BY(mu_) = absl::InfinitePast();
  std::thread watcher_;
};

}  // namespace tandem::rpc
