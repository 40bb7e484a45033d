// Flags of `tandem` under their former names, so that scripts go on working while their authors
// read which name to use. Pure.
#pragma once

#include <string>
#include <vector>

namespace tandem::cli {

struct CurrentArguments {
  std::vector<std::string> arguments;
  std::vector<std::string> warnings;  // one for each former name, naming the one to use
};

// `arguments` (without the program's name) with every former name replaced by the current one. What
// follows a bare `--` is somebody else's and stays.
CurrentArguments WithCurrentFlags(std::vector<std::string> arguments);

}  // namespace tandem::cli
