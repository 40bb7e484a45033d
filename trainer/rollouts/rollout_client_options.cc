#include "trainer/rollouts/rollout_client_options.h"

namespace tandem::trainer {

void BindOptions(OptionBinder& binder, RolloutClientOptions& options) {
  binder.Integer("groups_in_flight", &options.groups_in_flight, {.min = 1, .max = 256}, "groups",
                 "asked for at one time, per server");
  binder.Number("call_timeout_seconds", &options.call_timeout_seconds,
                {.min = 0, .exclusive_min = true}, "s", "deadline of one group");
  binder.Number("server_patience_seconds", &options.server_patience_seconds,
                {.min = 0, .exclusive_min = true}, "s",
                "without any usable server, the run ends after this long (exit code 4)");
  binder.Number(
      "start_patience_seconds", &options.start_patience_seconds, {.min = 0}, "s",
      "the same at the start, before the first server came: on a cluster they may still be "
      "scheduled, fetched and loaded; 0: server_patience_seconds");
  binder.Number("retry_initial_seconds", &options.retry_initial_seconds,
                {.min = 0, .exclusive_min = true}, "s",
                "first wait before a lost server is probed");
  binder.Number("retry_max_seconds", &options.retry_max_seconds, {.min = 0, .exclusive_min = true},
                "s", "longest wait between probes (each doubles)");
  binder.Integer("max_attempts", &options.max_attempts, {.min = 1}, "calls",
                 "of one group, after which it is dropped and counted");
  binder.Flag(
      "allow_incomplete_groups", &options.allow_incomplete_groups,
      "take groups that were stopped early by request; their cut completions count as truncated");
}

}  // namespace tandem::trainer
