#include "cli/io/shared_flags.h"

#include <CLI/CLI.hpp>
#include <cstdio>

#include "common/base/status_macros.h"
#include "common/files/file_system.h"

namespace tandem::cli {

void AddJsonFlags(CLI::App* sub, JsonFlags* flags) {
  sub->add_flag("--json", flags->print, "print one JSON object instead of the text");
  sub->add_option("--json-out", flags->file, "write that JSON object to this file too");
}

absl::Status PrintResult(const JsonFlags& flags, const std::string& text, std::string json) {
  if (!json.ends_with('\n')) json += '\n';
  if (!flags.file.empty()) TANDEM_RETURN_IF_ERROR(WriteFileAtomically(flags.file, json));
  std::fputs(flags.print ? json.c_str() : text.c_str(), stdout);
  return absl::OkStatus();
}

}  // namespace tandem::cli
