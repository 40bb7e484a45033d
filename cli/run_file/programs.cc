// tandem serve, tandem train: execute the programs rollout_server and trainer, which are in the
// directory of tandem, with the rest of the command line. They are separate programs so that each
// loads only the libraries that it needs.
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

#include "cli/io/subcommand.h"
#include "cli/run_file/launch_options.h"
#include "common/base/exit_codes.h"
#include "common/options/command_line.h"

namespace tandem::cli {
namespace {

// Replaces this process by the program. Returns only if it cannot be started.
int Become(const std::string& program, std::vector<std::string> arguments) {
  const std::string path = ProgramDirectory() + "/" + program;
  std::vector<char*> argv = {const_cast<char*>(path.c_str())};
  for (std::string& argument : arguments) argv.push_back(argument.data());
  argv.push_back(nullptr);
  ::execv(path.c_str(), argv.data());
  std::fprintf(stderr, "tandem: %s cannot be started: %s (make build makes it)\n", path.c_str(),
               std::strerror(errno));
  return ToInt(ExitCode::kInternal);
}

void AddProgram(CLI::App& app, Action& chosen, const char* command, const std::string& program,
                const char* description, const char* example) {
  CLI::App* sub = app.add_subcommand(command, description);
  // The program parses all its flags, --help among them.
  sub->set_help_flag();
  sub->prefix_command();
  EndHelp(*sub, "", example);
  SetAction(*sub, chosen, [sub, program] { return Become(program, sub->remaining()); });
}

}  // namespace

void AddServeCommand(CLI::App& app, Action& chosen) {
  AddProgram(app, chosen, "serve", "rollout_server",
             "The rollout server (`rollout_server`): samples groups of completions over gRPC",
             "tandem serve --model MODEL --port 50051");
}

void AddTrainCommand(CLI::App& app, Action& chosen) {
  AddProgram(app, chosen, "train", "trainer",
             "The trainer (`trainer`): improves a model with groups from rollout servers",
             "tandem train --config run.yaml --servers 127.0.0.1:50051");
}

}  // namespace tandem::cli
