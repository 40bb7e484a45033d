// tandem drift compare: two engines, the same tokens, and why they differ.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "cli/compare/compare_prompts.h"
#include "cli/compare/comparison.h"
#include "cli/compare/engine_process.h"
#include "cli/compare/engine_spec.h"
#include "cli/compare/tandem_engine.h"
#include "cli/drift/capture_flags.h"
#include "cli/drift/why_records.h"
#include "cli/io/live_line.h"
#include "cli/io/output_file.h"
#include "cli/io/shared_flags.h"
#include "cli/io/subcommand.h"
#include "cli/model/model_input.h"
#include "common/base/exit_codes.h"
#include "common/base/status_macros.h"
#include "common/model/model_config.h"
#include "common/options/command_line.h"
#include "common/process/stop_signal.h"
#include "common/tokenizer/tokenizer.h"
#include "drift_lab/records/records_file.h"

namespace tandem::cli {
namespace {

struct CompareFlags {
  std::string a, b, python_a, python_b;
  std::string model, prompts, weights, html;
  std::string out = "compare.jsonl";
  std::string logprobs = "processed";
  std::vector<std::string> steps_of_weights;
  EngineSampling sampling;
  double referee_seconds = WhyRecordsFlags().referee_seconds;
  bool records_only = false;
  JsonFlags json;
};

// How one side is started.
struct Side {
  EngineSpec spec;
  EnginePython python;  // not of tandem
};

absl::StatusOr<Side> ParseSide(const std::string& text, const std::string& python) {
  Side side;
  TANDEM_ASSIGN_OR_RETURN(side.spec, ParseEngineSpec(text));
  if (side.spec.name == "tandem") return side;
  TANDEM_ASSIGN_OR_RETURN(side.python, FindEnginePython(side.spec, python));
  return side;
}

// What the longest sampling of this engine can hold in its KV cache.
int64_t CapacityFor(const ComparisonPlan& plan) {
  size_t longest = 0;
  for (const std::vector<int32_t>& prompt : plan.prompts) {
    longest = std::max(longest, prompt.size());
  }
  constexpr int64_t kTwoBlocks = 128;
  return static_cast<int64_t>(longest) + kTwoBlocks +
         plan.sampling.num_completions * (plan.sampling.max_new_tokens + kTwoBlocks);
}

EngineStarter StarterOf(const Side& side, const ComparisonPlan& plan, const std::string& log_path,
                        const StopSignal& stop) {
  const std::string& model = side.spec.model.empty() ? plan.model : side.spec.model;
  if (side.spec.name == "tandem") {
    return [&] { return StartTandemEngine(side.spec, model, CapacityFor(plan)); };
  }
  return [&, log_path] {
    return StartEngineProcess(
        {.spec = side.spec, .python = side.python, .model = model, .log_path = log_path}, [&stop] {
          return stop.Requested() ? trainer::WithExitCode(absl::CancelledError("stopped"),
                                                          ExitCodeOfSignal(stop.signal()))
                                  : absl::OkStatus();
        });
  };
}

// The specs of engines are given the directories of models that they name.
absl::StatusOr<ComparisonPlan> PlanOf(const CompareFlags& flags, EngineSpec& a, EngineSpec& b) {
  for (EngineSpec* const spec : {&a, &b}) {
    if (!spec->model.empty()) TANDEM_RETURN_IF_ERROR(FindModel(&spec->model));
  }
  ComparisonPlan plan = {.model = flags.model,
                         .weights_a = a.model,
                         .weights_b = b.model,
                         .steps_of_weights = flags.steps_of_weights,
                         .sampling = flags.sampling};
  plan.sampling.raw = flags.logprobs == "raw";
  TANDEM_RETURN_IF_ERROR(FindModel(&plan.model));
  for (std::string& directory : plan.steps_of_weights) {
    TANDEM_RETURN_IF_ERROR(FindModel(&directory));
  }
  TANDEM_ASSIGN_OR_RETURN(const ModelConfig config, ReadModelConfig(plan.model));
  plan.eos_token_ids = config.eos_token_ids;
  plan.vocab_size = config.vocab_size;
  TANDEM_ASSIGN_OR_RETURN(const auto tokenizer, Tokenizer::Load(plan.model));
  TANDEM_ASSIGN_OR_RETURN(plan.prompts, ReadComparePrompts(flags.prompts, *tokenizer));
  return plan;
}

// Elsewhere than on a terminal, a line for each thing that begins.
class CompareLine {
 public:
  void Show(const std::string& what, int64_t done, int64_t total) {
    if (!line_.is_terminal() && what != last_) line_.Print(what);
    last_ = what;
    line_.Update(absl::StrCat(what, " ", ProgressBar(done, total, 30), " rows"));
  }

