// RefereeModel: the weights with which the referee scores records, and where there is one a second
// set (an earlier checkpoint, the base of an adapter). Used by referee_forward.cc. The header is free
// of LibTorch.
//
// Memory: 4 bytes a parameter and directory. Immutable after Load; thread-compatible.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/model/model_config.h"

namespace tandem::drift {

struct RefereeTensors;  // referee_tensors.h

class RefereeModel {
 public:
  // `other` is a model directory or empty.
  //   NOT_FOUND         no such directory, and no model of that name in the cache of the Hub's client
  //   INVALID_ARGUMENT  as ReadModelTensors; `other` has other shapes
  //   UNIMPLEMENTED     an architecture that this project does not have (named)
  static absl::StatusOr<std::unique_ptr<RefereeModel>> Load(const std::string& model,
                                                            const std::string& other);
  ~RefereeModel();

  const ModelConfig& config() const { return config_; }
  const RefereeTensors& tensors() const { return *tensors_; }
  const RefereeTensors* other() const { return other_.get(); }  // null: none
  const std::string& directory() const { return directory_; }
  const std::string& other_directory() const { return other_directory_; }
  // The tensors of which the two directories differ, by name. Empty without a second one.
  const std::vector<std::string>& differing() const { return differing_; }
  // File of a sharded checkpoint by tensor name; of the second directory or else the first. Empty
  // where neither is sharded.
  const std::map<std::string, std::string>& shards() const { return shards_; }

 private:
  RefereeModel() = default;
  ModelConfig config_;
  std::string directory_, other_directory_;
  std::unique_ptr<RefereeTensors> tensors_, other_;
  std::vector<std::string> differing_;
  std::map<std::string, std::string> shards_;
};

// The directory of a model that is named by its path or by its name on the Hugging Face Hub
// (common/hub/resolve.h).
//   NOT_FOUND  a file; or as hub::ResolveModel, whose message says how to fetch it
absl::StatusOr<std::string> ResolveModelDirectory(const std::string& name);

}  // namespace tandem::drift
