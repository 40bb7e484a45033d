// CaptureWriter: captures of a run under captures/step_N, and the masters of the weight versions
// they need under captures/weights, so that the drift lab can score the same tokens again at every
// version that drew or re-scored them. Used by trainer.cc, from its thread.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "common/capture/capture.h"
#include "common/options/options.h"
#include "common/weights/host_tensor.h"
#include "proto/experience.pb.h"
#include "trainer/drift/recent_weights.h"
#include "trainer/experience/group_capture.h"

namespace tandem::trainer {

struct CaptureOptions {
  int64_t every = 0;   // train steps; 0: none
  int64_t spread = 0;  // captures spread evenly over the run, first and last step included; 0: none
  bool weights = true;
  int64_t keep = 0;  // captures; 0: all
  int64_t versions_before =
      1;  // of every version that a capture needs: what a server may run in its place
};
void BindOptions(OptionBinder& binder, CaptureOptions& options);

class CaptureWriter {
 public:
  // `directory`: captures/ of the run, which has `num_steps` train steps. `oldest_lag`: how many
  // versions tokens may lag behind.
  CaptureWriter(std::string directory, const CaptureOptions& options, int64_t num_steps,
                int64_t oldest_lag)
      : directory_(std::move(directory)),
        options_(options),
        num_steps_(num_steps),
        oldest_lag_(oldest_lag) {}

  bool Due(int64_t step) const;

  // How many versions the oldest weights of a capture lie behind its train step.
  int64_t Reach() const { return oldest_lag_ + options_.versions_before; }
  // Whether the capture of train step `step` needs masters.
  bool NeedsMasters(int64_t step) const { return options_.weights && Due(step); }

  // Writes captures/step_N of the batch that train step `manifest.step` consumed, with the proximal
  // log-probs and the advantages that its loss had. Adds the weights
  // of the versions in it to the manifest, as far as `recent` has them.
  //   RESOURCE_EXHAUSTED, UNAVAILABLE  the disk; captures written before stay whole
  //   any code of reading the masters
  absl::Status Write(offpolicy::CaptureManifest manifest,
                     const std::vector<experience::v1::ScoredGroup>& groups,
                     const PerToken& proximal, const PerToken& advantages,
                     const RecentWeights& recent);

 private:
  absl::Status WriteMasters(const std::vector<TensorSource>& masters,
                            offpolicy::CapturedWeights& weights) const;
  absl::Status WriteAdapter(const KeptMasters& kept, offpolicy::CapturedWeights& weights) const;
  void RemoveStale() const;

  const std::string directory_;
  const CaptureOptions options_;
  const int64_t num_steps_, oldest_lag_;
};

}  // namespace tandem::trainer
