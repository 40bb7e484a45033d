#include "trainer/critic/critic_options.h"

#include "common/base/status_macros.h"

namespace tandem::trainer {

void BindOptions(OptionBinder& binder, CriticOptions& options) {
  binder.Choice("backbone", &options.backbone,
                {{"own", CriticBackbone::kOwn}, {"shared", CriticBackbone::kShared}},
                "the value head stands on a model of its own (the memory of a second policy), or "
                "on the policy's hidden states");
  binder.Text(
      "model", &options.model,
      "backbone own: model (directory or name) it starts from, such as a reward model, whose "
      "score.weight is the value head then; empty: trainer.model and a head of zeros");
  binder.Section("optimizer", "AdamW of the critic; with backbone shared, of its head",
                 options.optimizer);
  binder.Number("value_clip", &options.value_clip, {.min = 0}, "",
                "a value may move this far from that of the step's start before its loss stops "
                "falling; 0: no clip");
  binder.Number("loss_coefficient", &options.loss_coefficient, {.min = 0}, "",
                "backbone shared: weight of the value loss beside the policy's");
  binder.Integer("warmup_steps", &options.warmup_steps, {.min = 0}, "train steps",
                 "backbone own: at the start only the critic is trained, and the policy stays as "
                 "it is (value pretraining)");
}

absl::Status CheckOptions(const CriticOptions& options) {
  if (options.backbone == CriticBackbone::kOwn) return absl::OkStatus();
  if (!options.model.empty()) {
    return InvalidArgument("critic.model is ", options.model,
                           ", and critic.backbone shared stands on the policy: leave the model "
                           "empty, or set the backbone to own");
  }
  if (options.warmup_steps > 0) {
    return InvalidArgument("critic.warmup_steps is ", options.warmup_steps,
                           ", and critic.backbone shared trains policy and critic together: set "
                           "it 0, or the backbone to own");
  }
  return absl::OkStatus();
}

}  // namespace tandem::trainer
