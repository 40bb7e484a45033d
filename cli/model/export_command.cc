// tandem export: a checkpoint of a run as a Hugging Face directory.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <memory>
#include <string>

#include "cli/io/json_lines.h"
#include "cli/io/subcommand.h"
#include "cli/model/export.h"
#include "common/base/status_macros.h"
#include "common/options/command_line.h"

namespace tandem::cli {
namespace {

struct ExportFlags {
  std::string from;
  std::string out;
  std::string dtype = "fp32";
  std::string base_model;
};

absl::Status Export(const ExportFlags& flags) {
  TANDEM_ASSIGN_OR_RETURN(const ExportSource source,
                          FindExportSource(flags.from, flags.base_model));
  TANDEM_RETURN_IF_ERROR(
      ExportModel(source, flags.out, flags.dtype == "bf16" ? DType::kBF16 : DType::kF32));
  std::printf("%s: weights of %s in %s\n", flags.out.c_str(), source.weights.c_str(),
              flags.dtype.c_str());
  return absl::OkStatus();
}

}  // namespace

void AddExportCommand(CLI::App& app, Action& chosen) {
  auto flags = std::make_shared<ExportFlags>();
  CLI::App* sub = app.add_subcommand("export", "A run's weights as a Hugging Face directory");
  sub->add_option("from", flags->from,
                  "run directory (its last checkpoint), checkpoint directory, or model directory")
      ->required();
  sub->add_option("--out", flags->out, "directory to make")->required();
  sub->add_option("--dtype", flags->dtype,
                  "of the weights written; bf16 is rounded as a push is (dither)")
      ->check(CLI::IsMember({"fp32", "bf16"}))
      ->capture_default_str();
  sub->add_option("--base-model", flags->base_model,
                  "where config and tokenizer are, if not where the run says");
  EndHelp(*sub, "", "tandem export runs/NAME --out exported --dtype bf16");
  sub->callback([flags, &chosen] {
    chosen = [flags] {
      const absl::Status status = Export(*flags);
      return status.ok() ? 0 : Fail(status);
    };
  });
}

}  // namespace tandem::cli
