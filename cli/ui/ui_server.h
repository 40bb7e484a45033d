// UiServer: the local page of `tandem ui` over HTTP, on loopback only: it shows prompts and
// completions, and asks nobody for a name.
//
//   /                                    the page
//   /api/runs                            [SummaryOf each run]
//   /api/rows?run=NAME&after=N&keys=A,B  RowsAfter
//   /runs/NAME/report.html               the report, made now from what the run has written
//   /runs/NAME/captures/step_N/attribution.html   as it was written
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace tandem {
class HttpServer;
}

namespace tandem::ui {

class UiServer {
 public:
  // `roots`: as FindRuns; they are read again for each answer.
  //   INVALID_ARGUMENT  `listen` is not on loopback, or no HOST:PORT
  //   UNAVAILABLE       it cannot be bound
  static absl::StatusOr<std::unique_ptr<UiServer>> Listen(const std::string& listen,
                                                          std::vector<std::string> roots);
  ~UiServer();

  int port() const;

 private:
  explicit UiServer(std::unique_ptr<HttpServer> server);
  const std::unique_ptr<HttpServer> server_;
};

}  // namespace tandem::ui
