// tandem report: the HTML page of a run directory.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <memory>
#include <string>

#include "deploy/tandem/json_lines.h"
#include "deploy/tandem/report/report.h"
#include "deploy/tandem/subcommand.h"

namespace tandem::front {

void AddReportCommand(CLI::App& app, Action& chosen) {
  struct Flags {
    std::string run;
    std::string output;
  };
  auto flags = std::make_shared<Flags>();
  CLI::App* sub = app.add_subcommand("report", "One self-contained HTML page of a run");
  sub->add_option("run", flags->run, "run directory, also of a run in progress")->required();
  sub->add_option("-o,--output", flags->output, "default: report.html in the run directory");
  sub->callback([flags, &chosen] {
    chosen = [flags] {
      const absl::Status status = report::WriteReport(flags->run, flags->output);
      if (!status.ok()) return Fail(status);
      std::printf("%s\n", flags->output.empty() ? (flags->run + "/report.html").c_str()
                                                : flags->output.c_str());
      return 0;
    };
  });
}

}  // namespace tandem::front
