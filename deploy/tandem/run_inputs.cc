#include "deploy/tandem/run_inputs.h"

#include <cerrno>
#include <cstring>
#include <string>
#include <vector>

#include <unistd.h>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "deploy/tandem/model_input.h"
#include "trainer/run_error.h"

namespace tandem::front {

absl::Status CheckInputs(const RunFile& file) {
  std::vector<std::string> missing;
  for (const std::string& path : file.input_paths()) {
    if (path == file.trainer_model() || path == file.server_model()) {
      const absl::Status model = CheckModelDirectory(path);
      if (!model.ok()) missing.emplace_back(model.message());
    } else if (::access(path.c_str(), R_OK) != 0) {
      missing.push_back(absl::StrCat(path, ": ", std::strerror(errno)));
    }
  }
  if (missing.empty()) return absl::OkStatus();
  return trainer::WithExitCode(absl::NotFoundError(absl::StrJoin(missing, "\n")),
                               ExitCode::kBadModelOrData);
}

}  // namespace tandem::front
