#include "common/model/safetensors.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <limits>
#include <optional>
#include <set>
#include <string_view>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/json.h"
#include "common/base/status_macros.h"
#include "common/files/file_system.h"
#include "nlohmann/json.hpp"

namespace tandem {
namespace {

using Json = nlohmann::json;

constexpr uint64_t kLengthBytes = 8;
constexpr uint64_t kMaxHeaderBytes = 100'000'000;  // the safetensors package has the same limit
constexpr int kMaxDepth = 8;
constexpr char kMetadata[] = "__metadata__";

constexpr char kConvert[] =
    "convert it with: python -c \"from transformers import AutoModelForCausalLM as M; "
    "M.from_pretrained('DIR').save_pretrained('NEW_DIR')\"";

template <typename... Parts>
absl::Status Invalid(const std::string& path, const Parts&... parts) {
  return InvalidArgument(path, ": ", parts...);
}

// torch.save writes a zip archive; before PyTorch 1.6 it wrote a bare pickle of protocol 2.
bool LooksLikePickle(std::string_view bytes) {
  return bytes.substr(0, 4) == "PK\x03\x04" ||
         (bytes.size() > 2 && bytes[0] == '\x80' && bytes[1] >= 2 && bytes[1] <= 5);
}

// Parses an object, and rejects repeated keys, which nlohmann::json would accept silently.
absl::StatusOr<Json> ParseObject(const std::string& path, std::string_view text) {
  if (NestsDeeperThan(text, kMaxDepth)) {
    return Invalid(path, "the JSON nests deeper than ", kMaxDepth, " levels");
  }
  std::vector<std::set<std::string>> keys(kMaxDepth + 2);  // keys of the open object at each depth
  std::string repeated;
  const auto check = [&](int depth, Json::parse_event_t event, Json& value) {
    if (event == Json::parse_event_t::object_start) keys.at(depth + 1).clear();
    if (event == Json::parse_event_t::key &&
        !keys.at(depth).insert(value.get<std::string>()).second && repeated.empty()) {
      repeated = value.get<std::string>();
    }
    return true;
  };
  Json json = Json::parse(text, check, /*allow_exceptions=*/false);
  if (json.is_discarded() || !json.is_object()) return Invalid(path, "not a JSON object");
  if (!repeated.empty()) return Invalid(path, "the name '", repeated, "' stands there twice");
  return json;
}

// Reads a list of non-negative int64, or returns nullopt.
std::optional<std::vector<int64_t>> NonNegativeList(const Json& entry, const char* key) {
  const auto it = entry.find(key);
  if (it == entry.end() || !it->is_array()) return std::nullopt;
  std::vector<int64_t> values;
  for (const Json& item : *it) {
    if (!item.is_number_unsigned()) return std::nullopt;
    const uint64_t value = item.get<uint64_t>();
    if (value > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) return std::nullopt;
    values.push_back(static_cast<int64_t>(value));
  }
  return values;
}

// The number of bytes of `spec`, or nullopt if it exceeds int64, even where a later 0 in the shape
// hides that.
std::optional<int64_t> CheckedBytes(const TensorSpec& spec) {
  int64_t bytes = DTypeBytes(spec.dtype);
  bool empty = false;
  for (const int64_t size : spec.shape) {
    if (size == 0) {
      empty = true;
    } else if (__builtin_mul_overflow(bytes, size, &bytes)) {
      return std::nullopt;
    }
  }
  return empty ? 0 : bytes;
}

struct Extent {
  TensorSpec spec;
  int64_t begin = 0;
  int64_t end = 0;
};

absl::StatusOr<Extent> ReadExtent(const std::string& path, const std::string& name,
                                  const Json& entry, int64_t data_bytes) {
  if (!entry.is_object()) return Invalid(path, "tensor '", name, "' is not a JSON object");
  Extent extent;
  extent.spec.name = name;
  const auto dtype = entry.find("dtype");
  if (dtype == entry.end() || !dtype->is_string()) {
    return Invalid(path, "tensor '", name, "' has no dtype");
  }
  const absl::StatusOr<DType> known = DTypeFromName(dtype->get<std::string>());
  if (!known.ok()) return Invalid(path, "tensor '", name, "': ", known.status().message());
  extent.spec.dtype = *known;
  std::optional<std::vector<int64_t>> shape = NonNegativeList(entry, "shape");
  if (!shape) return Invalid(path, "tensor '", name, "' needs a shape of non-negative integers");
  extent.spec.shape = *std::move(shape);
  const std::optional<int64_t> bytes = CheckedBytes(extent.spec);
  if (!bytes) return Invalid(path, "the shape of ", extent.spec.ToString(), " overflows 64 bits");
  const std::optional<std::vector<int64_t>> offsets = NonNegativeList(entry, "data_offsets");
  if (!offsets || offsets->size() != 2) {
    return Invalid(path, "tensor '", name, "' needs data_offsets [begin, end]");
  }
  extent.begin = (*offsets)[0];
  extent.end = (*offsets)[1];
  if (extent.begin > extent.end || extent.end > data_bytes) {
    return Invalid(path, "tensor '", name, "' lies at [", extent.begin, ", ", extent.end,
                   "), outside the file's ", data_bytes, " bytes of data; is the file truncated?");
  }
  if (extent.end - extent.begin != *bytes) {
    return Invalid(path, extent.spec.ToString(), " takes ", *bytes, " bytes, but its offsets span ",
                   extent.end - extent.begin);
  }
  return extent;
}

absl::Status CheckContiguous(const std::string& path, const std::vector<Extent>& extents,
                             int64_t data_bytes) {
  int64_t at = 0;
  for (const Extent& extent : extents) {
    if (extent.begin < at) {
      return Invalid(path, "tensor '", extent.spec.name, "' overlaps the one before it");
    }
    if (extent.begin > at) {
      return Invalid(path, "a hole of ", extent.begin - at, " bytes before tensor '",
                     extent.spec.name, "'");
    }
    at = extent.end;
  }
  if (at != data_bytes) {
    return Invalid(path, "a hole of ", data_bytes - at, " bytes after the last tensor");
  }
  return absl::OkStatus();
}

absl::StatusOr<std::map<std::string, std::string>> ReadMetadata(const std::string& path,
                                                                const Json& json) {
  if (!json.is_object()) return Invalid(path, kMetadata, " is not a JSON object");
  std::map<std::string, std::string> metadata;
  for (const auto& [key, value] : json.items()) {
    if (!value.is_string()) return Invalid(path, kMetadata, " '", key, "' is not a string");
    metadata[key] = value.get<std::string>();
  }
  return metadata;
}

// A view of the tensor's bytes in the mapping, or a copy if they are not aligned for their dtype,
// which happens in files of other programs only.
HostTensor ViewTensor(Extent extent, std::span<const std::byte> data,
                      const std::shared_ptr<const MappedFile>& file) {
  const std::span<const std::byte> bytes = data.subspan(extent.begin, extent.end - extent.begin);
  const auto address = reinterpret_cast<uintptr_t>(bytes.data());
  if (address % DTypeBytes(extent.spec.dtype) == 0) {
    return {.spec = std::move(extent.spec), .bytes = bytes, .owner = file};
  }
  auto copy = std::make_shared<const std::vector<std::byte>>(bytes.begin(), bytes.end());
  return {.spec = std::move(extent.spec), .bytes = *copy, .owner = copy};
}

// The JSON text of the header. The data starts right after it.
absl::StatusOr<std::string_view> HeaderText(const std::string& path,
                                            std::span<const std::byte> bytes) {
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  if (text.size() < kLengthBytes) {
    return Invalid(path, "is ", text.size(), " bytes long; a safetensors file has at least ",
                   kLengthBytes);
  }
  uint64_t header_bytes = 0;  // little-endian, as is this machine
  std::memcpy(&header_bytes, text.data(), kLengthBytes);
  if (header_bytes > kMaxHeaderBytes || header_bytes > text.size() - kLengthBytes) {
    if (LooksLikePickle(text)) {
      return Invalid(path,
                     "is a pickle file, and loading a pickle runs the code in it; only "
                     "safetensors is read; ",
                     kConvert);
    }
    return Invalid(path, "the header claims ", header_bytes, " bytes, the file has ", text.size(),
                   " and the limit is ", kMaxHeaderBytes, "; is the file truncated?");
  }
  const std::string_view header = text.substr(kLengthBytes, header_bytes);
  if (header.empty() || header.front() != '{') {
    return Invalid(path, "the header does not start with '{'; not a safetensors file");
  }
  return header;
}

// Returns DIRECTORY/FILE, or an error if `file` is more than a plain file name.
absl::StatusOr<std::string> ShardPath(const std::string& index_path, const std::string& directory,
                                      const std::string& file) {
  if (file.empty() || file == "." || file == ".." || absl::StrContains(file, '/') ||
      absl::StrContains(file, '\0')) {
    return Invalid(index_path, "names the file '", file, "', which is outside the directory");
  }
  return absl::StrCat(directory, "/", file);
}

absl::StatusOr<std::vector<HostTensor>> ReadShards(const std::string& directory,
                                                   const std::string& index_path) {
  TANDEM_ASSIGN_OR_RETURN(const std::string text, ReadFile(index_path));
  TANDEM_ASSIGN_OR_RETURN(const Json index, ParseObject(index_path, text));
  const auto weight_map = index.find("weight_map");
  if (weight_map == index.end() || !weight_map->is_object()) {
    return Invalid(index_path, "has no weight_map object");
  }
  std::map<std::string, std::set<std::string>> names_by_shard;
  for (const auto& [name, file] : weight_map->items()) {
    if (!file.is_string()) return Invalid(index_path, "the shard of '", name, "' is not a string");
    names_by_shard[file.get<std::string>()].insert(name);
  }
  std::vector<HostTensor> tensors;
  std::set<std::string> found;
  for (auto& [file, missing] : names_by_shard) {
    TANDEM_ASSIGN_OR_RETURN(const std::string path, ShardPath(index_path, directory, file));
    TANDEM_ASSIGN_OR_RETURN(SafetensorsFile shard, ReadSafetensors(path));
    for (HostTensor& tensor : shard.tensors) {
      missing.erase(tensor.spec.name);
      if (!found.insert(tensor.spec.name).second) {
        return Invalid(path, "tensor '", tensor.spec.name, "' is in another shard as well");
      }
      tensors.push_back(std::move(tensor));
    }
    if (!missing.empty()) {
      return Invalid(path, "lacks '", *missing.begin(), "', which ", index_path, " puts there (",
                     missing.size(), " such)");
    }
  }
  return tensors;
}

}  // namespace

absl::StatusOr<SafetensorsFile> ReadSafetensors(const std::string& path) {
  TANDEM_ASSIGN_OR_RETURN(const std::shared_ptr<const MappedFile> file, MappedFile::Open(path));
  TANDEM_ASSIGN_OR_RETURN(const std::string_view header, HeaderText(path, file->bytes()));
  TANDEM_ASSIGN_OR_RETURN(const Json json, ParseObject(path, header));
  const std::span<const std::byte> data = file->bytes().subspan(kLengthBytes + header.size());
  const auto data_bytes = static_cast<int64_t>(data.size());

  SafetensorsFile result;
  std::vector<Extent> extents;
  for (const auto& [name, entry] : json.items()) {
    if (name == kMetadata) {
      TANDEM_ASSIGN_OR_RETURN(result.metadata, ReadMetadata(path, entry));
      continue;
    }
    TANDEM_ASSIGN_OR_RETURN(Extent extent, ReadExtent(path, name, entry, data_bytes));
    extents.push_back(std::move(extent));
  }
  std::stable_sort(extents.begin(), extents.end(), [](const Extent& a, const Extent& b) {
    return std::pair(a.begin, a.end) < std::pair(b.begin, b.end);
  });
  TANDEM_RETURN_IF_ERROR(CheckContiguous(path, extents, data_bytes));
  for (Extent& extent : extents) {
    result.tensors.push_back(ViewTensor(std::move(extent), data, file));
  }
  return result;
}

absl::StatusOr<std::vector<HostTensor>> ReadModelTensors(const std::string& directory) {
  const std::string single = absl::StrCat(directory, "/model.safetensors");
  const std::string index = absl::StrCat(single, ".index.json");
  std::error_code ignored;
  if (std::filesystem::exists(single, ignored)) {
    TANDEM_ASSIGN_OR_RETURN(SafetensorsFile file, ReadSafetensors(single));
    return std::move(file.tensors);
  }
  if (std::filesystem::exists(index, ignored)) return ReadShards(directory, index);
  for (const char* pickle : {"pytorch_model.bin", "pytorch_model.bin.index.json"}) {
    const std::string path = absl::StrCat(directory, "/", pickle);
    if (!std::filesystem::exists(path, ignored)) continue;
    return NotFound(directory, ": has ", pickle,
                    " but no model.safetensors; loading a pickle runs the code in "
                    "it, so only safetensors is read; ",
                    kConvert);
  }
  return NotFound(directory,
                  ": neither model.safetensors nor model.safetensors.index.json is there");
}

namespace {

// The first bytes of the file: the length of its header, and the header.
absl::StatusOr<std::string> MakeHeader(const std::string& path,
                                       const std::vector<const TensorSpec*>& specs,
                                       const std::map<std::string, std::string>& metadata) {
  nlohmann::ordered_json header;
  header[kMetadata] = metadata;
  header[kMetadata].emplace("format", "pt");
  int64_t offset = 0;
  for (const TensorSpec* const spec : specs) {
    const std::optional<int64_t> bytes = CheckedBytes(*spec);
    if (!bytes) return Invalid(path, spec->ToString(), " is too large");
    if (header.contains(spec->name)) return Invalid(path, "'", spec->name, "' is given twice");
    header[spec->name] = {{"dtype", DTypeName(spec->dtype)},
                          {"shape", spec->shape},
                          {"data_offsets", {offset, offset + *bytes}}};
    offset += *bytes;
  }
  std::string text = header.dump(-1, ' ', false, Json::error_handler_t::replace);
  text.append((kLengthBytes - text.size() % kLengthBytes) % kLengthBytes, ' ');
  const uint64_t length = text.size();
  return std::string(reinterpret_cast<const char*>(&length), sizeof(length)) + text;
}

absl::Status CheckBytes(const std::string& path, const HostTensor& tensor) {
  const std::optional<int64_t> bytes = CheckedBytes(tensor.spec);
  if (bytes && *bytes == static_cast<int64_t>(tensor.bytes.size())) return absl::OkStatus();
  return Invalid(path, tensor.spec.ToString(), " has ", tensor.bytes.size(), " bytes");
}

}  // namespace

absl::Status WriteSafetensors(const std::string& path, std::span<const TensorSource> tensors,
                              const std::map<std::string, std::string>& metadata) {
  std::vector<const TensorSpec*> specs;
  for (const TensorSource& tensor : tensors) specs.push_back(&tensor.spec);
  TANDEM_ASSIGN_OR_RETURN(const std::string header, MakeHeader(path, specs, metadata));
  TANDEM_ASSIGN_OR_RETURN(const std::unique_ptr<AtomicFileWriter> writer,
                          AtomicFileWriter::Create(path));
  TANDEM_RETURN_IF_ERROR(writer->Write(std::as_bytes(std::span(header))));
  for (const TensorSource& source : tensors) {
    TANDEM_ASSIGN_OR_RETURN(const HostTensor tensor, source.read());
    TANDEM_RETURN_IF_ERROR(CheckBytes(path, {source.spec, tensor.bytes, nullptr}));
    TANDEM_RETURN_IF_ERROR(writer->Write(tensor.bytes));
  }
  return writer->Commit();
}

absl::Status WriteSafetensors(const std::string& path, std::span<const HostTensor> tensors,
                              const std::map<std::string, std::string>& metadata) {
  std::vector<TensorSource> sources;
  for (const HostTensor& tensor : tensors) {
    TANDEM_RETURN_IF_ERROR(CheckBytes(path, tensor));
    sources.push_back(Present(tensor));
  }
  return WriteSafetensors(path, sources, metadata);
}

}  // namespace tandem
