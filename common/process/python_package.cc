#include "common/process/python_package.h"

#include <cstdlib>
#include <filesystem>
#include <system_error>

#include "absl/strings/str_cat.h"

namespace tandem {
namespace {

constexpr char kMark[] =
    "tandem_rl/environments/worker.py";  // a file of the package that is asked for

}  // namespace

std::string FindPythonPackageFolder() {
  namespace fs = std::filesystem;
  std::error_code ignored;
  const fs::path program = fs::read_symlink("/proc/self/exe", ignored);
  for (fs::path folder = program.parent_path(); !folder.empty(); folder = folder.parent_path()) {
    for (const char* const below : {"python", "share/tandem/python"}) {
      if (fs::exists(folder / below / kMark, ignored)) return (folder / below).string();
    }
    if (folder == folder.root_path()) break;
  }
  return "";
}

std::string DefaultPython() {
  const char* const chosen = std::getenv("TANDEM_PYTHON");
  if (chosen != nullptr && *chosen != '\0') return chosen;
  const char* const environment = std::getenv("VIRTUAL_ENV");
  std::error_code ignored;
  if (environment != nullptr && *environment != '\0') {
    const std::string python = absl::StrCat(environment, "/bin/python3");
    if (std::filesystem::exists(python, ignored)) return python;
  }
  return "python3";
}

std::string PythonPathVariable(const std::string& folder) {
  const char* const present = std::getenv("PYTHONPATH");
  const bool has_more = present != nullptr && *present != '\0';
  return absl::StrCat("PYTHONPATH=", folder, has_more ? ":" : "", has_more ? present : "");
}

LineProgram PythonWorkerProgram(const std::string& who, const std::string& module,
                                const std::string& interpreter, int64_t memory_limit_mib) {
  constexpr size_t kLongestLine = size_t{256} << 20;  // rewards of each token of a large group
  LineProgram program = {
      .who = who,
      .command = {interpreter.empty() ? DefaultPython() : interpreter, "-m", module},
      .environment = {"PYTHONUNBUFFERED=1"},
      .is_apart = true,
      .longest_line = kLongestLine,
      .memory_limit_mib = memory_limit_mib};
  const std::string folder = FindPythonPackageFolder();
  if (!folder.empty()) program.environment.push_back(PythonPathVariable(folder));
  return program;
}

std::string PythonWorkerAdvice(const LineProcess& process) {
  const std::string& module = process.command().back();
  std::string advice = absl::StrCat(" (", process.command()[0], " -m ", module,
                                    "; the lines before this one may say why");
  // Neither the checkout that this program was built in nor a prefix is above it.
  if (FindPythonPackageFolder().empty()) {
    absl::StrAppend(&advice,
                    "; if they say that there is no module tandem_rl: install the package for "
                    "that interpreter, which is the wheel of Tandem, or pip install ./python in "
                    "a checkout");
  }
  return advice + ")";
}

}  // namespace tandem
