#include "trainer/step/reference_options.h"

namespace tandem::trainer {

void BindOptions(OptionBinder& binder, ReferenceOptions& options) {
  binder.Choice("kind", &options.kind,
                {{"frozen", ReferenceKind::kFrozen},
                 {"ema", ReferenceKind::kEma},
                 {"reset", ReferenceKind::kReset}},
                "stays as it is; follows the policy as an average that decays; or becomes the "
                "policy every reset_every train steps");
  binder.Text("model", &options.model,
              "model (directory or name) of the policy's architecture that it starts from; empty: "
              "trainer.model");
  binder.Number("ema_decay", &options.ema_decay, {.min = 0, .max = 1}, "",
                "kind ema: share of itself that it keeps after a train step");
  binder.Integer("reset_every", &options.reset_every, {.min = 1}, "train steps",
                 "kind reset: when it becomes the policy");
}

}  // namespace tandem::trainer
