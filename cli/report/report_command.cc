// tandem report: the HTML page of a run directory.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <memory>
#include <string>

#include "cli/io/json_lines.h"
#include "cli/io/subcommand.h"
#include "cli/report/report.h"
#include "common/options/command_line.h"

namespace tandem::cli {

void AddReportCommand(CLI::App& app, Action& chosen) {
  struct Flags {
    std::string run;
    std::string out;
  };
  auto flags = std::make_shared<Flags>();
  CLI::App* sub = app.add_subcommand("report", "One self-contained HTML page of a run");
  sub->add_option("run", flags->run, "run directory, also of a run in progress")->required();
  sub->add_option("-o,--out", flags->out,
                  "file to write; default: report.html in the run directory");
  EndHelp(*sub, "", "tandem report runs/NAME --out NAME.html");
  sub->callback([flags, &chosen] {
    chosen = [flags] {
      const absl::Status status = report::WriteReport(flags->run, flags->out);
      if (!status.ok()) return Fail(status);
      std::printf("%s\n",
                  flags->out.empty() ? (flags->run + "/report.html").c_str() : flags->out.c_str());
      return 0;
    };
  });
}

}  // namespace tandem::cli
