// --json and --json-out FILE: the same two flags on every subcommand whose result has a JSON form.
#pragma once

#include <string>

#include "absl/status/status.h"

namespace CLI {
class App;
}

namespace tandem::cli {

struct JsonFlags {
  bool print = false;  // --json
  std::string file;    // --json-out
};

void AddJsonFlags(CLI::App* sub, JsonFlags* flags);

// To standard output `text`, or under --json `json` in its place; `json` to the file where one was
// named. `json` is one object, with or without a newline at its end.
//   errors of WriteFileAtomically
absl::Status PrintResult(const JsonFlags& flags, const std::string& text, std::string json);

}  // namespace tandem::cli
