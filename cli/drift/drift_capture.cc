// tandem drift capture: a capture from a live rollout server, without a trainer.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "cli/data/data_flags.h"
#include "cli/drift/server_capture.h"
#include "cli/io/live_line.h"
#include "cli/io/shared_flags.h"
#include "cli/io/subcommand.h"
#include "cli/model/model_input.h"
#include "common/base/status_macros.h"
#include "common/options/command_line.h"
#include "common/tokenizer/tokenizer.h"
#include "trainer/prompts/prompt_source.h"

namespace tandem::cli {
namespace {

struct CaptureFlags {
  CaptureRequest request;
  std::string data_file, out;
  int64_t groups = 8;
  trainer::DataOptions data;
  rpc::TlsOptions tls;
};

absl::Status Capture(const CaptureFlags& flags, const rpc::Caller& caller) {
  CaptureRequest request = flags.request;
  request.caller = caller;
  if (std::filesystem::exists(flags.out)) {
    return AlreadyExists(flags.out, " exists: name a directory that is not there yet (--out)");
  }
  TANDEM_RETURN_IF_ERROR(CheckRowFlags(flags.data));
  TANDEM_RETURN_IF_ERROR(FindModel(&request.model));
  TANDEM_ASSIGN_OR_RETURN(const auto tokenizer, Tokenizer::Load(request.model));
  TANDEM_ASSIGN_OR_RETURN(
      const auto prompts,
      trainer::PromptSource::Open(flags.data_file, flags.data, request.seed, *tokenizer));
  for (int64_t g = 0; g < flags.groups; ++g) {
    const auto& ids = prompts->At(g).token_ids();
    request.prompts.emplace_back(ids.begin(), ids.end());
  }
  LiveLine line;
  TANDEM_ASSIGN_OR_RETURN(
      const offpolicy::Capture capture, CaptureServer(request, [&](int64_t done) {
        line.Update(absl::StrCat(ProgressBar(done, flags.groups, 30), " groups"));
      }));
  line.Clear();
  TANDEM_RETURN_IF_ERROR(offpolicy::WriteCapture(flags.out, capture));
  for (const std::string& fault : capture.manifest.injected) {
    std::fprintf(stderr, "tandem: FAULT INJECTED: %s\n", fault.c_str());
  }
  absl::PrintF("%s: %d completions, %d tokens of version %d\n", flags.out,
               capture.num_completions(), capture.num_tokens(), capture.manifest.proximal_version);
  return absl::OkStatus();
}

void AddSampling(CLI::App* sub, offpolicy::CapturedSampling& sampling) {
  AddPositive(sub, "--temperature", sampling.temperature, "logits are divided by it");
  sub->add_option("--top-k", sampling.top_k, "0: off")->check(CLI::NonNegativeNumber);
  sub->add_option("--top-p", sampling.top_p, "1: off")->check(CLI::Range(0.0, 1.0));
  sub->add_option("--min-p", sampling.min_p, "0: off")->check(CLI::Range(0.0, 1.0));
  AddPositive(sub, "--max-new-tokens", sampling.max_new_tokens,
              "of a completion, stop token included");
}

}  // namespace

void AddDriftCaptureCommand(CLI::App& drift, Action& chosen) {
  auto flags = std::make_shared<CaptureFlags>();
  CaptureRequest& request = flags->request;
  request.sampling.max_new_tokens = 64;
  CLI::App* sub = drift.add_subcommand(
      "capture", "Sample groups from a live rollout server and keep them as a capture");
  sub->add_option("address", request.address, "HOST:PORT of the server")->required();
  sub->add_option("--model", request.model,
                  "model that the server was started with: a directory, or a name on the Hub")
      ->required();
  sub->add_option("--data", flags->data_file, kDataHelp)->required();
  sub->add_option("--out", flags->out, "directory to write; must not exist")->required();
  AddPositive(sub, "--groups", flags->groups, "prompts, in an order that the seed shuffles");
  AddRange(sub, "--group-size", request.completions, 1, 1024, "completions of each prompt");
  AddSampling(sub, request.sampling);
  AddPromptFlags(sub, flags->data);
  sub->add_option("--seed", request.seed, "of prompt order and samples")->capture_default_str();
  AddCallerFlags(sub, &flags->tls);
  AddPositive(sub, "--timeout", request.timeout_seconds, "seconds of one group");
  EndHelp(
      *sub,
      "Nothing is re-scored: `tandem drift attribute OUT --weights MODEL` does that, with the fp32 "
      "or\n"
      "bf16 weights the server loaded. Captures with the trainer's side come from a run\n"
      "(trainer.capture.every).",
      "tandem drift capture 127.0.0.1:50051 --model MODEL --data train.jsonl --out capture");
  SetAction(*sub, chosen, [flags] {
    const auto caller = LoadCaller(flags->tls);
    return caller.ok() ? Finish(Capture(*flags, *caller)) : FailUsage(caller.status());
  });
}

}  // namespace tandem::cli
