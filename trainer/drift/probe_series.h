// ProbeSeries: what both sides made of the probe set, version by version, and the drift/probe/ and
// drift/visitation/ numbers of a train step (docs/attribution.md). Pure but for what it remembers;
// used by DriftMonitor.
//
// Scores of one version meet by version, not by time: servers that are held back are compared with
// the trainer as it was at their version, so staleness is no fault here.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "common/drift/delivery_trend.h"
#include "trainer/metrics/metrics_line.h"

namespace tandem::trainer {

struct TrainerProbe {
  std::vector<float> masters;  // [T] log-probs under its masters
  std::vector<float> served;   // [T] under the same weights as a push sends them
  double distance = 0;         // ||masters - initial masters||
  double push_distance = 0;    // ||masters - masters before||; NaN: unknown
};

class ProbeSeries {
 public:
  // `completion` [T]: ProbeSet::CompletionOfTokens.
  explicit ProbeSeries(std::vector<int32_t> completion);

  // Scores of `version`. `server`: its place in trainer.servers; its address may change at a
  // resume.
  void AddTrainer(int64_t version, TrainerProbe scores);
  void AddServer(int64_t version, int server, std::vector<float> logprobs);
  void ForgetBefore(int64_t version);  // scores; pushes stay

  // Adds drift/probe/: the trainer at `version` against each of its servers at the version it has,
  // and what the pushes so far say of delivery. Nothing without scores.
  void Report(int64_t version, MetricsLine* line) const;

  // Adds drift/visitation/: the step's own drift, as `line` has it, less the probe's under the
  // versions that drew the step's tokens. `lags`: versions behind `version` -> trained tokens.
  // Nothing where one was not probed.
  void ReportVisitation(int64_t version, const std::map<int64_t, int64_t>& lags,
                        MetricsLine* line) const;

  // The pushes that AddServer completed since the last call, a JSON object each, for `step`; and
  // back, for a resumed run.
  //   DATA_LOSS  not such a line
  std::vector<std::string> TakePushLines(int64_t step);
  absl::Status RestorePush(std::string_view line);

 private:
  struct Pushes {
    std::vector<offpolicy::ProbedPush> all;
    size_t num_written = 0;
  };
  using ByServer = std::map<int, std::vector<float>>;

  // The version under which the trainer agrees best with a server.
  struct Nearest {
    int64_t version = 0;
    double square = 0;  // mean of (trainer - server)^2
  };

  void NoteNearest(int server, std::span<const float> logprobs);
  void ReportDelivery(MetricsLine* line) const;

  const std::vector<int32_t> completion_;
  std::vector<double> num_tokens_;  // [S]
  std::map<int64_t, TrainerProbe> trainer_;
  std::map<int64_t, ByServer> servers_;
  std::map<int64_t, std::vector<float>>
      as_served_;                   // the trainer's, of the first version and recent ones
  std::map<int, int64_t> newest_;   // version by server
  std::map<int, Nearest> nearest_;  // of its newest scores
  std::map<int, Pushes> pushes_;    // by server, in order of version
};

}  // namespace tandem::trainer
