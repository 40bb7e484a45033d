#include "cli/security/certificate_authority.h"

#include <arpa/inet.h>
#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/rand.h>
#include <openssl/x509.h>
#include <openssl/x509v3.h>

#include <algorithm>
#include <memory>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_join.h"
#include "common/base/status_macros.h"
#include "common/rpc/openssl_owner.h"

namespace tandem::cli {
namespace {

using Bio = rpc::OwnedBio;
using Certificate = rpc::OwnedCertificate;
using Key = rpc::OwnedKey;
using Extension = std::unique_ptr<X509_EXTENSION, rpc::FreeWith<X509_EXTENSION_free>>;

absl::Status OpenSslError(const char* what) {
  const unsigned long error = ERR_get_error();
  ERR_clear_error();
  const char* const reason = ERR_reason_error_string(error);
  return Internal(what, ": ", reason == nullptr ? "OpenSSL" : reason);
}

Key NewKey() { return Key(EVP_EC_gen("P-256")); }

std::string Contents(BIO* bio) {
  char* data = nullptr;
  const long size = BIO_get_mem_data(bio, &data);
  return std::string(data, static_cast<size_t>(size));
}

std::string ToPem(X509* certificate) {
  const Bio bio(BIO_new(BIO_s_mem()));
  PEM_write_bio_X509(bio.get(), certificate);
  return Contents(bio.get());
}

std::string ToPem(EVP_PKEY* key) {
  const Bio bio(BIO_new(BIO_s_mem()));
  PEM_write_bio_PrivateKey(bio.get(), key, nullptr, nullptr, 0, nullptr, nullptr);
  return Contents(bio.get());
}

int NoPassphrase(char*, int, int, void*) { return 0; }

Certificate ReadCertificate(const std::string& pem) {
  const Bio bio(BIO_new_mem_buf(pem.data(), static_cast<int>(pem.size())));
  return Certificate(PEM_read_bio_X509(bio.get(), nullptr, NoPassphrase, nullptr));
}

Key ReadKey(const std::string& pem) {
  const Bio bio(BIO_new_mem_buf(pem.data(), static_cast<int>(pem.size())));
  return Key(PEM_read_bio_PrivateKey(bio.get(), nullptr, NoPassphrase, nullptr));
}

// A certificate without issuer, extensions and signature.
absl::StatusOr<Certificate> Blank(const std::string& common_name, EVP_PKEY* key,
                                  absl::Time not_before, absl::Time not_after) {
  Certificate certificate(X509_new());
  unsigned char serial[16];
  if (RAND_bytes(serial, sizeof(serial)) != 1) return OpenSslError("a serial number");
  serial[0] &= 0x7f;  // positive
  const std::unique_ptr<BIGNUM, rpc::FreeWith<BN_free>> number(
      BN_bin2bn(serial, sizeof(serial), nullptr));
  BN_to_ASN1_INTEGER(number.get(), X509_get_serialNumber(certificate.get()));
  X509_set_version(certificate.get(), X509_VERSION_3);
  ASN1_TIME_set(X509_getm_notBefore(certificate.get()), absl::ToTimeT(not_before));
  ASN1_TIME_set(X509_getm_notAfter(certificate.get()), absl::ToTimeT(not_after));
  const std::unique_ptr<X509_NAME, rpc::FreeWith<X509_NAME_free>> subject(X509_NAME_new());
  if (X509_NAME_add_entry_by_txt(subject.get(), "CN", MBSTRING_UTF8,
                                 reinterpret_cast<const unsigned char*>(common_name.data()),
                                 static_cast<int>(common_name.size()), -1, 0) != 1 ||
      X509_set_subject_name(certificate.get(), subject.get()) != 1 ||
      X509_set_pubkey(certificate.get(), key) != 1) {
    return OpenSslError("a certificate");
  }
  return certificate;
}

absl::Status AddExtension(X509* certificate, X509* issuer, int nid, const std::string& value) {
  X509V3_CTX context;
  X509V3_set_ctx_nodb(&context);
  X509V3_set_ctx(&context, issuer, certificate, nullptr, nullptr, 0);
  const Extension extension(X509V3_EXT_conf_nid(nullptr, &context, nid, value.c_str()));
  if (extension == nullptr || X509_add_ext(certificate, extension.get(), -1) != 1) {
    return OpenSslError(value.c_str());
  }
  return absl::OkStatus();
}

// OpenSSL parses the names from one text, so text that would be more than a name is refused.
absl::StatusOr<std::string> AlternativeNames(const CertificateRequest& request) {
  std::vector<std::string> names;
  const auto only = [](const std::string& name, std::string_view punctuation) {
    return !name.empty() && std::ranges::all_of(name, [&](char c) {
      return absl::ascii_isalnum(static_cast<unsigned char>(c)) ||
             punctuation.find(c) != std::string_view::npos;
    });
  };
  for (const std::string& uri : request.uris) {
    if (!only(uri, ":/.-_")) {
      return InvalidArgument("'", uri, "' is not a URI of an identity");
    }
    names.push_back("URI:" + uri);
  }
  for (const std::string& dns : request.dns) {
    if (!only(dns, ".-*")) {
      return InvalidArgument("'", dns, "' is not a DNS name");
    }
    names.push_back("DNS:" + dns);
  }
  for (const std::string& ip : request.ips) {
    unsigned char parsed[16];
    if (inet_pton(AF_INET, ip.c_str(), parsed) != 1 &&
        inet_pton(AF_INET6, ip.c_str(), parsed) != 1) {
      return InvalidArgument("'", ip, "' is not an IP address");
    }
    names.push_back("IP:" + ip);
  }
  return absl::StrJoin(names, ",");
}

absl::Status AddLeafExtensions(X509* leaf, X509* issuer, const CertificateRequest& request) {
  TANDEM_ASSIGN_OR_RETURN(const std::string names, AlternativeNames(request));
  std::vector<std::string> uses;
  if (request.serves) uses.push_back("serverAuth");
  if (request.calls) uses.push_back("clientAuth");
  TANDEM_RETURN_IF_ERROR(AddExtension(leaf, issuer, NID_basic_constraints, "critical,CA:FALSE"));
  TANDEM_RETURN_IF_ERROR(AddExtension(leaf, issuer, NID_key_usage, "critical,digitalSignature"));
  if (!uses.empty()) {
    TANDEM_RETURN_IF_ERROR(AddExtension(leaf, issuer, NID_ext_key_usage, absl::StrJoin(uses, ",")));
  }
  if (!names.empty())
    TANDEM_RETURN_IF_ERROR(AddExtension(leaf, issuer, NID_subject_alt_name, names));
  return AddExtension(leaf, issuer, NID_authority_key_identifier, "keyid:always");
}

absl::Status SignWith(EVP_PKEY* key, X509* certificate) {
  return X509_sign(certificate, key, EVP_sha256()) > 0 ? absl::OkStatus()
                                                       : OpenSslError("a signature");
}

}  // namespace

absl::StatusOr<CertificateAuthority> CertificateAuthority::Make(const std::string& common_name,
                                                                absl::Time not_before,
                                                                absl::Time not_after) {
  const Key key = NewKey();
  if (key == nullptr) return OpenSslError("a key");
  TANDEM_ASSIGN_OR_RETURN(const Certificate own,
                          Blank(common_name, key.get(), not_before, not_after));
  X509* const x509 = own.get();
  X509_set_issuer_name(x509, X509_get_subject_name(x509));
  TANDEM_RETURN_IF_ERROR(
      AddExtension(x509, x509, NID_basic_constraints, "critical,CA:TRUE,pathlen:0"));
  TANDEM_RETURN_IF_ERROR(AddExtension(x509, x509, NID_key_usage, "critical,keyCertSign,cRLSign"));
  TANDEM_RETURN_IF_ERROR(AddExtension(x509, x509, NID_subject_key_identifier, "hash"));
  TANDEM_RETURN_IF_ERROR(SignWith(key.get(), x509));
  return CertificateAuthority({ToPem(x509), ToPem(key.get())});
}

absl::StatusOr<CertificateAuthority> CertificateAuthority::Load(CertifiedKey own) {
  const Certificate certificate = ReadCertificate(own.certificate);
  const Key key = ReadKey(own.key);
  const bool whole = certificate != nullptr && key != nullptr &&
                     X509_check_private_key(certificate.get(), key.get()) == 1;
  ERR_clear_error();
  if (!whole) {
    return absl::InvalidArgumentError("not the certificate and key of an authority, in PEM form");
  }
  return CertificateAuthority(std::move(own));
}

absl::StatusOr<CertifiedKey> CertificateAuthority::Sign(const CertificateRequest& request) const {
  const Certificate issuer = ReadCertificate(own_.certificate);
  const Key issuer_key = ReadKey(own_.key);
  const Key key = NewKey();
  if (key == nullptr) return OpenSslError("a key");
  TANDEM_ASSIGN_OR_RETURN(const Certificate leaf, Blank(request.common_name, key.get(),
                                                        request.not_before, request.not_after));
  if (ASN1_TIME_compare(X509_get0_notAfter(leaf.get()), X509_get0_notAfter(issuer.get())) > 0) {
    X509_set1_notAfter(leaf.get(), X509_get0_notAfter(issuer.get()));
  }
  X509_set_issuer_name(leaf.get(), X509_get_subject_name(issuer.get()));
  TANDEM_RETURN_IF_ERROR(AddLeafExtensions(leaf.get(), issuer.get(), request));
  TANDEM_RETURN_IF_ERROR(SignWith(issuer_key.get(), leaf.get()));
  return CertifiedKey{ToPem(leaf.get()), ToPem(key.get())};
}

}  // namespace tandem::cli
