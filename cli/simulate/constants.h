// Constants of the simulation: every number with its unit and where it is from: measured (by which
// command), published (by whom) or assumed (with a range). Two tables: of a cluster that was only
// read about, and of one machine whose runs are checked. A JSON file overrides values by name:
//
//   {"link_fraction": {"value": 0.7, "source": "all_gather_perf of our cluster, 2026-12-01"}}
//
// Pure but for ReadConstants.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace tandem::simulate {

enum class Origin { kPublished, kMeasured, kAssumed };
const char* OriginName(Origin origin);

struct Constant {
  std::string name;
  double value = 0;
  std::string unit;
  Origin origin = Origin::kAssumed;
  std::string source;
  double low = 0, high = 0;  // of an assumption: what it could as well be; both 0: not varied
};

class Constants {
 public:
  explicit Constants(std::vector<Constant> table) : table_(std::move(table)) {}

  // A name that is not in the table is a TANDEM_CHECK.
  double operator[](std::string_view name) const;
  const std::vector<Constant>& table() const { return table_; }
  void Set(std::string_view name, double value);

  // Reads values over those of the table; each needs a source.
  //   INVALID_ARGUMENT  not JSON; an unknown name (with the nearest); no number, one that is not
  //                     positive (zero where the default is zero, too), or no source
  absl::Status Override(const std::string& json, const std::string& place);

  std::string ToJson() const;
  std::string ToMarkdown() const;

 private:
  std::vector<Constant> table_;
};

// An H100 SXM cluster with InfiniBand NDR.
Constants ClusterConstants();
// The machine a run was made on. Its values are those of one measurement with this repository's
// benchmarks; another machine needs its own (docs/research/scaling_on_paper.md).
Constants MachineConstants();

//   NOT_FOUND         no such file
//   INVALID_ARGUMENT  as Override
absl::Status ReadConstants(const std::string& path, Constants* constants);

}  // namespace tandem::simulate
