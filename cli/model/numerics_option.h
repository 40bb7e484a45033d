// --numerics fast|invariant|exact, as the tools and runs take it.
#pragma once

#include <CLI/CLI.hpp>
#include <map>
#include <string>
#include <vector>

#include "common/model/numerics.h"

namespace tandem::cli {

inline std::map<std::string, Numerics> NumericsModes() {
  return {
      {"fast", Numerics::kFast}, {"invariant", Numerics::kInvariant}, {"exact", Numerics::kExact}};
}

inline void AddNumericsOption(CLI::App* sub, Numerics& numerics) {
  sub->add_option("--numerics", numerics,
                  "fast; invariant: the rollout side's results do not depend on company; exact: "
                  "both sides give the same bits")
      ->transform(CLI::CheckedTransformer(NumericsModes()).description("{fast,invariant,exact}"))
      ->default_str("fast");
}

// The same for both sides of a run, as KEY=VALUE at the end of `sets`.
inline void AddRunNumericsOption(CLI::App* sub, std::vector<std::string>& sets) {
  sub->add_option_function<std::string>(
         "--numerics",
         [&sets](const std::string& mode) {
           sets.push_back("server.engine.numerics=" + mode);
           sets.push_back("trainer.numerics=" + mode);
         },
         "of servers and trainer: fast, invariant or exact")
      ->check(CLI::IsMember({"fast", "invariant", "exact"}));
}

}  // namespace tandem::cli
