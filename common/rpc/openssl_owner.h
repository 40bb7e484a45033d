// Owners of OpenSSL objects: unique pointers that call the right free function. For .cc files that
// use OpenSSL.
#pragma once

#include <openssl/bio.h>
#include <openssl/evp.h>
#include <openssl/x509.h>

#include <memory>

namespace tandem::rpc {

template <auto free>
struct FreeWith {
  template <typename T>
  void operator()(T* pointer) const {
    free(pointer);
  }
};

using OwnedBio = std::unique_ptr<BIO, FreeWith<BIO_free>>;
using OwnedCertificate = std::unique_ptr<X509, FreeWith<X509_free>>;
using OwnedKey = std::unique_ptr<EVP_PKEY, FreeWith<EVP_PKEY_free>>;

}  // namespace tandem::rpc
