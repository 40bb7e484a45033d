#include "drift_lab/referee/forward/variant.h"

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"

namespace tandem::drift {

const char* WeightFormatName(WeightFormat format) {
  switch (format) {
    case WeightFormat::kOwn:
      return "as stored";
    case WeightFormat::kInt8Tensor:
      return "int8, one scale per tensor";
    case WeightFormat::kInt8Channel:
      return "int8, one scale per channel";
    case WeightFormat::kInt8Group128:
      return "int8 in groups of 128";
    case WeightFormat::kQ8Block32:
      return "int8 in blocks of 32 (q8_0)";
    case WeightFormat::kFp8Tensor:
      return "fp8 e4m3, one scale per tensor";
    case WeightFormat::kFp8Channel:
      return "fp8 e4m3, one scale per channel";
    case WeightFormat::kInt4Group32:
      return "int4 in groups of 32";
    case WeightFormat::kInt4Group64:
      return "int4 in groups of 64";
    case WeightFormat::kInt4Group128:
      return "int4 in groups of 128";
    case WeightFormat::kInt4Channel:
      return "int4, one scale per channel";
    case WeightFormat::kQ4Block32:
      return "4 bits in blocks of 32 (q4_0)";
    case WeightFormat::kQ5Block32:
      return "5 bits in blocks of 32 (q5_0)";
    case WeightFormat::kAsym4Group32:
      return "4 bits with zero points in groups of 32";
    case WeightFormat::kAsym4Group64:
      return "4 bits with zero points in groups of 64";
    case WeightFormat::kAsym4Group128:
      return "4 bits with zero points in groups of 128";
    case WeightFormat::kAsym8Channel:
      return "8 bits with a zero point per channel";
    case WeightFormat::kQ4K:
      return "4 bits in super-blocks of 256 (q4_K)";
    case WeightFormat::kQ6K:
      return "6 bits in super-blocks of 256 (q6_K)";
    case WeightFormat::kQ4KMedium:
      return "4 to 6 bits as llama.cpp's Q4_K_M";
  }
  return "";
}

// llama-quant.cpp: which tensors get more bits.
WeightFormat FormatOfMatrix(WeightFormat format, const std::string& matrix, int64_t layer,
                            int64_t num_layers) {
  if (format != WeightFormat::kQ4KMedium) return format;
  const auto is = [&](const char* name) { return absl::StrContains(matrix, name); };
  if (is("embed_tokens") || is("lm_head")) return WeightFormat::kQ6K;
  const int64_t eighth = num_layers / 8;
  const bool more = layer < eighth || layer >= 7 * num_layers / 8 || (layer - eighth) % 3 == 2;
  return more && (is("v_proj") || is("down_proj")) ? WeightFormat::kQ6K : WeightFormat::kQ4K;
}

std::string SettingsText(const SamplerSettings& settings) {
  std::vector<std::string> parts;
  const auto add = [&](const char* name, double value, double neutral) {
    if (value != neutral) parts.push_back(absl::StrFormat("%s %.4g", name, value));
  };
  add("temperature", settings.temperature, 1);
  add("top-k", static_cast<double>(settings.top_k), 0);
  add("top-p", settings.top_p, 1);
  add("min-p", settings.min_p, 0);
  add("typical-p", settings.typical_p, 1);
  add("repetition penalty", settings.repetition_penalty, 1);
  add("frequency penalty", settings.frequency_penalty, 0);
  add("presence penalty", settings.presence_penalty, 0);
  add("min-tokens", static_cast<double>(settings.min_tokens), 0);
  add("soft cap of logits", settings.soft_cap, 0);
  if (!settings.renormalised) parts.push_back("filters without renormalisation");
  return parts.empty() ? "the model's distribution as it is" : absl::StrJoin(parts, ", ");
}

}  // namespace tandem::drift
