// ReadCapture and WriteCapture: columns are stored as safetensors, the manifest as JSON.
#include <algorithm>
#include <cstring>
#include <filesystem>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <type_traits>

#include "absl/strings/str_cat.h"
#include "common/base/json.h"
#include "common/base/status_macros.h"
#include "common/capture/capture.h"
#include "common/files/file_system.h"
#include "common/model/safetensors.h"
#include "common/model/token_support.h"
#include "common/weights/digest.h"

namespace tandem::offpolicy {

// The parts of the manifest whose keys are the names of their fields.
// Captures from before servers could quantise have no `weights`, and those from before they could
// apply adapters no `lora`.
void to_json(nlohmann::json& json, const CapturedServer& server) {
  json = {{"address", server.address},
          {"build", server.build},
          {"dtype", server.dtype},
          {"numerics", server.numerics},
          {"instruction_set", server.instruction_set},
          {"in_flight", server.in_flight},
          {"weights", server.weights},
          {"lora", server.lora}};
}
void from_json(const nlohmann::json& json, CapturedServer& server) {
  json.at("address").get_to(server.address);
  json.at("build").get_to(server.build);
  json.at("dtype").get_to(server.dtype);
  json.at("numerics").get_to(server.numerics);
  json.at("instruction_set").get_to(server.instruction_set);
  json.at("in_flight").get_to(server.in_flight);
  server.weights = json.value("weights", server.weights);
  server.lora = json.value("lora", server.lora);
}
void to_json(nlohmann::json& json, const CapturedTrainer& trainer) {
  json = {{"dtype", trainer.dtype},
          {"numerics", trainer.numerics},
          {"instruction_set", trainer.instruction_set},
          {"library", trainer.library},
          {"row_tokens", trainer.row_tokens},
          {"weights", trainer.weights}};
}
void from_json(const nlohmann::json& json, CapturedTrainer& trainer) {
  json.at("dtype").get_to(trainer.dtype);
  json.at("numerics").get_to(trainer.numerics);
  json.at("instruction_set").get_to(trainer.instruction_set);
  json.at("library").get_to(trainer.library);
  json.at("row_tokens").get_to(trainer.row_tokens);
  trainer.weights = json.value("weights", trainer.weights);
}
void to_json(nlohmann::json& json, const CapturedWeights& weights) {
  json = {{"version", weights.version},
          {"rounding", weights.rounding},
          {"served", weights.served},
          {"masters", weights.masters},
          {"masters_digest", weights.masters_digest}};
  if (weights.adapter.empty()) return;
  json["adapter"] = {{"file", weights.adapter},
                     {"rank", weights.adapter_rank},
                     {"scaling", weights.adapter_scaling}};
}
void from_json(const nlohmann::json& json, CapturedWeights& weights) {
  json.at("version").get_to(weights.version);
  json.at("rounding").get_to(weights.rounding);
  json.at("served").get_to(weights.served);
  json.at("masters").get_to(weights.masters);
  json.at("masters_digest").get_to(weights.masters_digest);
  if (!json.contains("adapter")) return;
  const nlohmann::json& adapter = json.at("adapter");
  adapter.at("file").get_to(weights.adapter);
  adapter.at("rank").get_to(weights.adapter_rank);
  adapter.at("scaling").get_to(weights.adapter_scaling);
}

namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr char kColumns[] = "tensors.safetensors";
constexpr char kManifest[] = "manifest.json";
constexpr char kFormat[] = "tandem-capture";

template <typename T>
constexpr DType DTypeOf() {
  if constexpr (std::is_same_v<T, float>) return DType::kF32;
  if constexpr (std::is_same_v<T, double>) return DType::kF64;
  if constexpr (std::is_same_v<T, int32_t>) return DType::kI32;
  if constexpr (std::is_same_v<T, int64_t>) return DType::kI64;
  return DType::kU8;
}

// Calls visit(name, column) for every column except the supports. `C` is Capture or const Capture.
template <typename C, typename Visit>
void ForEachColumn(C& c, const Visit& visit) {
  visit("group_id", c.group_id);
  visit("prompt_ids", c.prompt_ids);
  visit("prompt_offsets", c.prompt_offsets);
  visit("group", c.group);
  visit("completion_index", c.completion_index);
  visit("token_offsets", c.token_offsets);
  visit("reward", c.reward);
  visit("masked", c.masked);
  visit("finish", c.finish);
  visit("token_hash", c.token_hash);
  visit("seed", c.seed);
  visit("token_ids", c.token_ids);
  visit("behaviour_logprobs", c.behaviour_logprobs);
  visit("raw_logprobs", c.raw_logprobs);
  visit("proximal_logprobs", c.proximal_logprobs);
  visit("entropies", c.entropies);
  visit("logprob_second_moments", c.logprob_second_moments);
  visit("kept_mass", c.kept_mass);
  visit("advantages", c.advantages);
  visit("weight_version", c.weight_version);
  visit("decode_batch_size", c.decode_batch_size);
  visit("prefix_cached", c.prefix_cached);
}

// Columns that a capture may lack.
template <typename C, typename Visit>
void ForEachOptionalColumn(C& c, const Visit& visit) {
  visit("token_rewards", c.token_rewards);
  visit("turn", c.turn);
}

template <typename C, typename Visit>
void ForEachSupportColumn(C& c, const Visit& visit) {
  visit("packed_support", c.packed_support);
  visit("packed_support_offsets", c.packed_support_offsets);
}

std::vector<HostTensor> ColumnsOf(const Capture& capture) {
  std::vector<HostTensor> tensors;
  const auto add = [&](const char* name, const auto& column) {
    using T = typename std::decay_t<decltype(column)>::value_type;
    tensors.push_back({{name, DTypeOf<T>(), {static_cast<int64_t>(column.size())}},
                       std::as_bytes(std::span(column)),
                       nullptr});
  };
  ForEachColumn(capture, add);
  ForEachOptionalColumn(capture, [&](const char* name, const auto& column) {
    if (!column.empty()) add(name, column);
  });
  ForEachSupportColumn(capture, add);
  return tensors;
}

// The supports in format 1: the ids of all tokens, concatenated, and their [T + 1] offsets.
struct PlainSupports {
  std::vector<int32_t> ids;
  std::vector<int64_t> offsets;
};

absl::Status PackSupports(const PlainSupports& plain, const std::string& path, Capture& capture) {
  const std::vector<int64_t>& ends = plain.offsets;
  if (ends.size() != capture.token_ids.size() + 1 || ends.front() != 0 ||
      !std::ranges::is_sorted(ends) || ends.back() != static_cast<int64_t>(plain.ids.size())) {
    return InvalidArgument(path, ": column support_offsets does not rise from 0 to the ",
                           plain.ids.size(),
                           " entries of support_ids, with one entry a token and one more");
  }
  capture.packed_support_offsets = {0};
  for (size_t t = 0; t + 1 < ends.size(); ++t) {
    const auto ids = std::span(plain.ids).subspan(static_cast<size_t>(ends[t]),
                                                  static_cast<size_t>(ends[t + 1] - ends[t]));
    const bool rise = std::ranges::adjacent_find(ids, std::greater_equal()) == ids.end();
    if (!ids.empty() && (!rise || ids.front() < 0 || ids.back() >= kMostIds)) {
      return InvalidArgument(path, ": column support_ids: those of token ", t,
                             " are not rising ids");
    }
    const std::string bytes = PackedSupport(ids).bytes();
    capture.packed_support.insert(capture.packed_support.end(), bytes.begin(), bytes.end());
    capture.packed_support_offsets.push_back(static_cast<int64_t>(capture.packed_support.size()));
  }
  return absl::OkStatus();
}

absl::Status FillColumns(const std::vector<HostTensor>& tensors, const std::string& path,
                         int64_t format_version, Capture& capture) {
  std::map<std::string, const HostTensor*> by_name;
  for (const HostTensor& tensor : tensors) by_name[tensor.spec.name] = &tensor;
  absl::Status status;
  const auto fill = [&](const char* name, auto& column) {
    using T = typename std::decay_t<decltype(column)>::value_type;
    const auto found = by_name.find(name);
    if (found == by_name.end()) {
      status.Update(InvalidArgument(path, ": column ", name, " is missing"));
      return;
    }
    const HostTensor& tensor = *found->second;
    if (tensor.spec.dtype != DTypeOf<T>() || tensor.spec.shape.size() != 1) {
      status.Update(InvalidArgument(path, ": column ", tensor.spec.ToString(), " must be ",
                                    DTypeName(DTypeOf<T>()), " of one dimension"));
      return;
    }
    column.resize(static_cast<size_t>(tensor.spec.num_elements()));
    std::memcpy(column.data(), tensor.bytes.data(), tensor.bytes.size());
  };
  ForEachColumn(capture, fill);
  ForEachOptionalColumn(capture, [&](const char* name, auto& column) {
    if (by_name.contains(name)) fill(name, column);
  });
  if (format_version > 1) {
    ForEachSupportColumn(capture, fill);
    return status;
  }
  PlainSupports plain;
  fill("support_ids", plain.ids);
  fill("support_offsets", plain.offsets);
  return status.ok() ? PackSupports(plain, path, capture) : status;
}

json NineDigits(double value) { return JsonNumberAs<json>(value); }

json ManifestJson(const Capture& capture, const std::string& columns_digest) {
  const CaptureManifest& m = capture.manifest;
  return {{"format", kFormat},
          {"format_version", capture.turn.empty() ? kCaptureFormatVersion : kTurnsFormatVersion},
          {"created_at", m.created_at},
          {"tandem_version", m.tandem_version},
          {"source", m.source},
          {"run_id", m.run_id},
          {"step", m.step},
          {"proximal_version", m.proximal_version},
          {"model",
           {{"path", m.model_path},
            {"type", m.model_type},
            {"config_digest", m.model_config_digest},
            {"tokenizer_hash", m.tokenizer_hash}}},
          {"sampling",
           {{"temperature", NineDigits(m.sampling.temperature)},
            {"top_k", m.sampling.top_k},
            {"top_p", NineDigits(m.sampling.top_p)},
            {"min_p", NineDigits(m.sampling.min_p)},
            {"min_new_tokens", m.sampling.min_new_tokens},
            {"max_new_tokens", m.sampling.max_new_tokens}}},
          {"servers", m.servers},
          {"trainer", m.trainer},
          {"weights", m.weights},
          {"injected", m.injected},
          {"num_groups", capture.num_groups()},
          {"num_completions", capture.num_completions()},
          {"num_tokens", capture.num_tokens()},
          {"columns_digest", columns_digest}};
}

// nlohmann throws on a missing key or a wrong type; ReadCapture turns the exception into a status.
CaptureManifest ParseManifest(const json& j) {
  CaptureManifest m;
  j.at("created_at").get_to(m.created_at);
  j.at("tandem_version").get_to(m.tandem_version);
  j.at("source").get_to(m.source);
  j.at("run_id").get_to(m.run_id);
  j.at("step").get_to(m.step);
  j.at("proximal_version").get_to(m.proximal_version);
  const json& model = j.at("model");
  model.at("path").get_to(m.model_path);
  model.at("type").get_to(m.model_type);
  model.at("config_digest").get_to(m.model_config_digest);
  model.at("tokenizer_hash").get_to(m.tokenizer_hash);
  const json& sampling = j.at("sampling");
  sampling.at("temperature").get_to(m.sampling.temperature);
  sampling.at("top_k").get_to(m.sampling.top_k);
  sampling.at("top_p").get_to(m.sampling.top_p);
  sampling.at("min_p").get_to(m.sampling.min_p);
  sampling.at("min_new_tokens").get_to(m.sampling.min_new_tokens);
  sampling.at("max_new_tokens").get_to(m.sampling.max_new_tokens);
  j.at("servers").get_to(m.servers);
  j.at("trainer").get_to(m.trainer);
  j.at("weights").get_to(m.weights);
  j.at("injected").get_to(m.injected);
  return m;
}

absl::StatusOr<json> ReadManifest(const std::string& path) {
  const std::string file = path + "/" + kManifest;
  if (!fs::exists(file)) {
    return NotFound(
        fs::is_directory(path)
            ? absl::StrCat(path, " has no ", kManifest, ": its writing did not end; make it again")
            : absl::StrCat(path, ": no such capture (a directory with ", kManifest, ")"));
  }
  TANDEM_ASSIGN_OR_RETURN(const std::string text, ReadFile(file));
  json manifest = json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!manifest.is_object() || manifest.value("format", "") != kFormat) {
    return InvalidArgument(file, ": not the manifest of a capture (\"format\" must be \"", kFormat,
                           "\")");
  }
  const json& version = manifest["format_version"];
  if (version != kCaptureFormatVersion && version != kTurnsFormatVersion && version != 1) {
    return InvalidArgument(file, ": format_version ", version.dump(), ", this program reads 1, ",
                           kCaptureFormatVersion, " and ", kTurnsFormatVersion,
                           ": use the version of tandem that wrote it (",
                           manifest.value("tandem_version", "unknown"), ")");
  }
  return manifest;
}

}  // namespace

