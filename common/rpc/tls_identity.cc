#include "common/rpc/tls_identity.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/log.h"
#include "common/base/status_macros.h"
#include "common/rpc/caller_secret.h"

namespace tandem::rpc {
namespace {

constexpr std::chrono::seconds kRefresh(2);
constexpr absl::Duration kBetweenWarnings = absl::Hours(1);

absl::Status Naming(const std::string& option, const absl::Status& status) {
  if (status.ok()) return status;
  return InvalidArgument(option, ": ", status.message());
}

constexpr char kName[] = "tandem-tls";

}  // namespace

TlsIdentity::TlsIdentity(TlsOptions options, IdentityNeeds needs)
    : options_(std::move(options)), needs_(std::move(needs)) {}

absl::Status TlsIdentity::Open() {
  const absl::StatusOr<TlsFiles> files = ReadTlsFiles(options_.directory);
  TANDEM_RETURN_IF_ERROR(Naming(needs_.tls_option, files.status()));
  MutexLock lock(&mu_);
  TANDEM_RETURN_IF_ERROR(Naming(needs_.tls_option, Take(*files)));
  if (options_.token_file.empty()) return absl::OkStatus();
  auto tokens = ReadTokens(options_.token_file);
  TANDEM_RETURN_IF_ERROR(Naming(needs_.token_option, tokens.status()));
  tokens_ = std::make_shared<const std::vector<std::string>>(*std::move(tokens));
  return absl::OkStatus();
}

absl::Status TlsIdentity::Check(const TlsOptions& options, const IdentityNeeds& needs) {
  return TlsIdentity(options, needs).Open();
}

absl::StatusOr<std::shared_ptr<TlsIdentity>> TlsIdentity::Load(const TlsOptions& options,
                                                               const IdentityNeeds& needs) {
  std::shared_ptr<TlsIdentity> identity(new TlsIdentity(options, needs));
  TANDEM_RETURN_IF_ERROR(identity->Open());
  if (needs.announced) {
    MutexLock lock(&identity->mu_);
    log::Info("TLS", {{"directory", options.directory},
                      {"role", RoleName(RoleOf(identity->facts_.name))},
                      {"valid_until", absl::FormatTime(identity->facts_.not_after)}});
  }
  if (KeyIsOpenToOthers(options.directory)) {
    log::Warning(
        "every user of this machine can read the private key: chmod 600, or defaultMode "
        "0400 on the secret",
        {{"key", options.directory + "/tls.key"}});
  }
  identity->watcher_ = std::thread([watched = identity.get()] { watched->Watch(); });
  return identity;
}

TlsIdentity::~TlsIdentity() {
  {
    MutexLock lock(&mu_);
    stopping_ = true;
    changed_.NotifyAll();
  }
  if (watcher_.joinable()) watcher_.join();
}

std::shared_ptr<const std::vector<std::string>> TlsIdentity::tokens() const {
  MutexLock lock(&mu_);
  return tokens_;
}

absl::Time TlsIdentity::not_after() const {
  MutexLock lock(&mu_);
  return facts_.not_after;
}

absl::Status TlsIdentity::Take(const TlsFiles& files) {
  TANDEM_ASSIGN_OR_RETURN(const CertificateFacts facts,
                          CheckTlsFiles(options_.directory, files, needs_.use, absl::Now()));
  const Role role = RoleOf(facts.name);
  if (!needs_.roles.Has(role)) {
    return InvalidArgument(
        options_.directory, "/tls.crt: of role ", RoleName(role), ", must be of ",
        needs_.roles.ToString(),
        ": by a URI spiffe://DOMAIN/tandem/ROLE, or else a common name tandem-ROLE");
  }
  TANDEM_RETURN_IF_ERROR(authorities_.Write(files.authorities));
  TANDEM_RETURN_IF_ERROR(pair_.Write(absl::StrCat(files.key, "\n", files.certificate)));
  files_ = files;
  facts_ = facts;
  return absl::OkStatus();
}

void TlsIdentity::Watch() {
  for (;;) {
    {
      const auto until = std::chrono::steady_clock::now() + kRefresh;
      MutexLock lock(&mu_);
      WarnBeforeTheEnd();
      while (!stopping_ && changed_.WaitUntil(&mu_, until)) {
      }
      if (stopping_) return;
    }
    RefreshFiles();
    if (!options_.token_file.empty()) RefreshTokens();
  }
}

void TlsIdentity::RefreshFiles() {
  const absl::StatusOr<TlsFiles> files = ReadTlsFiles(options_.directory);
  MutexLock lock(&mu_);
  if (files.ok() && *files == files_) {
    files_complaint_.clear();
    return;
  }
  const absl::Status taken = files.ok() ? Take(*files) : files.status();
  if (taken.ok()) {
    files_complaint_.clear();
    next_warning_ = absl::InfinitePast();
    log::Info("TLS certificates changed", {{"directory", options_.directory},
                                           {"valid_until", absl::FormatTime(facts_.not_after)}});
  } else if (files_complaint_ != taken.message()) {
    files_complaint_ = std::string(taken.message());
    log::Warning("the TLS directory is not used as it is now; the certificates before stay",
                 {{"reason", files_complaint_}});
  }
}

void TlsIdentity::RefreshTokens() {
  absl::StatusOr<std::vector<std::string>> tokens = ReadTokens(options_.token_file);
  MutexLock lock(&mu_);
  if (!tokens.ok()) {
    if (tokens_complaint_ == tokens.status().message()) return;
    tokens_complaint_ = std::string(tokens.status().message());
    log::Warning("the token file is not used as it is now; the tokens before stay",
                 {{"reason", tokens_complaint_}});
    return;
  }
  tokens_complaint_.clear();
  if (*tokens_ == *tokens) return;
  tokens_ = std::make_shared<const std::vector<std::string>>(*std::move(tokens));
  log::Info("bearer tokens changed", {{"file", options_.token_file}, {"tokens", tokens_->size()}});
}

// A short-lived certificate is always close to its end, so only a renewal that is late is worth a
// warning.
void TlsIdentity::WarnBeforeTheEnd() {
  const absl::Time now = absl::Now();
  const absl::Duration left = facts_.not_after - now;
  if (left > std::min(absl::Hours(24), (facts_.not_after - facts_.not_before) / 4)) return;
  if (now < next_warning_) return;
  next_warning_ = now + kBetweenWarnings;
  const std::string until = absl::FormatTime(facts_.not_after);
  if (left <= absl::ZeroDuration()) {
    log::Error("the TLS certificate has expired: no new connection can be made",
               {{"directory", options_.directory}, {"valid_until", until}});
  } else {
    log::Warning("the TLS certificate expires soon and was not renewed",
                 {{"directory", options_.directory}, {"valid_until", until}});
  }
}

MemoryFile::MemoryFile() : fd_(memfd_create(kName, MFD_CLOEXEC)) {}

MemoryFile::~MemoryFile() {
  if (fd_ >= 0) close(fd_);
}

absl::Status MemoryFile::Write(const std::string& contents) {
  const timespec now = {.tv_sec = ++generation_, .tv_nsec = 0};
  const timespec times[2] = {now, now};
  const int next = memfd_create(kName, MFD_CLOEXEC);
  const bool written =
      fd_ >= 0 && next >= 0 &&
      write(next, contents.data(), contents.size()) == static_cast<ssize_t>(contents.size()) &&
      futimens(next, times) == 0 && dup3(next, fd_, O_CLOEXEC) == fd_;
  const int error = errno;
  if (next >= 0) close(next);
  if (written) return absl::OkStatus();
  return Unavailable("a file in memory: ", std::strerror(error));
}

std::string MemoryFile::path() const { return absl::StrCat("/proc/self/fd/", fd_); }

}  // namespace tandem::rpc
