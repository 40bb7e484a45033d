// ParseCommandLine: CLI11 with this project's manners: a wrong flag or command is named together
// with the nearest one that exists.
#ifndef TANDEM_COMMON_BASE_COMMAND_LINE_H_
#define TANDEM_COMMON_BASE_COMMAND_LINE_H_

#include <optional>

namespace CLI {
class App;
}

namespace tandem {

// Parses into `app`. An exit code when the program is to end now: 0 after --help or --version
// (printed to standard output), 2 after a mistake (explained on standard error).
std::optional<int> ParseCommandLine(CLI::App& app, int argc, char** argv);

}  // namespace tandem

#endif  // TANDEM_COMMON_BASE_COMMAND_LINE_H_
