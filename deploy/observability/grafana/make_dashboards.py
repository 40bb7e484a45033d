"""Writes the four dashboards in its folder: python3 deploy/observability/grafana/make_dashboards.py [OUT].

A dashboard is a list of rows of panels: (title, unit, {legend: query}). Grafana imports the JSON files and asks for the data
source. A test compares the files with this script, and their metrics with those of the programs."""
import json
import pathlib
import sys

TRAINER = 'instance=~"$trainer"'
SERVER = 'instance=~"$server"'


def phase_seconds(phase):
    return (f'rate(tandem_trainer_step_duration_seconds_sum{{phase="{phase}",{TRAINER}}}[$__rate_interval]) / ignoring (phase) '
            f'rate(tandem_trainer_step_duration_seconds_count{{phase="step",{TRAINER}}}[$__rate_interval])')


def quantile(q, metric):
    return (f"histogram_quantile({q}, sum by (instance, le) "
            f"(rate({metric}_bucket{{{SERVER}}}[$__rate_interval])))")


def t(name, labels=""):
    return f"tandem_trainer_{name}{{{labels + ',' if labels else ''}{TRAINER}}}"


def s(name, labels=""):
    return f"tandem_{name}{{{labels + ',' if labels else ''}{SERVER}}}"


def rate(series):
    return f"rate({series}[$__rate_interval])"


NOT_OK = 'outcome!="ok"'
TROUBLE = 'kind=~"server_lost|server_hung|push_failed|step_skipped|checkpoint_failed|alert|resumed|started_over"'
PHASES = ["rollout", "reward", "pack", "proximal", "update", "push", "checkpoint", "eval"]

DASHBOARDS = {
    # A row of ten numbers comes first.
    "overview": ("Tandem: overview", [
        [("Reward, mean", "short", {"mean": t("reward_mean")}),
         ("Trained tokens", "short", {"tokens / s": rate(t("trained_tokens_total"))})],
        [("Sampled tokens", "short", {"tokens / s": f"sum({rate(s('sampled_tokens_total'))})"}),
         ("Staleness of trained tokens", "short", {"mean": t("staleness_mean_versions"),
                                                   "max": t("staleness_max_versions")})],
        [("Drift: mean |delta|", "short", {"nats": t("drift_mean_abs_delta")}),
         ("Weights at the cap", "percentunit", {"share": t("correction_capped_ratio")})],
        [("Clipped ratios", "percentunit", {"low": t("clipped_low_ratio"), "high": t("clipped_high_ratio")}),
         ("Gradient norm", "short", {"norm": t("gradient_norm")})],
        [("Weight push", "s", {"seconds": t("push_seconds")}),
         ("KV use", "percentunit", {"{{instance}}": f"{s('kv_used_tokens')} / {s('kv_capacity_tokens')}"})],
        [("Step and age of the last", "short", {"step": t("step"),
                                               "seconds since the last": f"time() - {t('last_step_timestamp_seconds')}"}),
         ("Who waits for whom", "percentunit", {"trainer waits for rollouts": t("rollout_wait_ratio"),
                                                "servers blocked by the staleness bound": t("admission_blocked_ratio")})],
    ]),
    "drift": ("Tandem: drift", [
        [("|delta|", "short", {"mean": t("drift_mean_abs_delta"), "p99": t("drift_abs_delta_p99"),
                               "max": t("drift_max_abs_delta")}),
         ("KL of server against trainer", "short", {"k1": t("drift_k1"), "k3": t("drift_k3")})],
        [("Importance weights before bounds", "short", {"mean": t("drift_mean_weight"),
                                                       "max": t("drift_max_weight")}),
         ("Effective sample size", "percentunit", {"tokens": t("drift_effective_samples_ratio"),
                                                   "completions": t("drift_sequence_effective_samples_ratio")})],
        [("Chi-squared", "short", {"chi2": t("drift_chi2")}),
         ("Log-perplexity gap", "short", {"nats": t("drift_log_perplexity_gap")})],
        [("Correction", "percentunit", {"weights capped": t("correction_capped_ratio")}),
         ("Correction: mean weight of kept tokens", "short", {"mean": t("correction_mean_weight")})],
        [("Tokens by staleness", "short", {"<= {{le}}": f"sum by (le) ({rate(t('staleness_versions_bucket'))})"}),
         ("Lost in the cast", "percentunit", {"update that arrives": t("push_arrived_ratio"),
                                              "elements changed": t("push_changed_ratio")})],
        [("Probe set: mean |delta|", "short", {"nats": t("drift_probe_mean_abs_delta")}),
         ("Tokens left out", "short", {"not finite": t("drift_nonfinite_tokens"),
                                       "rejected": t("correction_rejected_tokens")})],
    ]),
    "servers": ("Tandem: rollout servers", [
        [("Groups", "short", {"running {{instance}}": s("groups_running"), "queued {{instance}}": s("groups_queued")}),
         ("Calls by outcome", "reqps", {"{{outcome}}": f"sum by (outcome) ({rate(s('requests_total'))})"})],
        [("Time to the first token", "s", {"p50 {{instance}}": quantile(0.5, "tandem_time_to_first_token_seconds"),
                                          "p99 {{instance}}": quantile(0.99, "tandem_time_to_first_token_seconds")}),
         ("Between tokens", "s", {"p50 {{instance}}": quantile(0.5, "tandem_inter_token_seconds"),
                                  "p99 {{instance}}": quantile(0.99, "tandem_inter_token_seconds")})],
        [("Tokens", "short", {"sampled {{instance}}": rate(s("sampled_tokens_total")),
                              "prompt {{instance}}": rate(s("prompt_tokens_total"))}),
         ("Share of the machine's limit", "percentunit", {"{{instance}}": s("step_limit_share")})],
        [("KV use", "percentunit", {"{{instance}}": f"{s('kv_used_tokens')} / {s('kv_capacity_tokens')}"}),
         ("KV lost and found", "short", {"preemptions {{instance}}": rate(s("preemptions_total")),
                                         "prefix hits {{instance}}": rate(s("prefix_hit_blocks_total")),
                                         "prefix misses {{instance}}": rate(s("prefix_miss_blocks_total"))})],
        [("Weight version", "short", {"{{instance}}": s("live_weight_version")}),
         ("Weight commits", "s", {"pause {{instance}}": s("weight_commit_pause_seconds"),
                                  "p99 {{instance}}": quantile(0.99, "tandem_weight_commit_seconds")})],
        [("State", "short", {"ready {{instance}}": s("ready"), "paused {{instance}}": s("paused"),
                             "draining {{instance}}": s("draining"), "owned {{instance}}": s("owned")}),
         ("Engine silent", "s", {"{{instance}}": s("engine_silent_seconds")})],
        [("Refusals", "short", {"weights {{reason}}": f"sum by (reason) ({rate(s('weight_update_failures_total'))})",
                                "calls {{outcome}}": f"sum by (outcome) ({rate(s('requests_total', NOT_OK))})"}),
         ("Memory and files", "bytes", {"resident {{instance}}": f"process_resident_memory_bytes{{{SERVER}}}"})],
    ]),
    "trainer": ("Tandem: trainer", [
        [("Seconds of a step", "s", {phase: phase_seconds(phase) for phase in PHASES}),
         ("Who waits for whom", "percentunit", {"trainer waits for rollouts": t("rollout_wait_ratio"),
                                                "servers blocked by the staleness bound": t("admission_blocked_ratio")})],
        [("Loss", "short", {"loss": t("loss"), "policy": t("policy_loss")}),
         ("Entropy", "short", {"nats": t("entropy_nats")})],
        [("Gradient norm", "short", {"norm": t("gradient_norm")}),
         ("Learning rate", "short", {"rate": t("learning_rate")})],
        [("Reward", "short", {"mean": t("reward_mean"), "deviation": t("reward_deviation")}),
         ("Completions", "short", {"tokens": t("completion_tokens_mean"), "truncated": t("truncated_ratio"),
                                   "groups without signal": t("zero_variance_ratio")})],
        [("Groups", "short", {"in flight": t("groups_in_flight"), "waiting": t("queue_depth")}),
         ("Completions lost, by reason", "short",
          {"{{reason}}": f"sum by (reason) ({rate(t('samples_dropped_total'))})"})],
        [("Servers", "short", {"{{state}}": t("servers"), "hung": t("servers_hung")}),
         ("Events", "short", {"{{kind}}": f"increase({t('events_total', TROUBLE)}[$__rate_interval])"})],
        [("Since the last checkpoint", "s",
          {"seconds": f"time() - {t('checkpoint_last_success_timestamp_seconds')}"}),
         ("Memory of rank 0", "bytes", {"peak": t("memory_peak_bytes"),
                                        "resident": f"process_resident_memory_bytes{{{TRAINER}}}"})],
    ]),
}


