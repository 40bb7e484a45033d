// KtoObjective: KTO's loss over single completions with a label (preference_loss.h). Used by
// `tandem train-preferences --loss kto`.
//
// The reference point z0 is the mean log ratio, over the batch of all ranks, of mismatched
// sequences: the prompt of a row with the completion of another. Which one is fixed by the order of
// the file, so that the reference policy scores them once: rows are taken in runs of `run_length`,
// and a prompt gets the completion of the row before it in its run, the first one that of the last
// (MismatchedCompletion). TRL does the same with runs of a device's batch.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "trainer/preferences/preference_data.h"
#include "trainer/preferences/preference_loss.h"
#include "trainer/supervised/supervised_objective.h"

namespace tandem::trainer {

// For each of `count` rows, the row whose completion its prompt gets. A last run of one row gets
// that of the row before it; a single row has none and gets itself. `run_length` is at least 2.
std::vector<int64_t> MismatchedRows(int64_t count, int64_t run_length);

class KtoObjective : public SupervisedObjective {
 public:
  // `reference_logprobs`: under the reference policy, of the tokens of each row's completion and
  // then of its mismatched one, row by row (WithMismatched).
  KtoObjective(std::vector<LabelledCompletion> examples, int64_t run_length,
               std::span<const float> reference_logprobs, const PreferenceLossOptions& options);

  int64_t num_examples() const override { return static_cast<int64_t>(examples_.size()); }
  GroupTokens Example(int64_t example) const override;
  std::optional<GroupTokens> SequenceBefore(int64_t example) const override;
  double NumberBefore(int64_t example, const ExampleScores& scores) const override;
  void BeginBatch(std::span<const int64_t> examples, double sum_before) override;
  double Loss(int64_t example, const ExampleScores& scores, ExampleSlopes* slopes,
              std::span<MetricSum> metrics) const override;
  std::vector<std::string> MetricNames() const override;

 private:
  const std::vector<LabelledCompletion> examples_;
  const std::vector<int64_t> mismatched_;
  const PreferenceLossOptions options_;
  std::vector<double> reference_, reference_mismatched_;  // sums of log-probs
  double num_examples_of_batch_ = 0;
  double reference_point_ = 0;  // z0 of the batch
};

// The prompt of a row with its completion and its mismatched one.
GroupTokens WithMismatched(const std::vector<LabelledCompletion>& examples,
                           const std::vector<int64_t>& mismatched, int64_t example);

}  // namespace tandem::trainer
