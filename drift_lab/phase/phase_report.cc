#include "drift_lab/phase/phase_report.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "nlohmann/json.hpp"

namespace tandem::drift {
namespace {

using Cells = std::vector<std::string>;

std::string TableRow(const Cells& cells) {
  return absl::StrCat("| ", absl::StrJoin(cells, " | "), " |\n");
}

std::string TableHead(const Cells& cells) {
  std::string rule = "|";
  for (size_t i = 0; i < cells.size(); ++i) rule += "---|";
  return TableRow(cells) + rule + "\n";
}

std::string Digits(double value, int digits) {
  return std::isnan(value) ? "–" : absl::StrFormat("%.*f", digits, value);
}

// "0.96 ± 0.02", with half the width of the interval.
std::string WithHalfWidth(const SeedInterval& interval, int digits) {
  const double half = (interval.high - interval.low) / 2;
  return std::isnan(half) ? Digits(interval.mean, digits)
                          : absl::StrFormat("%.*f ± %.*f", digits, interval.mean, digits, half);
}

std::string WithBounds(const SeedInterval& interval) {
  if (std::isnan(interval.mean)) return "–";
  return absl::StrFormat("%.2f (%.2f–%.2f)", interval.mean, interval.low, interval.high);
}

// The cells and the methods in the order of the entries, without repetition.
struct Shape {
  std::vector<std::string> cells, titles;
  std::vector<Method> methods;
};

Shape ShapeOf(const std::vector<PhaseEntry>& table) {
  Shape shape;
  for (const PhaseEntry& entry : table) {
    if (shape.cells.empty() || shape.cells.back() != entry.cell.name) {
      shape.cells.push_back(entry.cell.name);
      shape.titles.push_back(entry.cell.title);
    }
    if (std::find(shape.methods.begin(), shape.methods.end(), entry.method) ==
        shape.methods.end()) {
      shape.methods.push_back(entry.method);
    }
  }
  return shape;
}

// One table with a row per cell and a column per method. `text` writes an entry.
template <typename Text>
std::string PhaseTableOf(const std::vector<PhaseEntry>& table, const Text& text) {
  const Shape shape = ShapeOf(table);
  Cells head = {"gap"};
  for (const Method method : shape.methods) head.emplace_back(MethodName(method));
  std::string out = TableHead(head);
  for (size_t i = 0; i < shape.cells.size(); ++i) {
    Cells row = {shape.titles[i]};
    for (const Method method : shape.methods) {
      const auto found = std::find_if(table.begin(), table.end(), [&](const PhaseEntry& entry) {
        return entry.cell.name == shape.cells[i] && entry.method == method;
      });
      row.push_back(found == table.end() ? "–" : text(*found));
    }
    out += TableRow(row);
  }
  return out;
}

std::string TablePart(const std::vector<PhaseEntry>& table) {
  std::string out =
      "## Phase diagram\n\nScore: exact pass probability, mean after each of the last 50 updates. "
      "Mean over seeds ± half its 95 % interval (Student's t over seeds), worst seed in "
      "brackets.\n\n";
  out += PhaseTableOf(table, [](const PhaseEntry& entry) {
    return absl::StrFormat("%s (%.2f)", WithHalfWidth(entry.score, 2), entry.worst);
  });
  out += "\nSeeds whose score fell under half of its highest, of all:\n\n";
  out += PhaseTableOf(table, [](const PhaseEntry& entry) {
    return absl::StrFormat("%d/%d", entry.num_halved, entry.num_seeds);
  });
  out += "\nKept at step 0, tokens with advantage > 0 / advantage < 0:\n\n";
  out += PhaseTableOf(table, [](const PhaseEntry& entry) {
    return absl::StrCat(Digits(entry.kept_positive, 2), " / ", Digits(entry.kept_negative, 2));
  });
  out += "\nLargest logit of a run, mean over seeds:\n\n";
  out += PhaseTableOf(table, [](const PhaseEntry& entry) { return Digits(entry.max_logit, 0); });
  return out + "\n";
}

std::string PopulationPart(const Population& population) {
  const CollapsePrediction& prediction = population.prediction;
  std::string out = absl::StrCat("### ", population.title, "\n\n", prediction.num_healthy,
                                 " runs did not collapse, ", prediction.num_collapsed, " did: ");
  for (size_t i = 0; i < kLeads.size(); ++i) {
    absl::StrAppend(&out, i == 0 ? "" : ", ", prediction.num_late_enough[i], " at step ", kLeads[i],
                    " or later");
  }
  out += ".\n\n";
  Cells head = {"predictor"};
  for (const int lead : kLeads) head.push_back(absl::StrCat("AUC, ", lead, " steps before"));
  head.insert(head.end(), {"false alarms", "announced", "lead, median (quartiles)"});
  out += TableHead(head);
  for (const PredictorQuality& quality : prediction.predictors) {
    Cells row = {std::string(PredictorName(quality.predictor))};
    for (const SeedInterval& auc : quality.auc) row.push_back(WithBounds(auc));
    row.push_back(WithBounds(quality.false_alarms));
    row.push_back(WithBounds(quality.announced));
    row.push_back(std::isnan(quality.lead_median)
                      ? "–"
                      : absl::StrFormat("%.0f (%.0f–%.0f)", quality.lead_median, quality.lead_low,
                                        quality.lead_high));
    out += TableRow(row);
  }
  return out + "\n";
}

// One table for a budget, with a row per direction and a column per strength. `text` writes an
// entry.
template <typename Text>
std::string KindTableOf(const std::vector<KindEffect>& kinds, KlBudget budget, Method method,
                        const Text& text) {
  std::vector<double> strengths;
  std::vector<Direction> directions;
  std::vector<const KindEffect*> chosen;
  for (const KindEffect& effect : kinds) {
    if (effect.cell.gap.budget != budget || effect.method != method) continue;
    chosen.push_back(&effect);
    if (std::find(strengths.begin(), strengths.end(), effect.cell.gap.strength) ==
        strengths.end()) {
      strengths.push_back(effect.cell.gap.strength);
    }
    if (directions.empty() || directions.back() != effect.cell.gap.direction) {
      directions.push_back(effect.cell.gap.direction);
    }
  }
  if (chosen.empty()) return "";
  Cells head = {absl::StrCat(BudgetName(budget), ", ", MethodName(method))};
  for (const double strength : strengths) head.push_back(absl::StrCat(strength));
  std::string out = TableHead(head);
  for (const Direction direction : directions) {
    Cells row = {DirectionName(direction)};
    for (const double strength : strengths) {
      const auto found = std::find_if(chosen.begin(), chosen.end(), [&](const KindEffect* effect) {
        return effect->cell.gap.direction == direction && effect->cell.gap.strength == strength;
      });
      row.push_back(found == chosen.end() ? "–" : text(**found));
    }
    out += TableRow(row);
  }
  return out + "\n";
}

// The tables of all budgets and methods.
template <typename Text>
std::string KindTables(const std::vector<KindEffect>& kinds, const Text& text) {
  std::string out;
  for (const KlBudget budget : {KlBudget::kConstant, KlBudget::kByUncertainty}) {
    for (const Method method : KindMethods()) out += KindTableOf(kinds, budget, method, text);
  }
  return out;
}

std::string KindsPart(const std::vector<KindEffect>& kinds) {
  std::string out =
      "## Kinds of gap at equal KL\n\nColumns: strength of the KL(mu || pi) budget. Loss: score "
      "without a gap minus score with it, paired by seed, ± half the 95 % interval (Student's t); "
      "in brackets seeds whose score fell under half of its highest.\n\n";
  out += KindTables(kinds, [](const KindEffect& effect) {
    return absl::StrCat(WithHalfWidth(effect.loss, 3), " (", effect.num_halved, "/",
                        effect.num_seeds, ")");
  });
  out += "Loss of the mean score over the run:\n\n";
  out += KindTables(
      kinds, [](const KindEffect& effect) { return WithHalfWidth(effect.mean_score_loss, 3); });
  out += "KL reached, exact, mean over tokens: first batch / whole run:\n\n";
  out += KindTables(kinds, [](const KindEffect& effect) {
    return absl::StrCat(Digits(effect.first_kl, 4), " / ", Digits(effect.mean_kl, 4));
  });
  out += "Score at the end / mean reward of the sampler there:\n\n";
  return out + KindTables(kinds, [](const KindEffect& effect) {
           return absl::StrCat(Digits(effect.score.mean, 2), " / ", Digits(effect.last_reward, 2));
         });
}

using nlohmann::json;

json NumberOrNull(double value) { return std::isfinite(value) ? json(value) : json(nullptr); }

json IntervalJson(const SeedInterval& interval) {
  return {{"mean", NumberOrNull(interval.mean)},
          {"low", NumberOrNull(interval.low)},
          {"high", NumberOrNull(interval.high)}};
}

json EntryJson(const PhaseEntry& entry) {
  return {{"cell", entry.cell.name},
          {"title", entry.cell.title},
          {"method", MethodName(entry.method)},
          {"seeds", entry.num_seeds},
          {"score", IntervalJson(entry.score)},
          {"worst", entry.worst},
          {"start", entry.start},
          {"halved", entry.num_halved},
          {"max_logit", NumberOrNull(entry.max_logit)},
          {"kept_positive", NumberOrNull(entry.kept_positive)},
          {"kept_negative", NumberOrNull(entry.kept_negative)}};
}

json PopulationJson(const Population& population) {
  const CollapsePrediction& prediction = population.prediction;
  json out = {{"title", population.title},
              {"collapsed", prediction.num_collapsed},
              {"healthy", prediction.num_healthy},
              {"leads", kLeads},
              {"late_enough", prediction.num_late_enough},
              {"predictors", json::array()}};
  for (const PredictorQuality& quality : prediction.predictors) {
    json auc = json::array();
    for (const SeedInterval& interval : quality.auc) auc.push_back(IntervalJson(interval));
    out["predictors"].push_back({{"name", PredictorName(quality.predictor)},
                                 {"auc", std::move(auc)},
                                 {"false_alarms", IntervalJson(quality.false_alarms)},
                                 {"announced", IntervalJson(quality.announced)},
                                 {"lead_low", NumberOrNull(quality.lead_low)},
                                 {"lead_median", NumberOrNull(quality.lead_median)},
                                 {"lead_high", NumberOrNull(quality.lead_high)}});
  }
  return out;
}

json KindJson(const KindEffect& effect) {
  return {{"direction", DirectionName(effect.cell.gap.direction)},
          {"budget", BudgetName(effect.cell.gap.budget)},
          {"strength", effect.cell.gap.strength},
          {"method", MethodName(effect.method)},
          {"seeds", effect.num_seeds},
          {"score", IntervalJson(effect.score)},
          {"loss", IntervalJson(effect.loss)},
          {"mean_score_loss", IntervalJson(effect.mean_score_loss)},
          {"worst", effect.worst},
          {"halved", effect.num_halved},
          {"first_kl", effect.first_kl},
          {"mean_kl", effect.mean_kl},
          {"last_reward", effect.last_reward}};
}

}  // namespace

std::string ToMarkdown(const PhaseReport& report) {
  std::string out =
      absl::StrCat("# Phase diagram of the toy\n\n", report.date, ", commit ", report.commit,
                   ", seeds 1 to ", report.num_seeds, ", ", report.steps, " steps.\n\n");
  if (!report.table.empty()) out += TablePart(report.table);
  if (!report.populations.empty()) out += "## Predictors of collapse\n\n";
  for (const Population& population : report.populations) out += PopulationPart(population);
  if (!report.kinds.empty()) out += KindsPart(report.kinds);
  return out;
}

std::string ToJson(const PhaseReport& report) {
  json out = {{"date", report.date},   {"commit", report.commit}, {"seeds", report.num_seeds},
              {"steps", report.steps}, {"table", json::array()},  {"populations", json::array()},
              {"kinds", json::array()}};
  for (const PhaseEntry& entry : report.table) out["table"].push_back(EntryJson(entry));
  for (const Population& population : report.populations) {
    out["populations"].push_back(PopulationJson(population));
  }
  for (const KindEffect& effect : report.kinds) out["kinds"].push_back(KindJson(effect));
  return out.dump(1) + "\n";
}

}  // namespace tandem::drift
