// ParseCommandLine: CLI11 with this project's manners: a wrong flag or command is named together
// with the nearest one that exists.
#ifndef TANDEM_DEPLOY_TANDEM_COMMAND_LINE_H_
#define TANDEM_DEPLOY_TANDEM_COMMAND_LINE_H_

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace CLI {
class App;
}

namespace tandem::front {

// Parses into `app`. An exit code when the program is to end now: 0 after --help or --version
// (printed to standard output), 2 after a mistake (explained on standard error).
std::optional<int> ParseCommandLine(CLI::App& app, int argc, char** argv);

// The name of `names` with the fewest edits to `wrong`; empty when none is within half its length.
std::string NearestName(std::string_view wrong, const std::vector<std::string>& names);

}  // namespace tandem::front

#endif  // TANDEM_DEPLOY_TANDEM_COMMAND_LINE_H_
