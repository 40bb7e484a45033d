// CONFIG and --set KEY=VALUE, as every subcommand that reads a run file takes them.
#pragma once

#include <CLI/CLI.hpp>
#include <filesystem>
#include <string>
#include <system_error>
#include <vector>

#include "common/options/command_line.h"

namespace tandem::cli {

// The run file. A setting in its place (--set a=1 b=2) is named as such, not as a file that is
// missing.
inline CLI::Option* AddConfigArgument(CLI::App* sub, std::string& config, const std::string& help) {
  return sub->add_option("config", config, help)->required()->check([](const std::string& path) {
    std::error_code ignored;
    if (path.find('=') == std::string::npos || std::filesystem::exists(path, ignored)) {
      return std::string();
    }
    return path + " is a setting and no run file: every setting takes a --set of its own, --set " +
           path;
  });
}

// `over` is what the settings override: "the file".
inline void AddRunSetFlag(CLI::App* sub, std::vector<std::string>& sets,
                          const std::string& over = "the file") {
  AddSetFlag(*sub, sets, "over " + over);
}

}  // namespace tandem::cli
