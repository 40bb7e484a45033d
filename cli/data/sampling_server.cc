#include "cli/data/sampling_server.h"

#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "cli/io/shared_flags.h"
#include "cli/io/subcommand.h"
#include "cli/model/model_input.h"
#include "cli/run_file/launch_options.h"
#include "common/base/clock.h"
#include "common/base/status_macros.h"

namespace tandem::cli {
namespace {

constexpr double kServerReadySeconds = 300, kServerStopSeconds = 5;

}  // namespace

void AddServerFlags(CLI::App* sub, ServerFlags& flags) {
  sub->add_option("--server", flags.server,
                  "HOST:PORT of a rollout server that runs; without it one is started for the "
                  "command");
  sub->add_option("--model", flags.model,
                  "model directory, or a name on the Hub; with --server only its tokenizer is read "
                  "(default: the path "
                  "that the server says)");
  AddChoice(sub, "--dtype", flags.dtype, {"fp32", "bf16"}, "of the server that is started");
  AddThreadsFlag(sub, flags.threads);
  sub->add_flag("!--no-prefix-cache", flags.prefix_cache,
                "the server that is started finds no KV of earlier prompts again, to compare");
  AddPositive(sub, "--timeout", flags.timeout_seconds, "seconds for one group, repeats included");
  AddCallerFlags(sub, &flags.tls);
}

void AddSampleFlags(CLI::App* sub, SampleRequest& sampling) {
  AddNonNegative(sub, "--temperature", sampling.temperature, "logits are divided by it");
  AddShare(sub, "--top-p", sampling.top_p,
           "keep the smallest set of tokens with this total probability; 1: all");
  AddPositive(sub, "--max-new-tokens", sampling.max_new_tokens,
              "most tokens of a completion, stop token included");
  sub->add_option("--seed", sampling.seed, "of all draws")->capture_default_str();
}

absl::StatusOr<std::string> SamplingServer::StartLocal(const ServerFlags& flags) {
  logs_ =
      absl::StrCat(std::filesystem::temp_directory_path().string(), "/tandem_server_", getpid());
  TANDEM_RETURN_IF_ERROR(
      local_.Start(logs_, 1, [&](int64_t, int64_t, const std::string& port_file) {
        return std::vector<std::string>{
            ProgramDirectory() + "/rollout_server",
            "--model",
            flags.model,
            "--listen",
            "127.0.0.1:0",
            "--port-file",
            port_file,
            "--dtype",
            flags.dtype,
            "--set",
            absl::StrCat("server.engine.num_threads=", flags.threads),
            "--set",
            absl::StrCat("server.engine.prefix_cache=", flags.prefix_cache ? "true" : "false")};
      }));
  const double start = MonotonicSeconds();
  while (!local_.Ready()) {
    const auto end = local_.children()[0]->Poll();
    if (end.has_value() || MonotonicSeconds() - start > kServerReadySeconds) {
      logs_.clear();  // the log stays
      return Unavailable("the rollout server of ", flags.model, " did not start",
                         end.has_value() ? absl::StrCat(" (", end->ToString(), ")") : "",
                         "; its log is ", local_.children()[0]->log_path());
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  return local_.addresses()[0];
}

absl::StatusOr<std::unique_ptr<SamplingServer>> SamplingServer::Open(const ServerFlags& named) {
  ServerFlags flags = named;
  if (flags.server.empty() && flags.model.empty()) {
    return AsUsageError(InvalidArgument(
        "want --model DIR, of which a server is started, or --server HOST:PORT of one that runs"));
  }
  const auto caller = LoadCaller(flags.tls);
  if (!caller.ok()) return AsUsageError(caller.status());
  std::unique_ptr<SamplingServer> opened(new SamplingServer);
  if (!flags.model.empty()) {
    TANDEM_RETURN_IF_ERROR(flags.server.empty() ? FindModel(&flags.model)
                                                : FindTokenizer(&flags.model));
  }
  std::string address = flags.server;
  if (address.empty()) {
    TANDEM_ASSIGN_OR_RETURN(address, opened->StartLocal(flags));
  }
  TANDEM_ASSIGN_OR_RETURN(opened->sampler_,
                          GroupSampler::Connect(address, *caller, flags.timeout_seconds));
  const SampledServer& server = opened->sampler_->server();
  const std::string& model = flags.model.empty() ? server.model_path : flags.model;
  TANDEM_ASSIGN_OR_RETURN(opened->tokenizer_, Tokenizer::Load(model));
  if (opened->tokenizer_->hash() == server.tokenizer_hash) return opened;
  return InvalidArgument(address, " serves a model with another tokenizer than ", model,
                         ": name the directory that it was started with by --model");
}

SamplingServer::~SamplingServer() {
  sampler_.reset();
  if (logs_.empty()) return;
  local_.Stop(kServerStopSeconds);
  std::error_code ignored;
  std::filesystem::remove_all(logs_, ignored);
}

}  // namespace tandem::cli
