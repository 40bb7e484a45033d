// ParseCommandLine: parses command lines with CLI11 and adds this project's conventions. A message
// about an unknown flag or command names the nearest existing one, a command that only groups
// others prints its help, and every help ends with an example.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"

namespace CLI {
class App;
}

namespace tandem {

// Parses the arguments after the program's name into `app`. A flag takes one word. Returns an exit
// code if the program is to end now: 0 after --help or --version, or after printing the help of a
// command group that was given no command (all on standard output); 2 after a mistake, which is
// explained on standard error.
std::optional<int> ParseCommandLine(CLI::App& app, std::vector<std::string> arguments);
std::optional<int> ParseCommandLine(CLI::App& app, int argc, char** argv);

// Sets the text below the flags in the help of `command`: `notes` (may be empty), then `example`, a
// complete command line that this command accepts.
void EndHelp(CLI::App& command, const std::string& notes, const std::string& example);

// Adds the flag --set KEY=VALUE, which may occur several times. `help` says what it overrides.
void AddSetFlag(CLI::App& command, std::vector<std::string>& sets, const std::string& help);

// The words with which a user calls the command: "tandem drift phase".
std::string FullName(const CLI::App& command);

// Prints "PROGRAM: message" on standard error, without the status's code. Terminal control
// characters are escaped (printable.h), since a message may quote a file or another process.
void PrintFailure(const std::string& program, const absl::Status& status);

}  // namespace tandem
