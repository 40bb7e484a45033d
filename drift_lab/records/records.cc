#include "drift_lab/records/records.h"

namespace tandem::drift {

const char* ColumnName(Column column) {
  switch (column) {
    case Column::kBehaviour:
      return "behaviour_logprobs";
    case Column::kProximal:
      return "proximal_logprobs";
    case Column::kBehaviourRaw:
      return "behaviour_raw_logprobs";
    case Column::kBehaviourScore:
      return "behaviour_score_logprobs";
    case Column::kReference:
      return "reference_logprobs";
    case Column::kBehaviourEntropy:
      return "behaviour_entropy";
    case Column::kProximalEntropy:
      return "proximal_entropy";
    case Column::kAdvantages:
      return "advantages";
  }
  return "";
}

}  // namespace tandem::drift
