#include "cli/model/demo_model.h"

#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <system_error>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/exit_codes.h"
#include "common/base/status_macros.h"
#include "common/process/python_package.h"

namespace tandem::cli {
namespace {

constexpr char kName[] = "smollm2-135m-instruct";

bool IsThere(const std::filesystem::path& directory) {
  std::error_code ignored;
  return std::filesystem::exists(directory / "config.json", ignored) &&
         std::filesystem::exists(directory / "model.safetensors", ignored);
}

std::filesystem::path CacheFolder() {
  const char* const cache = std::getenv("XDG_CACHE_HOME");
  if (cache != nullptr && *cache == '/') return cache;
  const char* const home = std::getenv("HOME");
  return std::filesystem::path(home != nullptr && *home != '\0' ? home : ".") / ".cache";
}

// Runs a program with this one's terminal, its output on standard error. Returns its exit code, 127
// where it cannot be started, and 128 + the signal that ended it.
int RunToTheEnd(std::vector<std::string> command) {
  std::vector<char*> argv;
  for (std::string& word : command) argv.push_back(word.data());
  argv.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, STDERR_FILENO, STDOUT_FILENO);
  pid_t pid = 0;
  const int failed = ::posix_spawnp(&pid, argv[0], &actions, nullptr, argv.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  if (failed != 0) {
    std::fprintf(stderr, "%s: %s\n", argv[0], std::strerror(failed));
    return 127;
  }
  int status = 0;
  while (::waitpid(pid, &status, 0) < 0 && errno == EINTR) {
  }
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

}  // namespace

std::filesystem::path DemoModelDirectory(const std::filesystem::path& tree) {
  const std::filesystem::path of_tree = tree / "models" / kName;
  return IsThere(of_tree) ? of_tree : CacheFolder() / "tandem" / kName;
}

absl::Status MakeDemoModel(const std::filesystem::path& directory) {
  if (IsThere(directory)) return absl::OkStatus();
  std::vector<std::string> command = {DefaultPython(), "-m", "tandem_rl.demo_model", "--out",
                                      directory.string()};
  const std::string package = FindPythonPackageFolder();
  if (!package.empty()) command.insert(command.begin(), {"env", PythonPathVariable(package)});
  std::fprintf(stderr, "SmolLM2-135M-Instruct is fetched once (100 MB) and kept in %s\n",
               directory.c_str());
  const int exit_code = RunToTheEnd(command);
  if (exit_code == 0 && IsThere(directory)) return absl::OkStatus();
  return trainer::WithExitCode(
      NotFound("there is no model of the demo in ", directory.string(), ", and the command `",
               absl::StrJoin(command, " "), "`, which makes it, ended with exit code ", exit_code,
               "; the lines above may say why. --model takes a model that you have: a Hugging Face "
               "directory, or a name on the Hub"),
      ExitCode::kBadModelOrData);
}

}  // namespace tandem::cli
