// CheckInputs: whether the models and files that a run file names are there, before anything is
// started.
#ifndef TANDEM_DEPLOY_TANDEM_RUN_INPUTS_H_
#define TANDEM_DEPLOY_TANDEM_RUN_INPUTS_H_

#include "absl/status/status.h"
#include "deploy/tandem/run_file.h"

namespace tandem::front {

// Of both models: config, tokenizer and weights; of data, probe, certificates and tokens: that the
// file can be opened. What they hold is their readers' to judge.
//   NOT_FOUND with exit code 3  everything that is missing, one a line
absl::Status CheckInputs(const RunFile& file);

}  // namespace tandem::front

#endif  // TANDEM_DEPLOY_TANDEM_RUN_INPUTS_H_
