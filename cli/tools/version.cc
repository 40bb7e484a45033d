// tandem version: commit, libraries, compiler.
#include <grpcpp/grpcpp.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <string>

#include "absl/strings/str_cat.h"
#include "cli/io/subcommand.h"
#include "common/base/version.h"
#include "common/comm/group.h"
#include "common/options/command_line.h"

namespace tandem::cli {

std::string VersionLine() {
  return absl::StrCat("tandem ", std::string(ProjectVersion()), " (commit ",
                      std::string(GitCommit()), ")");
}

void AddVersionCommand(CLI::App& app, Action& chosen) {
  CLI::App* sub = app.add_subcommand("version", "Commit, libraries, compiler");
  EndHelp(*sub, "", "tandem version");
  SetAction(*sub, chosen, [] {
    const std::string text =
        absl::StrCat(VersionLine(), "\nLibTorch  ", LibTorchVersion(), "\noneDNN    ",
                     OneDnnVersion(), "\ngRPC      ", grpc::Version(), "\nNCCL      ",
                     comm::HasNccl() ? "LibTorch's" : "none (CPU build)", "\ncompiler  ",
                     std::string(CompilerVersion()), "\n");
    std::fputs(text.c_str(), stdout);
    return 0;
  });
}

}  // namespace tandem::cli
