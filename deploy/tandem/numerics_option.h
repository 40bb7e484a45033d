// --numerics fast|invariant|exact, as `tandem score` and `tandem generate` take it.
#ifndef TANDEM_DEPLOY_TANDEM_NUMERICS_OPTION_H_
#define TANDEM_DEPLOY_TANDEM_NUMERICS_OPTION_H_

#include <CLI/CLI.hpp>
#include <map>
#include <string>

#include "common/model/numerics.h"

namespace tandem::front {

inline std::map<std::string, Numerics> NumericsModes() {
  return {{"fast", Numerics::kFast},
          {"invariant", Numerics::kInvariant},
          {"exact", Numerics::kExact}};
}

inline void AddNumericsOption(CLI::App* sub, Numerics& numerics) {
  sub->add_option("--numerics", numerics,
                  "fast; invariant: the rollout side's results do not depend on company; exact: "
                  "both sides give the same bits")
      ->transform(CLI::CheckedTransformer(NumericsModes()).description("{fast,invariant,exact}"))
      ->default_str("fast");
}

}  // namespace tandem::front

#endif  // TANDEM_DEPLOY_TANDEM_NUMERICS_OPTION_H_
