#include "trainer/foreign/weights_directory.h"

#include <algorithm>
#include <filesystem>
#include <system_error>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/files/file_system.h"
#include "common/model/safetensors.h"

namespace tandem::trainer {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kVersionPrefix = "version_";
constexpr size_t kKeptVersions = 2;

// Weights, in whatever form, are not taken over from the model's directory.
bool IsWeights(const fs::path& file) {
  const std::string name = file.filename().string();
  return name.ends_with(".safetensors") || name.ends_with(".bin") || name.ends_with(".pt") ||
         name.ends_with(".pth") || name.ends_with(".gguf") || name.ends_with(".index.json");
}

// The version of a directory that Write made; -1 for others.
int64_t VersionOf(const fs::path& directory) {
  const std::string name = directory.filename().string();
  int64_t version = -1;
  return name.starts_with(kVersionPrefix) &&
                 absl::SimpleAtoi(name.substr(kVersionPrefix.size()), &version)
             ? version
             : -1;
}

}  // namespace

WeightsDirectory::WeightsDirectory(const std::string& model, const std::string& parent)
    : model_(model), parent_(parent) {}

void WeightsDirectory::Stage(int64_t version, std::vector<TensorSpec> tensors) {
  version_ = version;
  tensors_ = std::move(tensors);
  bytes_.clear();
  for (const TensorSpec& tensor : tensors_) {
    bytes_.emplace_back(static_cast<size_t>(tensor.num_bytes()), '\0');
  }
  num_received_.assign(tensors_.size(), 0);
}

void WeightsDirectory::Drop() { Stage(-1, {}); }

absl::Status WeightsDirectory::Receive(int64_t version, int64_t tensor, int64_t offset,
                                       std::span<const std::byte> bytes) {
  if (version_ < 0 || version != version_) {
    return FailedPrecondition("no update of version ", version, " is in progress");
  }
  if (tensor < 0 || tensor >= std::ssize(bytes_)) {
    return OutOfRange("tensor ", tensor, " of ", bytes_.size());
  }
  std::string& place = bytes_[static_cast<size_t>(tensor)];
  if (offset < 0 || offset + std::ssize(bytes) > std::ssize(place)) {
    return OutOfRange("bytes ", offset, " to ", offset + std::ssize(bytes), " of ", place.size(),
                      " of ", tensors_[static_cast<size_t>(tensor)].name);
  }
  std::ranges::copy(bytes, reinterpret_cast<std::byte*>(place.data()) + offset);
  num_received_[static_cast<size_t>(tensor)] += std::ssize(bytes);
  return absl::OkStatus();
}

const std::string* WeightsDirectory::bytes(const std::string& name) const {
  const auto found = std::ranges::find(tensors_, name, &TensorSpec::name);
  return found == tensors_.end() ? nullptr : &bytes_[static_cast<size_t>(found - tensors_.begin())];
}

absl::Status WeightsDirectory::CheckWhole() const {
  for (size_t i = 0; i < tensors_.size(); ++i) {
    if (num_received_[i] >= std::ssize(bytes_[i])) continue;
    return DataLoss(num_received_[i], " of ", bytes_[i].size(), " bytes of ", tensors_[i].name,
                    " arrived");
  }
  return absl::OkStatus();
}

absl::Status WeightsDirectory::Fill(const std::string& directory) const {
  std::error_code error;
  for (const fs::directory_entry& entry : fs::directory_iterator(model_, error)) {
    if (!entry.is_regular_file() || IsWeights(entry.path())) continue;
    fs::copy_file(entry.path(), fs::path(directory) / entry.path().filename(), error);
    if (error) return Unavailable(entry.path().string(), ": ", error.message());
  }
  if (error) return Unavailable(model_, ": ", error.message());
  std::vector<HostTensor> tensors;
  for (size_t i = 0; i < tensors_.size(); ++i) {
    tensors.push_back({tensors_[i], std::as_bytes(std::span(bytes_[i])), nullptr});
  }
  return WriteSafetensors(directory + "/model.safetensors", tensors);
}

absl::Status WeightsDirectory::RemoveEarlier() const {
  std::vector<int64_t> versions;
  std::error_code error;
  for (const fs::directory_entry& entry : fs::directory_iterator(parent_, error)) {
    if (const int64_t version = VersionOf(entry.path()); version >= 0) versions.push_back(version);
  }
  std::ranges::sort(versions);
  for (size_t i = 0; i + kKeptVersions < versions.size(); ++i) {
    fs::remove_all(absl::StrCat(parent_, "/", std::string(kVersionPrefix), versions[i]), error);
    if (error) return Unavailable(parent_, ": ", error.message());
  }
  return absl::OkStatus();
}

absl::StatusOr<std::string> WeightsDirectory::Write(const DigestMap& digests, DigestMap* written) {
  TANDEM_RETURN_IF_ERROR(CheckWhole());
  TANDEM_RETURN_IF_ERROR(MakeDirectories(parent_));
  const std::string path = absl::StrCat(parent_, "/", std::string(kVersionPrefix), version_);
  TANDEM_RETURN_IF_ERROR(WriteDirectoryAtomically(
      path, [this](const std::string& directory) { return Fill(directory); }));
  TANDEM_ASSIGN_OR_RETURN(const std::vector<HostTensor> held, ReadModelTensors(path));
  *written = DigestTensors(held);
  for (const auto& [name, digest] : digests) {
    const auto found = written->find(name);
    if (found != written->end() && found->second == digest) continue;
    return DataLoss(path, " does not hold ", name, " as it was published");
  }
  TANDEM_RETURN_IF_ERROR(RemoveEarlier());
  return path;
}

}  // namespace tandem::trainer
