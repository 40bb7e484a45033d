#include "drift_lab/phase/cells.h"

#include <algorithm>
#include <array>

#include "absl/strings/str_cat.h"

namespace tandem::drift {
namespace {

Cell LagCell(int lag, double learning_rate, int steps) {
  Cell cell{absl::StrCat("lag_", lag), absl::StrCat("lag ", lag), {.lag = lag}};
  cell.steps = steps;
  cell.learning_rate = learning_rate;
  if (learning_rate != Cell().learning_rate) {
    const char* const rate = learning_rate < 3e-3 ? "1e-3" : "1e-2";
    absl::StrAppend(&cell.name, "_lr_", rate);
    absl::StrAppend(&cell.title, ", lr ", rate);
  }
  return cell;
}

Cell SamplerCell(GapKind kind, double strength, int steps) {
  Cell cell{.gap = {.kind = kind, .strength = strength}, .steps = steps};
  if (kind == GapKind::kLogitNoise) {
    cell.name = absl::StrCat("noise_", strength);
    cell.title = absl::StrCat("logit noise ", strength);
  } else if (kind == GapKind::kUniformTokens) {
    cell.name = absl::StrCat("uniform_", strength);
    cell.title = absl::StrCat(100 * strength, " % tokens uniform");
  } else {
    cell.name = absl::StrCat("temperature_", strength);
    cell.title = absl::StrCat("sampler T = ", strength);
  }
  return cell;
}

Cell Length24Cell(Cell cell) {
  cell.name = absl::StrCat("long_", cell.name);
  cell.title = absl::StrCat("24 tokens, ", cell.title);
  cell.length = 24;
  cell.steps = (cell.steps + 1) / 2;
  return cell;
}

struct NamedDirection {
  Direction direction;
  const char* name;
};
constexpr std::array kDirections = {
    NamedDirection{Direction::kFreshNoise, "fresh_noise"},
    NamedDirection{Direction::kFrozenNoise, "frozen_noise"},
    NamedDirection{Direction::kTokenBias, "token_bias"},
    NamedDirection{Direction::kRareTokens, "rare_tokens"},
    NamedDirection{Direction::kTowardsReward, "towards_reward"},
    NamedDirection{Direction::kAwayFromReward, "away_from_reward"},
    NamedDirection{Direction::kSharpen, "sharpen"},
    NamedDirection{Direction::kFlatten, "flatten"},
};

constexpr std::array kConstantStrengths = {0.01, 0.03, 0.1, 0.3};
constexpr std::array kUncertaintyStrengths = {0.05, 0.15, 0.3,
                                              0.45};  // 0.5: not reachable everywhere

constexpr std::array kKindMethods = {Method::kNone, Method::kTokenTis, Method::kSequenceMis};

}  // namespace

Cell WithContextNoise(Cell cell, double context_noise) {
  if (context_noise == cell.context_noise) return cell;
  cell.context_noise = context_noise;
  absl::StrAppend(&cell.name, "_context_", context_noise);
  absl::StrAppend(&cell.title, ", context noise ", context_noise);
  return cell;
}

std::vector<Cell> PhaseCells(int steps) {
  std::vector<Cell> cells;
  cells.push_back(LagCell(0, 3e-3, steps));
  cells.back().name = kNoGap;
  cells.back().title = "no gap";
  for (const int lag : {4, 16, 24, 32, 48, 64}) cells.push_back(LagCell(lag, 3e-3, steps));
  for (const int lag : {32, 64, 128}) cells.push_back(LagCell(lag, 1e-3, steps));
  for (const int lag : {8, 16, 32}) cells.push_back(LagCell(lag, 1e-2, steps));
  for (const double sigma : {0.3, 1.0, 2.0}) {
    cells.push_back(SamplerCell(GapKind::kLogitNoise, sigma, steps));
  }
  cells.push_back(SamplerCell(GapKind::kUniformTokens, 0.1, steps));
  for (const double temperature : {0.7, 1.5}) {
    cells.push_back(SamplerCell(GapKind::kTemperature, temperature, steps));
  }
  cells.push_back(Length24Cell(SamplerCell(GapKind::kLogitNoise, 0.1, steps)));
  cells.push_back(Length24Cell(SamplerCell(GapKind::kLogitNoise, 1, steps)));
  cells.push_back(Length24Cell(LagCell(32, 3e-3, steps)));
  return cells;
}

std::vector<Cell> KindCells(int steps) {
  std::vector<Cell> cells;
  for (const KlBudget budget : {KlBudget::kConstant, KlBudget::kByUncertainty}) {
    for (const NamedDirection& named : kDirections) {
      for (const double strength :
           budget == KlBudget::kConstant ? kConstantStrengths : kUncertaintyStrengths) {
        const std::string name = absl::StrCat(named.name, "_", BudgetName(budget), "_", strength);
        cells.push_back({.name = name,
                         .title = name,
                         .gap = {.kind = GapKind::kTilt,
                                 .strength = strength,
                                 .direction = named.direction,
                                 .budget = budget},
                         .steps = steps});
      }
    }
  }
  return cells;
}

const char* DirectionName(Direction direction) {
  return std::ranges::find(kDirections, direction, &NamedDirection::direction)->name;
}

const char* BudgetName(KlBudget budget) {
  return budget == KlBudget::kConstant ? "constant" : "by_uncertainty";
}

std::span<const Method> KindMethods() { return kKindMethods; }

std::vector<PlannedRun> Plan(std::span<const Cell> cells, std::span<const Method> methods,
                             int num_seeds) {
  std::vector<PlannedRun> plan;
  for (const Cell& cell : cells) {
    for (const Method method : methods) {
      for (int seed = 1; seed <= num_seeds; ++seed) {
        plan.push_back({cell, method, static_cast<uint64_t>(seed)});
      }
    }
  }
  return plan;
}

RunOptions OptionsOf(const PlannedRun& planned) {
  return {.gap = planned.cell.gap,
          .method = planned.method,
          .length = planned.cell.length,
          .learning_rate = planned.cell.learning_rate,
          .steps = planned.cell.steps,
          .seed = planned.seed,
          .warm_start = {.context_noise = planned.cell.context_noise}};
}

}  // namespace tandem::drift