 private:
  LiveLine line_;
  std::string last_;
};

absl::StatusOr<int> RunCompareCommand(const CompareFlags& flags) {
  absl::StatusOr<Side> a = ParseSide(flags.a, flags.python_a);
  if (!a.ok()) return AsUsageError(a.status());
  absl::StatusOr<Side> b = ParseSide(flags.b, flags.python_b);
  if (!b.ok()) return AsUsageError(b.status());
  const WhyRecordsFlags verdict = {.path = flags.out,
                                   .model = flags.records_only ? "" : flags.model,
                                   .weights = flags.weights,
                                   .html = flags.html,
                                   .json = flags.json,
                                   .seed = flags.sampling.seed,
                                   .referee_seconds = flags.referee_seconds};
  TANDEM_RETURN_IF_ERROR(CheckOutputFolder(flags.out));
  TANDEM_RETURN_IF_ERROR(CheckWhyRecords(verdict));
  TANDEM_ASSIGN_OR_RETURN(const ComparisonPlan plan, PlanOf(flags, a->spec, b->spec));
  ComparisonResult result;
  {
    const StopSignal stop;
    CompareLine line;
    TANDEM_ASSIGN_OR_RETURN(result, Compare(plan, StarterOf(*a, plan, flags.out + ".a.log", stop),
                                            StarterOf(*b, plan, flags.out + ".b.log", stop),
                                            [&](const std::string& what, int64_t done,
                                                int64_t total) { line.Show(what, done, total); }));
  }
  TANDEM_RETURN_IF_ERROR(
      trainer::WithExitCode(drift::WriteRecords(flags.out, result.records), ExitCode::kStorage));
  for (const std::string& note : result.notes) std::fprintf(stderr, "note: %s\n", note.c_str());
  std::fprintf(stderr, "%s: %lld rows of %s, scored by %s\n", flags.out.c_str(),
               static_cast<long long>(result.records.num_rows()), flags.a.c_str(), flags.b.c_str());
  return RunWhyRecords(verdict);
}

void AddEngineOptions(CLI::App* sub, CompareFlags& flags) {
  sub->add_option(
         "--a", flags.a,
         "the engine that samples: tandem[:fp32|bf16][:exact], "
         "transformers[:fp32|bf16][:eager],\n"
         "vllm[:bf16], llama_cpp[:f16|q8_0|q4_K], http://HOST:PORT; :NAME=VALUE are options "
         "of its adapter,\n"
         ":model=DIR is a model of this side alone")
      ->required();
  sub->add_option("--b", flags.b, "the engine that scores, in the trainer's place")->required();
  sub->add_option("--model", flags.model, kModelFlagHelp)->required();
  sub->add_option("--prompts", flags.prompts,
                  "file of lines: text, or JSON with prompt, messages or token_ids")
      ->required();
  sub->add_option("--steps-of-weights", flags.steps_of_weights,
                  "further model directories: both engines load one after the other, as steps");
  sub->add_option("--python-a", flags.python_a, "the interpreter that has engine A");
  sub->add_option("--python-b", flags.python_b, "the interpreter that has engine B");
}

}  // namespace

void AddDriftCompareCommand(CLI::App& drift, Action& chosen) {
  auto flags = std::make_shared<CompareFlags>();
  CLI::App* sub = drift.add_subcommand(
      "compare", "Two engines in one command: one samples, the other scores, and why they differ");
  AddEngineOptions(sub, *flags);
  EngineSampling& sampling = flags->sampling;
  AddPositive(sub, "--temperature", sampling.temperature, "of sampling and of scoring");
  AddNonNegative(sub, "--top-k", sampling.top_k, "of sampling; 0: off");
  AddShare(sub, "--top-p", sampling.top_p, "of sampling; 1: off");
  AddPositive(sub, "--max-new-tokens", sampling.max_new_tokens, "of each completion");
  AddPositive(sub, "-n,--group-size", sampling.num_completions, "completions of each prompt");
  AddChoice(sub, "--logprobs", flags->logprobs, {"processed", "raw"},
            "what A records: of the distribution that it drew from, or of the untouched logits");
  sub->add_option("--seed", sampling.seed, "of draws, samples and intervals")
      ->capture_default_str();
  sub->add_option("--out", flags->out, "the records file; logs of engines stand beside it")
      ->capture_default_str();
  sub->add_option("--html", flags->html, "also write the page of the verdict to this file");
  CLI::Option* const records_only =
      sub->add_flag("--records-only", flags->records_only,
                    "judge by the numbers alone, without a referee's forward pass");
  sub->add_option("--weights", flags->weights,
                  "model directory: a second set of weights for the referee to suspect")
      ->excludes(records_only);
  AddRefereeSeconds(sub, flags->referee_seconds, "of the referee");
  AddJsonFlags(sub, &flags->json);
  EndHelp(
      *sub,
      "The verdict is that of `tandem drift why RECORDS --model DIR`.\n"
      "Exit code 0: there is a verdict. 2: flags, or an engine that is not installed. 3: model, "
      "prompts or\n"
      "what an engine does not take. 7: a file cannot be written. 9: an engine ended by itself "
      "(its log\nis shown). 1: an engine failed inside a request.",
      "tandem drift compare --a vllm --b transformers --model MODEL --prompts FILE");
  SetAction(*sub, chosen, [flags] { return ExitAfterCapture(RunCompareCommand(*flags)); });
}

}  // namespace tandem::cli
