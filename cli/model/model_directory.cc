#include "cli/model/model_directory.h"

#include <cmath>
#include <cstring>
#include <filesystem>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/exit_codes.h"
#include "common/base/stable_random.h"
#include "common/base/status_macros.h"
#include "common/files/file_system.h"
#include "common/model/safetensors.h"
#include "common/tensor/bf16_rounding.h"
#include "common/tensor/nearest_cast.h"
#include "common/tokenizer/tokenizer.h"

namespace tandem::cli {
namespace {

namespace fs = std::filesystem;

constexpr char kChatTemplate[] =
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + "
    "message['content'] + '<|im_end|>' + '\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}";

constexpr char kSpecialTokensMap[] =
    "{\n  \"bos_token\": \"<|im_start|>\",\n  \"eos_token\": \"<|im_end|>\",\n"
    "  \"pad_token\": \"<|endoftext|>\",\n  \"unk_token\": \"<|endoftext|>\"\n}\n";

constexpr char kGenerationConfig[] =
    "{\n  \"bos_token_id\": 1,\n  \"eos_token_id\": 2,\n  \"pad_token_id\": 0\n}\n";

std::string TokenizerConfig(int64_t context) {
  return absl::StrCat(
      "{\n  \"add_prefix_space\": false,\n  \"bos_token\": \"<|im_start|>\",\n"
      "  \"clean_up_tokenization_spaces\": false,\n  \"eos_token\": \"<|im_end|>\",\n"
      "  \"model_max_length\": ",
      context,
      ",\n  \"pad_token\": \"<|endoftext|>\",\n"
      "  \"tokenizer_class\": \"PreTrainedTokenizerFast\",\n  \"unk_token\": "
      "\"<|endoftext|>\"\n}\n");
}

// The shape comes from the command line, so a bad one is an error of the command line.
absl::Status BadShape(const std::string& message) {
  return trainer::WithExitCode(absl::InvalidArgumentError(message), ExitCode::kUsage);
}

absl::StatusOr<ModelConfig> ConfigOf(ModelConfig config, int64_t vocab_size) {
  const int64_t hidden = config.hidden_size, heads = config.num_heads;
  if (config.head_dim == 0 && hidden % heads != 0) {
    return BadShape(absl::StrCat("--hidden ", hidden, " does not divide by --heads ", heads));
  }
  if (heads % config.num_kv_heads != 0) {
    return BadShape(
        absl::StrCat("--heads ", heads, " does not divide by --kv-heads ", config.num_kv_heads));
  }
  if (config.head_dim == 0) config.head_dim = hidden / heads;
  config.vocab_size = vocab_size;
  // The reader checks the shape, because the directory must be readable.
  return ParseModelConfig(ModelConfigToJson(config, DType::kF32), "the shape asked for");
}

HostTensor FreshTensor(const TensorSpec& spec, const ModelConfig& config, RandomNormal& stream) {
  auto values = std::make_shared<std::vector<float>>(static_cast<size_t>(spec.num_elements()));
  if (absl::StrContains(spec.name, "norm")) {
    for (float& value : *values) value = 1;
  } else if (!absl::EndsWith(spec.name, ".bias")) {
    const bool into_residual =
        absl::StrContains(spec.name, "o_proj") || absl::StrContains(spec.name, "down_proj");
    const double num_sums = 2.0 * static_cast<double>(config.num_layers);
    const float deviation = static_cast<float>(into_residual ? 0.02 / std::sqrt(num_sums) : 0.02);
    for (float& value : *values) value = deviation * stream.Next();
  }
  return {spec, std::as_bytes(std::span<const float>(*values)), values};
}

HostTensor Cast(const HostTensor& tensor, DType dtype) {
  if (tensor.spec.dtype == dtype) return tensor;
  const int64_t count = tensor.spec.num_elements();
  const uint64_t name_hash = DitherNameHash(tensor.spec.name);
  auto buffer =
      std::make_shared<std::vector<std::byte>>(static_cast<size_t>(count * DTypeBytes(dtype)));
  for (int64_t i = 0; i < count; ++i) {
    const float value = ElementAsFloat(tensor.spec.dtype, tensor.bytes.data(), i);
    if (dtype == DType::kBF16) {
      const uint16_t half = DitherBf16(value, name_hash, static_cast<uint64_t>(i));
      std::memcpy(buffer->data() + i * 2, &half, 2);
    } else {
      std::memcpy(buffer->data() + i * 4, &value, 4);
    }
  }
  return {{tensor.spec.name, dtype, tensor.spec.shape}, *buffer, buffer};
}

absl::Status CopyTokenizerFiles(const fs::path& from, const fs::path& to) {
  std::error_code ignored;
  for (const char* name :
       {"tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "chat_template.jinja",
        "generation_config.json", "vocab.json", "merges.txt", "added_tokens.json", "LICENSE"}) {
    if (!fs::exists(from / name, ignored)) continue;
    TANDEM_ASSIGN_OR_RETURN(const std::string contents, ReadFile((from / name).string()));
    TANDEM_RETURN_IF_ERROR(WriteFileAtomically((to / name).string(), contents));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckNoModelAt(const std::string& directory) {
  std::error_code ignored;
  if (!fs::exists(fs::path(directory) / "config.json", ignored)) return absl::OkStatus();
  return AlreadyExists(directory, " holds a model already; choose another --out");
}

absl::Status WriteModelFiles(const std::string& config_json, std::vector<HostTensor> tensors,
                             const std::string& tokenizer_from, const std::string& out,
                             DType dtype) {
  TANDEM_RETURN_IF_ERROR(CheckNoModelAt(out));
  for (HostTensor& tensor : tensors) tensor = Cast(tensor, dtype);
  const fs::path root(out);
  TANDEM_RETURN_IF_ERROR(MakeDirectories(out));
  TANDEM_RETURN_IF_ERROR(WriteSafetensors((root / "model.safetensors").string(), tensors));
  TANDEM_RETURN_IF_ERROR(CopyTokenizerFiles(tokenizer_from, root));
  return WriteFileAtomically((root / "config.json").string(), config_json);
}

absl::Status WriteModelDirectory(const ModelConfig& config, std::vector<HostTensor> tensors,
                                 const std::string& tokenizer_from, const std::string& out,
                                 DType dtype) {
  return WriteModelFiles(ModelConfigToJson(config, dtype), std::move(tensors), tokenizer_from, out,
                         dtype);
}

absl::StatusOr<ModelConfig> WriteFreshModel(const std::string& directory, const ModelConfig& shape,
                                            std::string_view text, uint64_t seed) {
  const fs::path root(directory);
  TANDEM_RETURN_IF_ERROR(CheckNoModelAt(directory));
  TANDEM_RETURN_IF_ERROR(ConfigOf(shape, shape.vocab_size).status());
  TANDEM_ASSIGN_OR_RETURN(const std::string tokenizer_json,
                          Tokenizer::TrainByteLevelBpe(text, shape.vocab_size));
  TANDEM_RETURN_IF_ERROR(MakeDirectories(directory));
  const std::pair<const char*, std::string> files[] = {
      {"tokenizer.json", tokenizer_json},
      {"tokenizer_config.json", TokenizerConfig(shape.max_position_embeddings)},
      {"special_tokens_map.json", kSpecialTokensMap},
      {"generation_config.json", kGenerationConfig},
      {"chat_template.jinja", kChatTemplate}};
  for (const auto& [name, contents] : files) {
    TANDEM_RETURN_IF_ERROR(WriteFileAtomically((root / name).string(), contents));
  }
  // A short text yields fewer merges than asked for, so the vocabulary is that of the tokenizer.
  TANDEM_ASSIGN_OR_RETURN(const auto tokenizer, Tokenizer::Load(directory));
  TANDEM_ASSIGN_OR_RETURN(const ModelConfig config, ConfigOf(shape, tokenizer->vocab_size()));
  RandomNormal stream(seed);
  std::vector<HostTensor> tensors;
  for (const TensorSpec& spec : ModelTensors(config, DType::kF32)) {
    tensors.push_back(FreshTensor(spec, config, stream));
  }
  TANDEM_RETURN_IF_ERROR(WriteSafetensors((root / "model.safetensors").string(), tensors));
  // Written last, because config.json makes the directory a model.
  TANDEM_RETURN_IF_ERROR(
      WriteFileAtomically((root / "config.json").string(), ModelConfigToJson(config, DType::kF32)));
  return config;
}

int64_t NumParameters(const ModelConfig& config) {
  int64_t count = 0;
  for (const TensorSpec& spec : ModelTensors(config, DType::kF32)) count += spec.num_elements();
  return count;
}

}  // namespace tandem::cli
