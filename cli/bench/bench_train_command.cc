// tandem bench train: whole train steps of the pair, and of another trainer on the same work.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "cli/bench/bench.h"
#include "cli/bench/bench_train.h"
#include "cli/io/shared_flags.h"
#include "cli/io/json_lines.h"
#include "cli/io/live_line.h"
#include "cli/io/subcommand.h"
#include "cli/model/model_input.h"
#include "common/base/status_macros.h"
#include "common/options/command_line.h"

namespace tandem::cli {
namespace {

absl::Status Train(const TrainBench& bench, const JsonFlags& json) {
  if (bench.device == "cuda" && !bench.peer.empty()) {
    return AsUsageError(
        absl::InvalidArgumentError("--peer trains on the CPU: leave out --device cuda"));
  }
  TANDEM_RETURN_IF_ERROR(CheckModelDirectory(bench.model));
  LiveLine live;
  const auto result = RunTrainBench(
      bench, [&](const std::string& what) { live.Update(absl::StrCat("bench train: ", what)); });
  live.Clear();
  TANDEM_RETURN_IF_ERROR(result.status());
  return PrintResult(json, ToText(bench, *result), ToJson(bench, *result));
}

}  // namespace

void AddBenchTrainCommand(CLI::App& bench, Action& chosen) {
  auto flags = std::make_shared<TrainBench>();
  auto json = std::make_shared<JsonFlags>();
  flags->out = (std::filesystem::temp_directory_path() / "tandem_bench_train").string();
  CLI::App* sub = bench.add_subcommand(
      "train", "Train steps of server and trainer on this machine, beside another trainer's");
  sub->add_option("--model", flags->model, "Hugging Face directory")->required();
  sub->add_option("--dtype", flags->dtype, "of the trainer's arithmetic, and of the peer's")
      ->check(CLI::IsMember({"fp32", "bf16"}))
      ->capture_default_str();
  sub->add_option("--server-dtype", flags->server_dtype, "of the rollout server")
      ->check(CLI::IsMember({"fp32", "bf16"}))
      ->capture_default_str();
  sub->add_option("--device", flags->device, "where server and trainer compute")
      ->check(CLI::IsMember({"cpu", "cuda"}))
      ->capture_default_str();
  sub->add_option("--numerics", flags->numerics, "of server and trainer; exact needs equal dtypes")
      ->check(CLI::IsMember({"fast", "exact"}))
      ->capture_default_str();
  const auto count = [&](const char* name, int64_t& value, const char* help) {
    sub->add_option(name, value, help)->check(CLI::PositiveNumber)->capture_default_str();
  };
  count("--prompts", flags->prompts, "of a step");
  count("--group-size", flags->group, "completions of a prompt");
  count("--prompt-tokens", flags->prompt_tokens, "of a prompt, about");
  count("--max-new-tokens", flags->new_tokens, "of a completion, at most");
  count("--steps", flags->steps, "timed, after one to warm up");
  sub->add_option("--peer", flags->peer,
                  "trl, or a script that speaks as tests/bench/peers/README.md says")
      ->check(CheckPeer);
  sub->add_option("--out", flags->out, "folder of the run and its data")->capture_default_str();
  AddJsonFlags(sub, json.get());
  EndHelp(*sub, "", "tandem bench train --model MODEL --prompts 4 --group-size 4 --steps 2");
  sub->callback([flags, json, &chosen] {
    chosen = [flags, json] {
      const absl::Status status = Train(*flags, *json);
      return status.ok() ? 0 : Fail(status);
    };
  });
}

}  // namespace tandem::cli
