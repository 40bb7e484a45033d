// tandem serve-reward-model: a reward model as a service that the component `grpc` of a run calls.
#include <CLI/CLI.hpp>
#include <chrono>
#include <cstdio>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "cli/io/json_lines.h"
#include "cli/io/shared_flags.h"
#include "cli/io/subcommand.h"
#include "cli/supervised/reward_model_flags.h"
#include "common/base/exit_codes.h"
#include "common/base/status_macros.h"
#include "common/options/command_line.h"
#include "common/process/stop_signal.h"
#include "common/rendezvous/loopback.h"
#include "trainer/rewards/model/reward_service.h"

namespace tandem::cli {
namespace {

struct ServeModelFlags {
  trainer::RewardModelOptions model;
  RewardModelWords words;
  std::string listen = "127.0.0.1:50061";
};

absl::Status ServeModel(const ServeModelFlags& flags, const StopSignal& stop) {
  if (flags.listen.rfind(':') == std::string::npos) {
    return AsUsageError(InvalidArgument("--listen ", flags.listen, ": want HOST:PORT"));
  }
  std::optional<EndWhileLoading> loading(std::in_place, stop);
  TANDEM_ASSIGN_OR_RETURN(auto scorer, LoadRewardModel(flags.model));
  TANDEM_ASSIGN_OR_RETURN(const auto server,
                          trainer::RewardModelServer::Start(std::move(scorer), flags.listen));
  loading.reset();
  if (!IsLoopback(server->address())) {
    std::fprintf(stderr,
                 "tandem: warning: PLAINTEXT calls from other machines: whoever is between reads "
                 "completions and can change rewards\n");
  }
  PrintLine(absl::StrCat("{\"listening\":", TextToJson(server->address()), "}"));
  while (!stop.WaitFor(std::chrono::hours(1))) {
  }
  return absl::OkStatus();
}

}  // namespace

void AddServeRewardModelCommand(CLI::App& app, Action& chosen) {
  auto flags = std::make_shared<ServeModelFlags>();
  CLI::App* sub =
      app.add_subcommand("serve-reward-model", "A reward model as a service (proto/reward.proto)");
  AddRewardModelFlag(sub, "--model", flags->model)->required();
  sub->add_option("--listen", flags->listen, "HOST:PORT, plaintext; port 0: a free one")
      ->capture_default_str();
  AddAggregationFlags(sub, flags->model, flags->words);
  sub->add_flag("--each-step", flags->model.each_step,
                "process reward model: each probability is a reward at the end of its step");
  AddSplitFlags(sub, flags->model.split, flags->words.split);
  AddPositive(sub, "--batch-tokens", flags->model.batch_tokens, "tokens of a row of completions");
  AddThreadsFlag(sub, flags->model.threads);
  EndHelp(*sub,
          "Prints {\"listening\": HOST:PORT} once it serves; ends with a signal. Runs name it by\n"
          "trainer.reward.grpc.address.",
          "tandem serve-reward-model --model rm --listen 127.0.0.1:50061");
  SetAction(*sub, chosen, [flags] {
    flags->words.Apply(flags->model);
    const StopSignal stop;
    const absl::Status served = ServeModel(*flags, stop);
    if (served.ok()) return ToInt(ExitCodeOfSignal(stop.signal()));
    return Fail(served);
  });
}

}  // namespace tandem::cli
