// CaptureWriter: captures of a run under captures/step_N, and the masters of the weight versions they
// need under captures/weights, so that the drift lab can score the same tokens again at every version
// that drew or re-scored them. Used by trainer.cc, from its thread.
//
// Memory: a copy of the masters for each version a coming capture may need.
#ifndef TANDEM_TRAINER_CAPTURE_WRITER_H_
#define TANDEM_TRAINER_CAPTURE_WRITER_H_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "common/base/options.h"
#include "common/base/weight_version.h"
#include "common/offpolicy/capture.h"
#include "common/weights/digest.h"
#include "common/weights/host_tensor.h"
#include "proto/experience.pb.h"
#include "trainer/group_capture.h"

namespace tandem::trainer {

struct CaptureOptions {
  int64_t every = 0;  // train steps; 0: none
  bool weights = true;
  int64_t keep = 0;   // captures; 0: all
  int64_t versions_before = 1;  // of every version that a capture needs: what a server may run in its place
};
void BindOptions(OptionBinder& binder, CaptureOptions& options);

class CaptureWriter {
 public:
  // `directory`: captures/ of the run. `oldest_lag`: how many versions tokens may lag behind.
  CaptureWriter(std::string directory, const CaptureOptions& options, int64_t oldest_lag)
      : directory_(std::move(directory)), options_(options), oldest_lag_(oldest_lag) {}

  bool Due(int64_t step) const { return options_.every > 0 && step % options_.every == 0; }

  // Copies the masters of `version` if a coming capture may need them, and forgets those that none
  // will. Call with every version, before it is trained any further. `rounding`: of its cast.
  void Remember(WeightVersion version, const std::vector<HostTensor>& masters,
                const std::string& rounding);

  // What servers were proven to run as `version`.
  void NoteServed(WeightVersion version, const DigestMap& served);

  // Writes captures/step_N of the batch that train step `manifest.step` consumed. Adds the weights of
  // the versions in it to the manifest.
  //   RESOURCE_EXHAUSTED, UNAVAILABLE  the disk; captures written before stay whole
  absl::Status Write(offpolicy::CaptureManifest manifest,
                     const std::vector<experience::v1::ScoredGroup>& groups,
                     const ProximalLogprobs& proximal);

 private:
  struct Version {
    std::string rounding;
    DigestMap served;
    std::vector<HostTensor> masters;  // empty: no capture needs them
  };

  // How far behind a train step the oldest weights are that its capture carries.
  int64_t Reach() const { return oldest_lag_ + options_.versions_before; }
  bool MayBeNeeded(int64_t version) const;
  absl::Status WriteMasters(const std::vector<HostTensor>& masters,
                            offpolicy::CapturedWeights& weights) const;
  void RemoveStale() const;

  const std::string directory_;
  const CaptureOptions options_;
  const int64_t oldest_lag_;
  std::map<int64_t, Version> versions_;
};

}  // namespace tandem::trainer

#endif  // TANDEM_TRAINER_CAPTURE_WRITER_H_
