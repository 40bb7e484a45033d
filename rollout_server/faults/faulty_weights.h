// FaultyWeights: the weights that serve in place of the claimed ones when a fault acts on weights:
// those of an earlier version, between two versions, or with one tensor not updated. It keeps the
// versions that it needs in host memory and packs at the install, which therefore takes as long as
// packing. Use from the engine thread only.
#pragma once

#include <deque>
#include <memory>
#include <vector>

#include "common/model/model_config.h"
#include "common/model/quantisation_plan.h"
#include "common/weights/host_tensor.h"
#include "rollout_server/engine/forward/model_weights.h"
#include "rollout_server/engine/forward/staged_weights.h"
#include "rollout_server/faults/engine_faults.h"

namespace tandem::rollout {

// Copies that own their bytes, since a staging buffer is reused.
std::vector<HostTensor> CopyTensors(const std::vector<HostTensor>& tensors);

// (1 - a) x + a y, each element rounded to the tensors' dtype (F32 or BF16): exactly x at 0 and y
// at 1.
HostTensor BlendTensors(const HostTensor& x, const HostTensor& y, double a);

class FaultyWeights {
 public:
  // `plan` is what the engine claims. `first`: version 0, in ModelTensors order and the engine's
  // dtype, owned. Requires faults.weights() and CheckFaults.
  FaultyWeights(const ModelConfig& config, const QuantisationPlan& plan, const EngineFaults& faults,
                std::vector<HostTensor> first);

  // The next version; `tensors` as the first ones.
  void Install(std::vector<HostTensor> tensors);

  const ModelWeights& served() const { return *served_; }
  // What served before the last install; null before the first one, and without a stale prefix.
  const ModelWeights* before() const { return before_.get(); }

 private:
  std::vector<HostTensor> ServedTensors() const;
  const HostTensor& Back(size_t tensor, int64_t num_installs) const;
  void Pack();

  const ModelConfig config_;
  const QuantisationPlan plan_;
  const EngineFaults faults_;
  const DType dtype_;
  const std::vector<HostTensor> first_;
  std::deque<std::vector<HostTensor>> history_;  // the newest last
  std::unique_ptr<ModelWeights> served_, before_;
};

}  // namespace tandem::rollout
