// Cells: the injected gaps (training-inference mismatches) of the phase diagram and of the study of
// gap kinds, by name, and the runs that they need.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "drift_lab/phase/toy/run.h"

namespace tandem::drift {

struct Cell {
  std::string name;   // "lag_64", in files and on command lines
  std::string title;  // "lag 64", on pages
  Gap gap;
  int length = 8;
  double learning_rate = 3e-3;
  int steps = 800;
  double context_noise = WarmStartOptions().context_noise;
};

// The same cell with another warm start. Its name says so, unless it is the default.
Cell WithContextNoise(Cell cell, double context_noise);

inline constexpr std::string_view kNoGap = "no_gap";

// The rows of the phase diagram, in order: no gap, lags, lags at other learning rates, logit noise,
// uniform tokens, temperatures, and some for completions of 24 tokens with half the steps.
std::vector<Cell> PhaseCells(int steps);

// The gaps of the study of kinds: each is a tilt in one direction with one KL.
std::vector<Cell> KindCells(int steps);

const char* DirectionName(Direction direction);
const char* BudgetName(KlBudget budget);

// The methods of the study of kinds: no correction, one that weights, and one that masks.
std::span<const Method> KindMethods();

struct PlannedRun {
  Cell cell;
  Method method;
  uint64_t seed;
};

// The runs of every cell with every method under the seeds 1 .. num_seeds, by cell and method.
std::vector<PlannedRun> Plan(std::span<const Cell> cells, std::span<const Method> methods,
                             int num_seeds);

RunOptions OptionsOf(const PlannedRun& planned);

}  // namespace tandem::drift
