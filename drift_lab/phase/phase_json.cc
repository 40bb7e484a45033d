#include <cmath>
#include <string>

#include "drift_lab/phase/phase_report.h"
#include "nlohmann/json.hpp"

namespace tandem::drift {
namespace {

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
  return {{"direction", DirectionName(effect.kind.direction)},
          {"budget", BudgetName(effect.kind.budget)},
          {"strength", effect.kind.strength},
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
