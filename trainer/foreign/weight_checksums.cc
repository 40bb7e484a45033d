#include "trainer/foreign/weight_checksums.h"

#include <openssl/evp.h>

#include <array>
#include <memory>
#include <string_view>
#include <vector>

#include "absl/strings/escaping.h"
#include "common/base/check.h"

namespace tandem::trainer {
namespace {

struct FreeDigest {
  void operator()(EVP_MD_CTX* context) const { EVP_MD_CTX_free(context); }
};

// What vLLM joins, and from which tensors, in the order of their rows.
struct Joined {
  std::string_view name;
  std::vector<std::string_view> parts;
};

const std::vector<Joined>& JoinedParameters() {
  static const std::vector<Joined> joined = {{"qkv_proj", {"q_proj", "k_proj", "v_proj"}},
                                             {"gate_up_proj", {"gate_proj", "up_proj"}}};
  return joined;
}

// The tensors that a parameter is made of, or nothing where one is missing.
std::vector<const std::string*> PartsOf(const std::string& parameter, FindBytes find) {
  if (const std::string* const whole = find(parameter)) return {whole};
  for (const Joined& joined : JoinedParameters()) {
    const size_t place = parameter.find(joined.name);
    if (place == std::string::npos) continue;
    std::vector<const std::string*> parts;
    for (const std::string_view part : joined.parts) {
      std::string name = parameter;
      name.replace(place, joined.name.size(), part);
      if (const std::string* const bytes = find(name)) parts.push_back(bytes);
    }
    if (parts.size() == joined.parts.size()) return parts;
  }
  return {};
}

std::string Sha256(const std::vector<const std::string*>& parts) {
  const std::unique_ptr<EVP_MD_CTX, FreeDigest> context(EVP_MD_CTX_new());
  TANDEM_CHECK(context != nullptr);
  TANDEM_CHECK(EVP_DigestInit_ex(context.get(), EVP_sha256(), nullptr) == 1);
  for (const std::string* const part : parts) {
    TANDEM_CHECK(EVP_DigestUpdate(context.get(), part->data(), part->size()) == 1);
  }
  std::array<unsigned char, EVP_MAX_MD_SIZE> digest;
  unsigned int size = 0;
  TANDEM_CHECK(EVP_DigestFinal_ex(context.get(), digest.data(), &size) == 1);
  return absl::BytesToHexString({reinterpret_cast<const char*>(digest.data()), size});
}

}  // namespace

std::set<std::string> CompareChecksums(const std::map<std::string, std::string>& checksums,
                                       FindBytes find) {
  std::set<std::string> proven;
  for (const auto& [name, checksum] : checksums) {
    const size_t prefix = name.rfind(':');
    const auto parts = PartsOf(prefix == std::string::npos ? name : name.substr(prefix + 1), find);
    if (!parts.empty() && Sha256(parts) == checksum) proven.insert(name);
  }
  return proven;
}

}  // namespace tandem::trainer