absl::Status WriteCapture(const std::string& path, const Capture& capture) {
  TANDEM_RETURN_IF_ERROR(CheckCapture(capture));
  return WriteDirectoryAtomically(path, [&](const std::string& directory) -> absl::Status {
    const std::string columns = directory + "/" + kColumns;
    TANDEM_RETURN_IF_ERROR(WriteSafetensors(columns, ColumnsOf(capture)));
    TANDEM_ASSIGN_OR_RETURN(const std::string digest, DigestFile(columns));
    const std::string manifest =
        ManifestJson(capture, digest).dump(1, ' ', false, json::error_handler_t::replace);
    return WriteFileAtomically(directory + "/" + kManifest, manifest + "\n");
  });
}

absl::StatusOr<Capture> ReadCapture(const std::string& path) {
  TANDEM_ASSIGN_OR_RETURN(const json manifest, ReadManifest(path));
  Capture capture;
  try {
    capture.manifest = ParseManifest(manifest);
  } catch (const json::exception& error) {
    return InvalidArgument(path, "/", kManifest, ": ", error.what());
  }
  const std::string columns = path + "/" + kColumns;
  const auto digest = DigestFile(columns);
  if (!digest.ok()) return DataLoss(digest.status().message());
  if (manifest.value("columns_digest", "") != *digest) {
    return DataLoss(columns, " is not the file its manifest was written for (digest ", *digest,
                    ", the manifest says ", manifest.value("columns_digest", "nothing"),
                    "): it was cut short or changed");
  }
  TANDEM_ASSIGN_OR_RETURN(const SafetensorsFile file, ReadSafetensors(columns));
  TANDEM_RETURN_IF_ERROR(FillColumns(file.tensors, columns, manifest["format_version"], capture));
  const absl::Status fits = CheckCapture(capture);
  if (!fits.ok()) return InvalidArgument(path, ": ", fits.message());
  return capture;
}

}  // namespace tandem::offpolicy
