#include "common/rpc/tls_directory.h"

#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/x509.h>
#include <openssl/x509_vfy.h>
#include <openssl/x509v3.h>
#include <sys/stat.h>

#include <ctime>
#include <memory>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/files/file_system.h"
#include "common/rpc/openssl_owner.h"

namespace tandem::rpc {
namespace {

using Bio = OwnedBio;
using Certificate = OwnedCertificate;
using Key = OwnedKey;
using Store = std::unique_ptr<X509_STORE, FreeWith<X509_STORE_free>>;
using StoreContext = std::unique_ptr<X509_STORE_CTX, FreeWith<X509_STORE_CTX_free>>;

constexpr size_t kMaxFileBytes = 1 << 20;  // enough for a bundle of thousands of authorities

absl::Status Bad(const std::string& path, std::string_view what) {
  return InvalidArgument(path, ": ", what);
}

Bio Reader(const std::string& text) {
  return Bio(BIO_new_mem_buf(text.data(), static_cast<int>(text.size())));
}

// Never asks a terminal for a passphrase, because a server has none.
int NoPassphrase(char*, int, int, void*) { return 0; }

std::vector<Certificate> ReadCertificates(const std::string& pem) {
  std::vector<Certificate> found;
  const Bio reader = Reader(pem);
  while (X509* one = PEM_read_bio_X509(reader.get(), nullptr, NoPassphrase, nullptr)) {
    found.emplace_back(one);
  }
  ERR_clear_error();  // OpenSSL reports the end of the file as an error
  return found;
}

absl::Time ToTime(const ASN1_TIME* time) {
  std::tm utc = {};
  if (ASN1_TIME_to_tm(time, &utc) != 1) return absl::InfinitePast();
  return absl::FromTimeT(timegm(&utc));
}

std::string Text(const ASN1_STRING* string) {
  return std::string(reinterpret_cast<const char*>(ASN1_STRING_get0_data(string)),
                     static_cast<size_t>(ASN1_STRING_length(string)));
}

// Checks that `chain[0]` is signed, through the others, by one of `authorities`, for this use.
absl::Status CheckChain(const std::string& directory, const std::vector<Certificate>& chain,
                        const std::vector<Certificate>& authorities, TlsUse use, absl::Time now) {
  const Store store(X509_STORE_new());
  for (const Certificate& authority : authorities)
    X509_STORE_add_cert(store.get(), authority.get());
  STACK_OF(X509)* const others = sk_X509_new_null();
  for (size_t i = 1; i < chain.size(); ++i) sk_X509_push(others, chain[i].get());
  const StoreContext context(X509_STORE_CTX_new());
  X509_STORE_CTX_init(context.get(), store.get(), chain[0].get(), others);
  X509_STORE_CTX_set_time(context.get(), 0, absl::ToTimeT(now));
  X509_STORE_CTX_set_purpose(
      context.get(), use == TlsUse::kServe ? X509_PURPOSE_SSL_SERVER : X509_PURPOSE_SSL_CLIENT);
  const bool valid = X509_verify_cert(context.get()) == 1;
  const int error = X509_STORE_CTX_get_error(context.get());
  sk_X509_free(others);
  ERR_clear_error();
  if (valid) return absl::OkStatus();
  const std::string file = directory + "/tls.crt";
  if (error == X509_V_ERR_INVALID_PURPOSE) {
    return Bad(file,
               absl::StrCat("its extended key usage does not allow a ",
                            use == TlsUse::kServe ? "server (serverAuth)" : "client (clientAuth)",
                            "; it is of role ",
                            std::string(RoleName(RoleOf(NameInCertificate(chain[0].get()))))));
  }
  return Bad(file, absl::StrCat("not signed by an authority in ca.crt (",
                                X509_verify_cert_error_string(error),
                                "): both must come from the same authority"));
}

absl::Status CheckKey(const std::string& directory, const TlsFiles& files, X509* certificate) {
  const Key key(PEM_read_bio_PrivateKey(Reader(files.key).get(), nullptr, NoPassphrase, nullptr));
  ERR_clear_error();
  if (key == nullptr) {
    return Bad(directory + "/tls.key", "no private key in PEM form without a passphrase");
  }
  if (X509_check_private_key(certificate, key.get()) == 1) return absl::OkStatus();
  ERR_clear_error();
  return Bad(directory + "/tls.key",
             "not the key of tls.crt: renew both together, as one directory or secret");
}

}  // namespace

PeerName NameInCertificate(X509* certificate) {
  PeerName name;
  const X509_NAME* const subject = X509_get_subject_name(certificate);
  const int at = X509_NAME_get_index_by_NID(subject, NID_commonName, -1);
  if (at >= 0) name.common_name = Text(X509_NAME_ENTRY_get_data(X509_NAME_get_entry(subject, at)));
  auto* const names = static_cast<GENERAL_NAMES*>(
      X509_get_ext_d2i(certificate, NID_subject_alt_name, nullptr, nullptr));
  for (int i = 0; i < sk_GENERAL_NAME_num(names); ++i) {
    const GENERAL_NAME* const one = sk_GENERAL_NAME_value(names, i);
    if (one->type == GEN_URI) name.uris.push_back(Text(one->d.uniformResourceIdentifier));
  }
  GENERAL_NAMES_free(names);
  return name;
}

absl::StatusOr<TlsFiles> ReadTlsFiles(const std::string& directory) {
  TlsFiles files;
  const std::pair<const char*, std::string*> wanted[] = {
      {"tls.crt", &files.certificate}, {"tls.key", &files.key}, {"ca.crt", &files.authorities}};
  for (const auto& [file, text] : wanted) {
    const std::string path = absl::StrCat(directory, "/", file);
    absl::StatusOr<std::string> read = ReadFile(path);
    if (!read.ok()) {
      return InvalidArgument(read.status().message(),
                             ": a TLS directory holds tls.crt, tls.key and ca.crt; `tandem certs` "
                             "makes one for development, a cluster mounts a secret");
    }
    if (read->empty() || read->size() > kMaxFileBytes) {
      return Bad(path,
                 absl::StrCat("has ", read->size(), " bytes, must have 1 to ", kMaxFileBytes));
    }
    *text = *std::move(read);
  }
  return files;
}

absl::StatusOr<CertificateFacts> CheckTlsFiles(const std::string& directory, const TlsFiles& files,
                                               TlsUse use, absl::Time now) {
  const std::vector<Certificate> chain = ReadCertificates(files.certificate);
  if (chain.empty()) return Bad(directory + "/tls.crt", "no certificate in PEM form");
  const std::vector<Certificate> authorities = ReadCertificates(files.authorities);
  if (authorities.empty()) return Bad(directory + "/ca.crt", "no certificate in PEM form");
  const CertificateFacts facts = {.name = NameInCertificate(chain[0].get()),
                                  .not_before = ToTime(X509_get0_notBefore(chain[0].get())),
                                  .not_after = ToTime(X509_get0_notAfter(chain[0].get()))};
  if (facts.not_after <= now) {
    return Bad(directory + "/tls.crt",
               absl::StrCat("expired at ", absl::FormatTime(facts.not_after),
                            ": renew it (`tandem certs OUT --renew` renews "
                            "those it made)"));
  }
  if (facts.not_before > now) {
    return Bad(directory + "/tls.crt",
               absl::StrCat("not valid before ", absl::FormatTime(facts.not_before),
                            ": is this machine's clock right?"));
  }
  TANDEM_RETURN_IF_ERROR(CheckKey(directory, files, chain[0].get()));
  TANDEM_RETURN_IF_ERROR(CheckChain(directory, chain, authorities, use, now));
  return facts;
}

bool KeyIsOpenToOthers(const std::string& directory) {
  struct stat facts = {};
  return stat((directory + "/tls.key").c_str(), &facts) == 0 && (facts.st_mode & S_IRWXO) != 0;
}

}  // namespace tandem::rpc
