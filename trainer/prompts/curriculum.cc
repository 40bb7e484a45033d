#include "trainer/prompts/curriculum.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/stable_random.h"
#include "common/base/status_macros.h"
#include "nlohmann/json.hpp"

namespace tandem::trainer {
namespace {

// Tells these draws from others of the run's seed.
constexpr uint64_t kStream = 0x63757272;  // "curr"
constexpr uint64_t kMostDraws = 16;

// In [0, 1).
double Uniform(uint64_t seed, int64_t group_id, uint64_t draw) {
  const uint64_t hash = StableHash({seed, kStream, static_cast<uint64_t>(group_id), draw});
  return static_cast<double>(hash >> 11) * 0x1p-53;
}

absl::StatusOr<double> DifficultyOf(const experience::v1::Prompt& prompt,
                                    const std::string& field) {
  const auto row = nlohmann::json::parse(prompt.source_json(), nullptr, /*exceptions=*/false);
  if (row.is_object() && row.contains(field) && row[field].is_number()) {
    return row[field].get<double>();
  }
  return InvalidArgument("trainer.data.train, line ", prompt.index() + 1, ": no number \"", field,
                         "\", which curriculum.kind easy_to_hard orders prompts by "
                         "(trainer.curriculum.difficulty names the field)");
}

}  // namespace

void BindOptions(OptionBinder& binder, CurriculumOptions& options) {
  binder.Choice(
      "kind", &options.kind,
      {{"none", CurriculumKind::kNone},
       {"weighted", CurriculumKind::kWeighted},
       {"easy_to_hard", CurriculumKind::kEasyToHard}},
      "every prompt once an epoch; more often where `weight` is large; or evenly from the "
      "easiest, more and more of them");
  binder.Choice(
      "weight", &options.weight,
      {{"variance", CurriculumWeight::kVariance}, {"failure", CurriculumWeight::kFailure}},
      "of a prompt, by its rate of success p so far: p (1 - p), or 1 - p");
  binder.Number("floor", &options.floor, {.min = 0, .max = 1}, "",
                "least weight, over the largest possible: no prompt is given up");
  binder.Number("fading", &options.fading, {.min = 0, .max = 1}, "",
                "what a further group of a prompt leaves of the counts before it; also of "
                "group_size.kind adaptive");
  binder.Text("difficulty", &options.difficulty,
              "number in each line of data.train by which easy_to_hard orders them");
  binder.Number("start_share", &options.start_share, {.min = 0, .max = 1, .exclusive_min = true},
                "", "of the prompts, the easiest, at the first step of easy_to_hard");
  binder.Integer("ramp_steps", &options.ramp_steps, {.min = 1}, "steps",
                 "until easy_to_hard draws from all prompts");
}

double SharedPrompts(const CurriculumOptions& options, int64_t step) {
  const double progress =
      std::min(1.0, static_cast<double>(step) / static_cast<double>(options.ramp_steps));
  return options.start_share + (1 - options.start_share) * progress;
}

absl::StatusOr<std::unique_ptr<Curriculum>> Curriculum::Create(
    const CurriculumOptions& options, uint64_t seed,
    std::span<const experience::v1::Prompt> prompts) {
  std::unique_ptr<Curriculum> curriculum(new Curriculum(options, seed));
  if (options.kind != CurriculumKind::kEasyToHard) return curriculum;
  std::vector<double> difficulties;
  for (const experience::v1::Prompt& prompt : prompts) {
    TANDEM_ASSIGN_OR_RETURN(difficulties.emplace_back(), DifficultyOf(prompt, options.difficulty));
  }
  curriculum->by_difficulty_.resize(prompts.size());
  std::iota(curriculum->by_difficulty_.begin(), curriculum->by_difficulty_.end(), 0);
  std::ranges::stable_sort(curriculum->by_difficulty_, {},
                           [&](int64_t i) { return difficulties[static_cast<size_t>(i)]; });
  return curriculum;
}

double Curriculum::WeightOf(int64_t prompt, const SuccessCounts& counts) const {
  const double weight = options_.weight == CurriculumWeight::kVariance
                            ? 4 * counts.ExpectedVariance(prompt)
                            : 1 - counts.Mean(prompt);
  return std::max(options_.floor, weight);
}

std::vector<int64_t> Curriculum::Choose(int64_t first_group, int64_t num_groups, int64_t step,
                                        const SuccessCounts& counts,
                                        std::set<int64_t> under_way) const {
  const auto num_prompts = static_cast<size_t>(counts.num_prompts());
  std::vector<double> sums;  // of weights up to each prompt
  if (options_.kind == CurriculumKind::kWeighted) {
    double sum = 0;
    for (size_t i = 0; i < num_prompts; ++i) {
      sums.push_back(sum += WeightOf(static_cast<int64_t>(i), counts));
    }
  }
  const auto shared = static_cast<size_t>(
      std::ceil(SharedPrompts(options_, step) * static_cast<double>(num_prompts)));
  const auto draw_prompt = [&](double uniform) {
    if (options_.kind == CurriculumKind::kEasyToHard) {
      return by_difficulty_[static_cast<size_t>(uniform * static_cast<double>(shared))];
    }
    const auto above = std::ranges::upper_bound(sums, uniform * sums.back());
    return std::min<int64_t>(above - sums.begin(), counts.num_prompts() - 1);
  };
  std::vector<int64_t> chosen;
  for (int64_t group_id = first_group; group_id < first_group + num_groups; ++group_id) {
    int64_t prompt = 0;
    for (uint64_t draw = 0; draw < kMostDraws; ++draw) {
      prompt = draw_prompt(Uniform(seed_, group_id, draw));
      if (!under_way.contains(prompt)) break;
    }
    under_way.insert(prompt);
    chosen.push_back(prompt);
  }
  return chosen;
}

}  // namespace tandem::trainer
