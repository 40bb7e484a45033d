#include "trainer/supervised/reference_logprobs.h"

#include <cstring>
#include <map>

#include "common/base/status_macros.h"
#include "common/model/safetensors.h"
#include "common/weights/digest.h"

namespace tandem::trainer {
namespace {

constexpr char kTensor[] = "reference_logprobs";

std::map<std::string, std::string> MetadataOf(const ReferenceIdentity& identity) {
  return {{"weights_digest", identity.weights_digest},
          {"tokenizer_hash", identity.tokenizer_hash},
          {"sequences_digest", identity.sequences_digest},
          {"dtype", identity.dtype},
          {"numerics", identity.numerics}};
}

}  // namespace

std::string SequencesDigest(int64_t count, const std::function<GroupTokens(int64_t)>& tokens_of) {
  // Hashes of the parts, so that one example cannot be taken for two.
  std::vector<uint64_t> hashes;
  for (int64_t i = 0; i < count; ++i) {
    const GroupTokens tokens = tokens_of(i);
    hashes.push_back(tokens.completions.size());
    hashes.push_back(HashTokenIds(tokens.prompt));
    for (const auto& completion : tokens.completions) hashes.push_back(HashTokenIds(completion));
  }
  return Digest128(std::as_bytes(std::span(hashes)));
}

int64_t NumCompletionTokens(int64_t count, const std::function<GroupTokens(int64_t)>& tokens_of) {
  size_t total = 0;
  for (int64_t i = 0; i < count; ++i) {
    for (const auto& completion : tokens_of(i).completions) total += completion.size();
  }
  return static_cast<int64_t>(total);
}

absl::StatusOr<std::vector<float>> ReadReferenceCache(const std::string& path,
                                                      const ReferenceIdentity& identity,
                                                      int64_t num_tokens) {
  TANDEM_ASSIGN_OR_RETURN(const SafetensorsFile file, ReadSafetensors(path));
  const TensorSpec want = {kTensor, DType::kF32, {num_tokens}};
  for (const auto& [name, value] : MetadataOf(identity)) {
    const auto found = file.metadata.find(name);
    const std::string was = found == file.metadata.end() ? "" : found->second;
    if (was == value) continue;
    return FailedPrecondition(path, " has the reference log-probs of another ", name, " (", was,
                              ", now ", value, ")");
  }
  if (file.tensors.size() != 1 || file.tensors[0].spec != want) {
    return DataLoss(path, " does not hold the one tensor ", want.ToString(),
                    " of a cache of reference log-probs");
  }
  std::vector<float> logprobs(static_cast<size_t>(num_tokens));
  std::memcpy(logprobs.data(), file.tensors[0].bytes.data(), file.tensors[0].bytes.size());
  return logprobs;
}

absl::Status WriteReferenceCache(const std::string& path, const ReferenceIdentity& identity,
                                 std::span<const float> logprobs) {
  const HostTensor tensor = {{kTensor, DType::kF32, {static_cast<int64_t>(logprobs.size())}},
                             std::as_bytes(logprobs),
                             nullptr};
  return WriteSafetensors(path, std::span(&tensor, 1), MetadataOf(identity));
}

}  // namespace tandem::trainer
