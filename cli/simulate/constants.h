// Constants of the simulation. Every number has a unit and an origin: measured (by which command),
// published (by whom) or assumed (with a range). One table is for a cluster, from published
// numbers, and one for a machine whose runs are compared with their simulation. A JSON file
// overrides values by name:
//
//   {"link_fraction": {"value": 0.7, "source": "all_gather_perf of our cluster, 2026-12-01"}}
//
// Pure except ReadConstants.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"

namespace tandem::simulate {

enum class Origin { kPublished, kMeasured, kAssumed };
const char* OriginName(Origin origin);

struct Constant {
  std::string name;
  double value = 0;
  std::string unit;
  Origin origin = Origin::kAssumed;
  std::string source;
  double low = 0, high = 0;  // the plausible range of an assumption; both 0: it is not varied
};

class Constants {
 public:
  explicit Constants(std::vector<Constant> table) : table_(std::move(table)) {}

  // An unknown name is a TANDEM_CHECK.
  double operator[](std::string_view name) const;
  const std::vector<Constant>& table() const { return table_; }
  void Set(std::string_view name, double value);

  // Overrides values of the table. `place` is for messages.
  //   INVALID_ARGUMENT  the text is not JSON; a name is unknown (with the nearest); a value is not
  //                     a number or not positive (zero is allowed if the default is zero); a value
  //                     has no source
  absl::Status Override(const std::string& json, const std::string& place);

  std::string ToJson() const;
  std::string ToMarkdown() const;

 private:
  std::vector<Constant> table_;
};

// An H100 SXM cluster with InfiniBand NDR.
Constants ClusterConstants();
// The machine of a recorded run. The values were measured once with this repository's benchmarks.
// Another machine needs its own (docs/research/scaling_on_paper.md).
Constants MachineConstants();

// Overrides `constants` with the values in a file.
//   NOT_FOUND         there is no such file
//   INVALID_ARGUMENT  as Override
absl::Status ReadConstants(const std::string& path, Constants* constants);

}  // namespace tandem::simulate
