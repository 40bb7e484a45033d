// ParseCommandLine: CLI11 with this project's manners. A wrong flag or command is named together
// with the nearest one that exists, a command that only groups others prints its help, and every
// help ends with an example.
#ifndef TANDEM_COMMON_OPTIONS_COMMAND_LINE_H_
#define TANDEM_COMMON_OPTIONS_COMMAND_LINE_H_

#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"

namespace CLI {
class App;
}

namespace tandem {

// Parses into `app` what follows the program's name; a flag takes one word. An exit code when the
// program is to end now: 0 after --help or --version, and after the help of a command that groups
// others and was given none (all to standard output); 2 after a mistake (explained on standard
// error).
std::optional<int> ParseCommandLine(CLI::App& app, std::vector<std::string> arguments);
std::optional<int> ParseCommandLine(CLI::App& app, int argc, char** argv);

// What the help of `command` says below its flags: `notes` (may be empty), then `example`, a whole
// command line that this command parses.
void EndHelp(CLI::App& command, const std::string& notes, const std::string& example);

// --set KEY=VALUE, once for each setting. `help` says what it overrides.
void AddSetFlag(CLI::App& command, std::vector<std::string>& sets, const std::string& help);

// "tandem drift phase": what a user writes to get at the command.
std::string FullName(const CLI::App& command);

// "PROGRAM: message" on standard error, without the status's code. What would steer a terminal is
// written out (printable.h), since a message may quote a file or another process.
void PrintFailure(const std::string& program, const absl::Status& status);

}  // namespace tandem

#endif  // TANDEM_COMMON_OPTIONS_COMMAND_LINE_H_
