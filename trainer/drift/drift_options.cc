#include "trainer/drift/drift_options.h"

namespace tandem::trainer {

void BindOptions(OptionBinder& binder, ProbeOptions& options) {
  binder.Integer("every", &options.every, {.min = 0}, "versions",
                 "both sides score the probe set under such a weight version; 0: never");
  binder.Integer("completions", &options.completions, {.min = 8, .max = 4096}, "completions",
                 "of the set, taken from the run's first step; intervals need 8");
  binder.Text("file", &options.file,
              "JSON lines of prompt_token_ids and completion_token_ids, as another run's "
              "probe/set.jsonl; empty: the first completions of this run");
}

void BindOptions(OptionBinder& binder, SplitOptions& options) {
  binder.Integer("every", &options.every, {.min = 0}, "steps",
                 "split the step's drift into record, engine, cast and staleness: servers and "
                 "trainer score its tokens once more; 0: never");
}

}  // namespace tandem::trainer
