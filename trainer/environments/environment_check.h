// The processes that play environments, started and asked before a run begins: whether they can play,
// which tools the model is told of, and which rows of data they make. Used by environment_worker.cc,
// run_setup.cc and the command line.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/process/line_process.h"
#include "trainer/data/data_options.h"
#include "trainer/environments/environment_options.h"

namespace tandem::trainer {

LineProgram EnvironmentProgram(const EnvironmentOptions& options);

// Starts `process`, says `hello` (EnvironmentHello) and waits until it can play. Returns its tools,
// a JSON array or empty. `traceback`: of a failure.
//   UNAVAILABLE          no interpreter, or the process ended (named)
//   FAILED_PRECONDITION  what cannot be loaded, with the place
//   CANCELLED            the end sign of `process` was given
absl::StatusOr<std::string> LoadEnvironment(LineProcess& process, std::string hello,
                                            std::string* traceback);

// Loads the environment in a process that ends with the call. Returns its tools. Errors as
// LoadEnvironment, with the traceback. `row_json`: a line of the data, whose columns a reset may ask
// for; empty: unknown.
absl::StatusOr<std::string> CheckEnvironment(const EnvironmentOptions& options,
                                             const std::string& chat_template,
                                             const std::string& row_json = "");

// `data` with the tools of the environment, which is loaded for that, in front of each prompt. `data`
// alone where there is no environment.
//   INVALID_ARGUMENT  data.tools_file beside an environment that has tools
//   errors of CheckEnvironment
absl::StatusOr<DataOptions> WithTools(DataOptions data, const EnvironmentOptions& environment,
                                      const std::string& model_directory);

// Rows of data for episodes with seeds from `first_seed` on, each a JSON object.
//   errors of CheckEnvironment; ABORTED: the environment gives none (says why)
absl::StatusOr<std::vector<std::string>> EnvironmentRows(const EnvironmentOptions& options,
                                                         int64_t count, int64_t first_seed);

// The text of a model directory's chat template (chat_template.jinja, else that of
// tokenizer_config.json); empty: it has none, or several.
std::string ReadChatTemplate(const std::string& model_directory);

}  // namespace tandem::trainer