def variable(name, label, query):
    return {"name": name, "label": label, "type": "query", "datasource": {"type": "prometheus", "uid": "${datasource}"},
            "query": query, "refresh": 2, "includeAll": True, "multi": True,
            "current": {"text": "All", "value": "$__all"}}


def panel(number, row, column, title, unit, queries):
    return {"id": number, "type": "timeseries", "title": title,
            "datasource": {"type": "prometheus", "uid": "${datasource}"},
            "gridPos": {"h": 8, "w": 12, "x": 12 * column, "y": 8 * row},
            "fieldConfig": {"defaults": {"unit": unit}, "overrides": []},
            "targets": [{"refId": chr(ord("A") + i), "expr": query, "legendFormat": legend}
                        for i, (legend, query) in enumerate(queries.items())]}


def dashboard(name, title, rows):
    panels = []
    for row, cells in enumerate(rows):
        panels += [panel(len(panels) + column + 1, row, column, *cell) for column, cell in enumerate(cells)]
    return {"uid": f"tandem-{name}", "title": title, "tags": ["tandem"], "schemaVersion": 39, "version": 1,
            "editable": True, "refresh": "15s", "time": {"from": "now-1h", "to": "now"}, "timezone": "",
            "templating": {"list": [
                {"name": "datasource", "label": "Prometheus", "type": "datasource", "query": "prometheus"},
                variable("trainer", "Trainer", "label_values(tandem_trainer_step, instance)"),
                variable("server", "Rollout server", "label_values(tandem_live_weight_version, instance)")]},
            "panels": panels}


def main():
    out = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else pathlib.Path(__file__).parent
    for name, (title, rows) in DASHBOARDS.items():
        text = json.dumps(dashboard(name, title, rows), indent=1) + "\n"
        (out / f"{name}.json").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
