// Experiments about pi / mu: each is a part of the ablation, or the trainer against itself.
#include <algorithm>
#include <cmath>
#include <initializer_list>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "drift_lab/why/why.h"

namespace tandem::drift {
namespace {

const char* const kWiderSample =
    "capture more completions (trainer.capture.every=1, more prompts per step): the interval "
    "is too wide, or unknown under 8 completions";

std::string Nats(double value) { return absl::StrFormat("%.3g", value); }

const PartShare* ShareOf(const Attribution& a, Part part) {
  const auto found = std::ranges::find(a.shares.parts, part, &PartShare::part);
  return found == a.shares.parts.end() ? nullptr : &*found;
}

const NamedCause* NamedAs(const Attribution& a, Part part) {
  const auto found = std::ranges::find(a.verdict.named, part, &NamedCause::part);
  return found == a.verdict.named.end() ? nullptr : &*found;
}

double InPercent(double share) { return std::abs(share) < 5e-4 ? 0 : 100 * share; }  // no "-0.0"

std::string ShareText(const PartShare& share) {
  if (!(share.mean_abs.value > 0)) return absl::StrCat(std::string(PartName(share.part)), " 0");
  std::string text = absl::StrFormat("%s mean abs %s nats", std::string(PartName(share.part)),
                                     Nats(share.mean_abs.value));
  const offpolicy::Interval& square = share.square();
  if (!std::isfinite(square.value)) return text;
  absl::StrAppendFormat(&text, ", %.1f %%", InPercent(std::max(0.0, square.value)));
  if (square.known())
    absl::StrAppendFormat(&text, " [%.1f, %.1f]", InPercent(square.low), InPercent(square.high));
  return text + " of the mean square";
}

// The finding about one part, by the criteria of the verdict.
Finding FindingOf(const Attribution& a, const PartShare& share) {
  if (NamedAs(a, share.part) != nullptr) return Finding::kIsIt;
  if (a.verdict.nothing_to_explain || share.mean_abs.value <= kLogprobFloor) return Finding::kIsNot;
  return share.square().value < kLeastShare ? Finding::kIsNot : Finding::kCannotTell;
}

// The measurement that would decide about a part that is neither named nor excluded.
std::string DecidingOf(const Attribution& a, Part part) {
  for (const OpenQuestion& question : a.verdict.open) {
    if (absl::StrContains(question.what, std::string(PartDescription(part))))
      return question.deciding;
  }
  return kWiderSample;
}

// Completes an experiment about one or more parts. Its finding is "is it" if that of one part is.
Experiment PartsExperiment(const Attribution& a, std::initializer_list<Part> parts,
                           Experiment experiment) {
  const std::string to_do = experiment.to_do;
  std::vector<std::string> results;
  for (const Part part : parts) {
    const PartShare* const share = ShareOf(a, part);
    if (share == nullptr) continue;
    results.push_back(ShareText(*share));
    const double square = share->square().value;
    if (std::isfinite(square)) {
      experiment.share =
          (std::isfinite(experiment.share) ? experiment.share : 0) + std::max(0.0, square);
    }
    const Finding finding = FindingOf(a, *share);
    if (experiment.finding == Finding::kIsIt || finding == Finding::kIsNot) continue;
    experiment.finding = finding;
    if (finding == Finding::kCannotTell) experiment.to_do = DecidingOf(a, part);
    if (finding == Finding::kIsIt) experiment.to_do = to_do;
  }
  experiment.result = results.empty() ? "the two are one here" : absl::StrJoin(results, "; ");
  if (experiment.finding == Finding::kIsNot) experiment.to_do.clear();
  return experiment;
}

const char* RepairOf(Part part) {
  switch (part) {
    case Part::kTemperature:
    case Part::kTopP:
    case Part::kTopK:
    case Part::kMinP:
      return "make the server sample as the run asks: look for defaults that nobody set (a "
             "generation_config.json, a server flag); or ask for the same in trainer.sampling";
    case Part::kOtherVersion:
    case Part::kInterpolation:
    case Part::kTensor:
      return "push all tensors anew and compare what is computed, not only digests: "
             "drift/delivery/* of the run (docs/attribution.md)";
    case Part::kStalePrefix:
      return "empty the prefix cache at every commit, or switch it off";
    case Part::kShift:
      return "mend the recording: log-probs stand at the wrong tokens";
    case Part::kFirstId:
      return "compare the prompt ids both sides compute: a template or a BOS applied twice";
    case Part::kLogitNoise:
    case Part::kHeavyTail:
      return "the server's sums are not the same twice: look for kernels without a fixed order; "
             "--numerics invariant";
    default:
      return "compute with the precision that is claimed, or claim the one in use";
  }
}

Experiment Record(const Attribution& a) {
  Experiment e{.name = "record",
               .compared = "the server's record against its own engine's replay of the same ids"};
  std::vector<std::string> causes;
  for (const DiagnosedCause& cause : a.ablation.diagnosis.causes) {
    if (NamedAs(a, cause.part) == nullptr) continue;
    causes.push_back(absl::StrCat(std::string(PartDescription(cause.part)),
                                  cause.label.empty() ? "" : absl::StrCat(" (", cause.label, ")")));
    if (e.to_do.empty()) e.to_do = RepairOf(cause.part);
    const PartShare* const share = ShareOf(a, cause.part);
    if (share != nullptr) {
      e.share = (std::isfinite(e.share) ? e.share : 0) + std::max(0.0, share->square().value);
    }
  }
  const Fit& before = a.ablation.diagnosis.before;
  e.result = before.exact()
                 ? absl::StrFormat("equal (mean abs %s)", Nats(before.mean_abs))
                 : absl::StrFormat("mean abs %s nats; %d hypotheses replayed, the best leaves %s",
                                   Nats(before.mean_abs), a.ablation.diagnosis.num_tries,
                                   Nats(a.ablation.diagnosis.after.mean_abs));
  const PartShare* const rest = ShareOf(a, Part::kRecord);
  const bool open = rest != nullptr && FindingOf(a, *rest) != Finding::kIsNot;
  if (!causes.empty()) {
    e.finding = Finding::kIsIt;
    e.cause = absl::StrJoin(causes, " and ");
    if (open) absl::StrAppend(&e.result, "; unexplained: ", ShareText(*rest));
  } else if (open) {
    e.finding = Finding::kCannotTell;
    e.share = rest->square().value;
    e.to_do = DecidingOf(a, Part::kRecord);
  }
  return e;
}

// Whether the tokens were sampled from the recorded distribution. The ratio cannot show it: it is 1
// wherever record and replay agree.
Experiment Sampling(const Attribution& a) {
  Experiment e{.name = "draws",
               .compared = "the drawn tokens against the distribution that was recorded"};
  const double z = a.by_sequence.Get("calibration_z");
  e.result = std::isfinite(z)
                 ? absl::StrFormat("calibration z %.1f over %d tokens", z, a.shares.num_tokens)
                 : "the record has no entropies to test it by";
  if (a.ablation.sampler.named) {
    e.finding = Finding::kIsIt;
    e.cause = absl::StrCat(std::string(PartDescription(a.ablation.sampler.named->part)), " (",
                           a.ablation.sampler.named->label, ")");
    e.to_do = RepairOf(a.ablation.sampler.named->part);
  } else if (a.ablation.sampler.suspicious || std::abs(z) > kCalibrationAlarm) {
    e.finding = a.ablation.diagnosis.before.exact() ? Finding::kCannotTell : Finding::kIsNot;
    if (e.finding == Finding::kIsNot) {
      absl::StrAppend(&e.result, ", under the record, which is wrong itself");
    } else {
      e.to_do =
          "more tokens under the same settings; compare the transforms the server applies with "
          "those it records";
    }
  }
  return e;
}

Experiment Weights(const Attribution& a) {
  const offpolicy::Capture& capture = a.capture;
  int64_t least = std::numeric_limits<int64_t>::max(), most = 0;
  for (const int64_t version : capture.weight_version) {
    const int64_t lag = capture.manifest.proximal_version - version;
    least = std::min(least, lag);
    most = std::max(most, lag);
  }
  const std::string versions =
      least == most ? absl::StrCat(most) : absl::StrCat(least, " to ", most);
  Experiment e = PartsExperiment(
      a, {Part::kStaleness},
      {.name = "weights",
       .compared = "the trainer at the weights that drew each token, against those of the step",
       .cause = absl::StrCat("lagged weights, drawn ", versions,
                             most == 1 ? " version" : " versions", " before the step's"),
       .to_do = "expected where max_staleness or push.hold_back_versions is above 0: correct for "
                "it (docs/corrections.md, try with tandem drift replay), or lower them"});
  absl::StrAppend(&e.result, most == 0
                                 ? std::string("; every token was drawn by the step's weights")
                                 : absl::StrCat("; tokens drawn ", versions,
                                                most == 1 ? " version" : " versions", " before"));
  for (const auto& [by, buckets] : a.splits) {
    if (by != offpolicy::SplitBy::kVersionLag || buckets.size() < 2) continue;
    for (const offpolicy::DriftBucket& bucket : buckets) {
      absl::StrAppendFormat(&e.result, ", at %s mean abs %s", bucket.label,
                            Nats(bucket.mean_abs_delta.value));
    }
  }
  return e;
}

std::vector<Experiment> Numerics(const Attribution& a) {
  const char* const healthy =
      "nothing is broken: correct for it (docs/corrections.md), or remove it with one dtype on "
      "both sides and --numerics exact";
  const char* const rounding =
      "nothing where it is rounding (1e-5 nats in fp32); more is a difference of positions, norms "
      "or head. --numerics exact removes it";
  std::vector<Experiment> e;
  e.push_back(PartsExperiment(a, {Part::kCast},
                              {.name = "cast",
                               .compared = "weights as servers have them against the trainer's",
                               .cause = "the cast: servers have rounded weights",
                               .to_do = healthy}));
  e.push_back(PartsExperiment(
      a, {Part::kBody, Part::kHead, Part::kKv, Part::kEmulation},
      {.name = "precision",
       .compared = "linear layers, head and KV rounded as in the engine, or as in the trainer",
       .cause = "precision: the engine rounds what the trainer does not",
       .to_do = healthy}));
  if (ShareOf(a, Part::kQuantisation) != nullptr) {
    e.push_back(PartsExperiment(
        a, {Part::kQuantisation},
        {.name = "formats",
         .compared = "the engine with the number formats that the server names, against its dtype",
         .cause =
             "number formats: weights or KV are quantised on the server and not in the trainer",
         .to_do = "expected: correct for it (docs/corrections.md), leave the dearest matrices wide "
                  "(tandem drift sensitivity), or imitate it (trainer.fake_quantise)"}));
  }
  if (ShareOf(a, Part::kUnmerged) != nullptr) {
    e.push_back(PartsExperiment(
        a, {Part::kUnmerged},
        {.name = "adapters",
         .compared = "adapters beside the server's weights, against merged into them",
         .cause = "adapters: merged into weights of its dtype they are rounded, beside them they "
                  "are not",
         .to_do = "expected and small; server.engine.lora: merged serves what a merged checkpoint "
                  "does"}));
  }
  e.push_back(PartsExperiment(
      a, {Part::kPath, Part::kCarriedKv},
      {.name = "path",
       .compared = "decode replay against prefill; KV kept across an install",
       .cause = "the engine's path: cached KV is not what a prefill computes",
       .to_do = "drop KV at installs (server.in_flight), and compare decode with prefill "
                "(tandem score)"}));
  absl::StrAppendFormat(&e.back().result, "; %d completions decoded alone differ by at most %s",
                        a.alone.num_completions, Nats(a.alone.max_abs));
  e.push_back(
      PartsExperiment(a, {Part::kKernels},
                      {.name = "kernels",
                       .compared = "engine against trainer, all else equal, one completion a row",
                       .cause = "kernels: two implementations of one model",
                       .to_do = rounding}));
  e.push_back(PartsExperiment(a, {Part::kLayout},
                              {.name = "packing",
                               .compared = "the trainer, one completion a row against packed rows",
                               .cause = "packing: the trainer's rows change its log-probs",
                               .to_do = rounding}));
  return e;
}

bool RecordIsReplay(const Attribution& a) {
  const PartShare* const share = ShareOf(a, Part::kTrainerRecord);
  return share == nullptr || FindingOf(a, *share) == Finding::kIsNot;
}

Experiment TrainerTemperatureExperiment(const Attribution& a, const TrainerTemperature& fit) {
  Experiment e{.name = "temperature",
               .compared = "the trainer's record against its replay at other temperatures"};
  if (!fit.recorded) {
    e.finding = Finding::kCannotTell;
    e.result = "no trainer scored this capture: it was taken from a server";
    e.to_do = "use a capture of a run (trainer.capture.every)";
    return e;
  }
  if (RecordIsReplay(a)) {
    e.result =
        absl::StrFormat("the record is the replay at the temperature of sampling, %g", fit.claimed);
    return e;
  }
  e.result = absl::StrFormat("at %g: mean abs %s nats; best at %.5g: %s (%.1f %% of tokens equal)",
                             fit.claimed, Nats(fit.before.mean_abs), fit.fitted,
                             Nats(fit.after.mean_abs), 100 * fit.after.matched);
  if (!fit.explains()) return e;
  const auto is = [&](double temperature) { return std::abs(fit.fitted / temperature - 1) < 1e-3; };
  const std::string how = is(1)                           ? "forgot the temperature"
                          : is(fit.claimed * fit.claimed) ? "applied the temperature twice"
                                                          : "scored at another temperature";
  e.finding = Finding::kIsIt;
  e.share = ShareOf(a, Part::kTrainerRecord)->square().value;
  e.cause = absl::StrFormat(
      "temperature: the trainer %s (its record is of %.5g, tokens were drawn at %g)", how,
      fit.fitted, fit.claimed);
  e.to_do = "divide the trainer's logits by the temperature of sampling, once";
  return e;
}

Experiment TrainMode(const TrainerExperiments& trainer) {
  Experiment e{.name = "train mode",
               .compared = "the trainer's rows scored twice: again, and as an update does"};
  const TrainerTwice& twice = trainer.twice;
  e.result = absl::StrFormat(
      "differ by at most %s and %s nats over %d tokens; config.json asks for %s",
      Nats(twice.again_max_abs), Nats(twice.update_max_abs), twice.num_tokens,
      trainer.dropout.empty()
          ? "no dropout"
          : absl::StrCat(absl::StrJoin(trainer.dropout, ", "), ", which neither side applies"));
  if (std::max(twice.again_max_abs, twice.update_max_abs) <= kSameLogprob) return e;
  e.finding = Finding::kIsIt;
  e.cause = twice.again_max_abs > kSameLogprob
                ? "the trainer is random: the same pass twice gives two answers"
                : "train mode: an update computes otherwise than a proximal pass";
  e.to_do =
      "switch off what is random or differs in train mode (dropout), and fix the order of sums: "
      "trainer.deterministic";
  return e;
}

Experiment TrainerRecord(const Attribution& a, const TrainerExperiments& trainer) {
  Experiment e = PartsExperiment(
      a, {Part::kTrainerRecord},
      {.name = "trainer's record", .compared = "the trainer's record against its replay"});
  if (e.finding == Finding::kIsNot) return e;
  if (trainer.temperature.explains()) {
    e.finding = Finding::kIsNot;
    e.result += "; the temperature accounts for it";
    e.to_do.clear();
    return e;
  }
  e.finding = Finding::kCannotTell;
  e.to_do =
      "the run's trainer packed, cast or computed otherwise than it says (dtype, numerics, another "
      "machine or build): capture again on one machine with trainer.deterministic";
  return e;
}

}  // namespace

std::vector<Experiment> TrainerOverServerExperiments(const Attribution& attribution,
                                                     const TrainerExperiments& trainer) {
  std::vector<Experiment> all = {Record(attribution), Sampling(attribution),
                                 TrainerTemperatureExperiment(attribution, trainer.temperature),
                                 Weights(attribution)};
  for (Experiment& e : Numerics(attribution)) all.push_back(std::move(e));
  all.push_back(TrainMode(trainer));
  all.push_back(TrainerRecord(attribution, trainer));
  return all;
}

}  // namespace tandem::drift
