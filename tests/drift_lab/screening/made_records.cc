#include "tests/drift_lab/screening/made_records.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>

#include "common/base/stable_random.h"

namespace tandem::drift::testing {
namespace {

constexpr size_t kVocabulary = 40;
constexpr float kAbsent = std::numeric_limits<float>::quiet_NaN();
using Values = std::vector<double>;

Values LogSoftmax(Values logits, double temperature, size_t top_k) {
  if (top_k > 0) {
    Values sorted = logits;
    std::ranges::sort(sorted, std::greater<>());
    for (double& x : logits) x = x >= sorted[top_k - 1] ? x : -INFINITY;
  }
  for (double& x : logits) x /= temperature;
  const double most = *std::ranges::max_element(logits);
  double sum = 0;
  for (const double x : logits) sum += std::exp(x - most);
  for (double& x : logits) x -= most + std::log(sum);
  return logits;
}

double EntropyOf(const Values& logprobs) {
  double entropy = 0;
  for (const double x : logprobs) entropy -= std::isfinite(x) ? std::exp(x) * x : 0;
  return entropy;
}

void AddTop(const Values& logprobs, bool given, TopTokens& top) {
  if (top.offsets.empty()) top.offsets.push_back(0);
  if (given) {
    std::vector<int32_t> ids(kVocabulary);
    std::iota(ids.begin(), ids.end(), 0);
    std::ranges::sort(ids, std::greater<>(),
                      [&](int32_t id) { return logprobs[static_cast<size_t>(id)]; });
    for (size_t k = 0; k < 3; ++k) {
      top.ids.push_back(ids[k]);
      top.logprobs.push_back(static_cast<float>(logprobs[static_cast<size_t>(ids[k])]));
    }
  }
  top.offsets.push_back(std::ssize(top.ids));
}

std::vector<float>& ColumnOf(Records& records, Column column) {
  return records.columns[static_cast<size_t>(column)];
}

size_t Draw(const Values& logprobs, double uniform) {
  double sum = 0;
  for (size_t id = 0; id < logprobs.size(); ++id) {
    sum += std::exp(logprobs[id]);
    if (uniform < sum) return id;
  }
  return static_cast<size_t>(std::ranges::max_element(logprobs) - logprobs.begin());
}

}  // namespace

Records MakeRecords(const MadeOptions& options) {
  std::mt19937_64 random(options.seed);
  RandomNormal normal(options.seed + 1);
  Records records{.path = "made.jsonl"};
  for (int64_t row = 0; row < options.rows; ++row) {
    const int64_t drawn = row % 3 == 2 ? options.tokens / 2 : options.tokens;
    for (int64_t t = 0; t < options.prompt + drawn; ++t) {
      const bool is_drawn = t >= options.prompt;
      Values logits(kVocabulary);
      const double sharpness = 0.5 + 3.0 * static_cast<double>(random() % 1000) / 1000.0;
      for (double& x : logits) x = sharpness * normal.Next();
      Values trainer = logits;
      for (double& x : trainer) x += options.noise * normal.Next();
      const Values behaviour =
          LogSoftmax(logits, options.temperature, static_cast<size_t>(options.top_k));
      const Values proximal = LogSoftmax(trainer, options.proximal_temperature, 0);
      const Values draws = options.draw_temperature > 0
                               ? LogSoftmax(logits, options.draw_temperature, 0)
                               : behaviour;
      const size_t id = Draw(draws, static_cast<double>(random() >> 11) * 0x1p-53);
      records.token_ids.push_back(static_cast<int32_t>(id));
      records.drawn.push_back(is_drawn);
      const auto value = [&](double x) { return is_drawn ? static_cast<float>(x) : kAbsent; };
      ColumnOf(records, Column::kBehaviour).push_back(value(behaviour[id]));
      ColumnOf(records, Column::kProximal).push_back(value(proximal[id]));
      if (options.entropies) {
        ColumnOf(records, Column::kBehaviourEntropy).push_back(value(EntropyOf(behaviour)));
        ColumnOf(records, Column::kProximalEntropy).push_back(value(EntropyOf(proximal)));
      }
      if (options.top) {
        AddTop(behaviour, is_drawn, records.behaviour_top);
        AddTop(proximal, is_drawn, records.proximal_top);
      }
    }
    records.offsets.push_back(std::ssize(records.token_ids));
    records.rows.emplace_back();
  }
  return records;
}

Records RecordsOf(const std::vector<std::vector<float>>& behaviour,
                  const std::vector<std::vector<float>>& proximal) {
  Records records{.path = "made.jsonl"};
  for (size_t row = 0; row < behaviour.size(); ++row) {
    for (size_t t = 0; t <= behaviour[row].size(); ++t) {
      records.token_ids.push_back(static_cast<int32_t>(t));
      records.drawn.push_back(t > 0);
      ColumnOf(records, Column::kBehaviour).push_back(t > 0 ? behaviour[row][t - 1] : kAbsent);
      ColumnOf(records, Column::kProximal).push_back(t > 0 ? proximal[row][t - 1] : kAbsent);
    }
    records.offsets.push_back(std::ssize(records.token_ids));
    records.rows.emplace_back();
  }
  return records;
}

void ChangeRows(Records& records, Column column,
                const std::function<void(int64_t, std::vector<float>&)>& change) {
  std::vector<float>& values = ColumnOf(records, column);
  for (int64_t row = 0; row < records.num_rows(); ++row) {
    std::vector<float> drawn;
    for (int64_t n = records.begin_of(row); n < records.end_of(row); ++n) {
      if (records.drawn[static_cast<size_t>(n)] != 0)
        drawn.push_back(values[static_cast<size_t>(n)]);
    }
    change(row, drawn);
    size_t place = 0;
    for (int64_t n = records.begin_of(row); n < records.end_of(row); ++n) {
      if (records.drawn[static_cast<size_t>(n)] != 0)
        values[static_cast<size_t>(n)] = drawn[place++];
    }
  }
}

}  // namespace tandem::drift::testing
