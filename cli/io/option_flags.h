// AddOptionFlags: the options of an OptionBinder as flags of a command, so that a command whose
// options are those of components declares none of them again.
#pragma once

#include <map>
#include <string>

#include "common/options/options.h"

namespace CLI {
class App;
}

namespace tandem::cli {

// Adds a flag for each option that is bound so far: "--max-tokens" for "max_tokens", or the name
// that `renamed` gives it (without dashes); an empty name adds none. A value is checked by the
// binder, and a bad one is a mistake of the command line. The help has the option's text, unit and
// range, and the current value as the default. `binder` must outlive parsing.
void AddOptionFlags(CLI::App& command, OptionBinder& binder,
                    const std::map<std::string, std::string>& renamed = {});

}  // namespace tandem::cli
