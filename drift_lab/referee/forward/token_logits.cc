#include "drift_lab/referee/forward/token_logits.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace tandem::drift {
namespace {

constexpr float kBinWidth = 0.04F;
constexpr int kNumBins = 900;  // 36 nats below the largest logit
constexpr double kNever = -std::numeric_limits<double>::infinity();

// One logit, or a bin of them.
struct Entry {
  double logit = 0, count = 1;
  double before = 0;  // the logit before temperature
  bool is_token = false;
};

// cap * tanh(logit / cap), by an exponential, which takes half as long as std::tanh.
double Capped(double logit, double cap) {
  return cap > 0 ? cap - 2 * cap / (std::exp(2 * logit / cap) + 1) : logit;
}

double Penalised(double logit, const SeenLogit& seen, const SamplerSettings& settings) {
  const bool repeated =
      seen.in_completion > 0 || (seen.in_prompt > 0 && !settings.repetition_of_drawn_only);
  if (repeated && settings.repetition_penalty != 1) {
    logit = logit > 0 ? logit / settings.repetition_penalty : logit * settings.repetition_penalty;
  }
  if (seen.in_completion > 0) {
    logit -= settings.frequency_penalty * seen.in_completion + settings.presence_penalty;
  }
  return logit;
}

bool HasPenalty(const SamplerSettings& settings) {
  return settings.repetition_penalty != 1 || settings.frequency_penalty != 0 ||
         settings.presence_penalty != 0;
}

// The bin that a logit outside the kept ones was counted in.
size_t BinOf(const std::vector<LogitBin>& bins, float logit) {
  size_t best = 0;
  float distance = std::numeric_limits<float>::infinity();
  const auto after = std::lower_bound(bins.begin(), bins.end(), logit,
                                      [](const LogitBin& bin, float x) { return bin.logit > x; });
  const size_t at = static_cast<size_t>(after - bins.begin());
  for (size_t i = at > 0 ? at - 1 : 0; i < std::min(at + 1, bins.size()); ++i) {
    if (bins[i].count <= 0 || std::abs(bins[i].logit - logit) >= distance) continue;
    distance = std::abs(bins[i].logit - logit);
    best = i;
  }
  return best;
}

// All logits after soft cap, penalties and bans. Those that change or that are the token's own stand
// alone.
std::vector<Entry> EntriesOf(const TokenLogits& logits, const SamplerSettings& settings) {
  const bool penalty = HasPenalty(settings);
  const bool ban = logits.place < settings.min_tokens;
  std::vector<Entry> entries;
  entries.reserve(logits.kept.size() + logits.bins.size() + 8);
  const auto changed = [&](int32_t id, double logit) {
    logit = Capped(logit, settings.soft_cap);
    if (penalty) {
      const auto found =
          std::lower_bound(logits.seen.begin(), logits.seen.end(), id,
                           [](const SeenLogit& seen, int32_t wanted) { return seen.id < wanted; });
      if (found != logits.seen.end() && found->id == id) logit = Penalised(logit, *found, settings);
    }
    if (ban) {
      for (const KeptLogit& end : logits.ends) {
        if (end.id == id) return kNever;
      }
    }
    return logit;
  };
  bool token_is_kept = false;
  for (const KeptLogit& kept : logits.kept) {
    const bool is_token = kept.id == logits.token;
    token_is_kept |= is_token;
    entries.push_back({changed(kept.id, kept.logit), 1, 0, is_token});
  }
  std::vector<LogitBin> bins = logits.bins;
  const float least = logits.kept.empty() ? 0 : logits.kept.back().logit;
  const auto alone = [&](int32_t id, float logit, bool is_token) {
    if (!bins.empty()) bins[BinOf(bins, logit)].count -= 1;
    entries.push_back({changed(id, logit), 1, 0, is_token});
  };
  if (!token_is_kept) alone(logits.token, logits.token_logit, true);
  const auto is_kept = [&](int32_t id, float logit) {
    if (id == logits.token || logit > least) return true;
    return std::any_of(logits.kept.begin(), logits.kept.end(),
                       [&](const KeptLogit& kept) { return kept.id == id; });
  };
  if (penalty) {
    for (const SeenLogit& seen : logits.seen) {
      if (!is_kept(seen.id, seen.logit)) alone(seen.id, seen.logit, false);
    }
  }
  if (ban) {
    for (const KeptLogit& end : logits.ends) {
      if (!is_kept(end.id, end.logit)) alone(end.id, end.logit, false);
    }
  }
  for (const LogitBin& bin : bins) {
    if (bin.count > 0) entries.push_back({Capped(bin.logit, settings.soft_cap), bin.count});
  }
  return entries;
}

double LogSum(std::span<const Entry> entries) {
  double most = kNever;
  for (const Entry& entry : entries) most = std::max(most, entry.logit);
  double sum = 0;
  for (const Entry& entry : entries) sum += entry.count * std::exp(entry.logit - most);
  return most + std::log(sum);
}

bool HasFilter(const SamplerSettings& settings) {
  return settings.top_k > 0 || settings.top_p < 1 || settings.min_p > 0 || settings.typical_p < 1;
}

// Keeps the first entries, up to the one with which they have `mass` of the probability.
void KeepMass(std::vector<Entry>& entries, double mass) {
  const double log_sum = LogSum(entries);
  double kept = 0;
  size_t n = 0;
  for (; n < entries.size() && (n == 0 || kept < mass); ++n) {
    const double each = std::exp(entries[n].logit - log_sum);
    if (kept + each * entries[n].count > mass && each > 0) {
      entries[n].count = std::min(entries[n].count, std::ceil((mass - kept) / each));
      entries[n].count = std::max(entries[n].count, 1.0);
    }
    kept += each * entries[n].count;
  }
  entries.resize(n);
}

// Those first whose surprise is nearest to the entropy.
void SortByTypicality(std::vector<Entry>& entries) {
  const double log_sum = LogSum(entries);
  double entropy = 0;
  for (const Entry& entry : entries) {
    if (entry.logit == kNever) continue;
    entropy -= entry.count * std::exp(entry.logit - log_sum) * (entry.logit - log_sum);
  }
  std::stable_sort(entries.begin(), entries.end(), [&](const Entry& a, const Entry& b) {
    return std::abs(log_sum - a.logit - entropy) < std::abs(log_sum - b.logit - entropy);
  });
}

// Takes out what the filters leave out. A bin is cut where the filter's limit falls into it.
void Filter(std::vector<Entry>& entries, const SamplerSettings& settings) {
  const auto larger = [](const Entry& a, const Entry& b) { return a.logit > b.logit; };
  if (!std::is_sorted(entries.begin(), entries.end(), larger)) {
    std::stable_sort(entries.begin(), entries.end(), larger);
  }
  if (settings.top_k > 0) {
    double left = static_cast<double>(settings.top_k);
    size_t n = 0;
    for (; n < entries.size() && left > 0; ++n) {
      entries[n].count = std::min(entries[n].count, left);
      left -= entries[n].count;
    }
    entries.resize(n);
  }
  if (settings.top_p < 1) KeepMass(entries, settings.top_p);
  if (settings.min_p > 0 && !entries.empty()) {
    const double least = entries.front().logit + std::log(settings.min_p);
    while (entries.size() > 1 && entries.back().logit < least) entries.pop_back();
  }
  if (settings.typical_p < 1) {
    SortByTypicality(entries);
    KeepMass(entries, settings.typical_p);
  }
}

bool OnlyTemperature(const TokenLogits& logits, const SamplerSettings& settings) {
  return !HasPenalty(settings) && !HasFilter(settings) && settings.soft_cap == 0 &&
         logits.place >= settings.min_tokens;
}

// Without a copy: most of what a search tries is this.
TokenScore ScoreAtTemperature(const TokenLogits& logits, double temperature) {
  const double most = logits.kept.empty() ? logits.bins.front().logit : logits.kept.front().logit;
  double sum = 0;
  for (const KeptLogit& kept : logits.kept) sum += std::exp((kept.logit - most) / temperature);
  for (const LogitBin& bin : logits.bins) {
    const double below = (bin.logit - most) / temperature;
    if (below < -45) break;
    sum += bin.count * std::exp(below);
  }
  return {(logits.token_logit - most) / temperature - std::log(sum)};
}

}  // namespace

TokenLogits ReduceLogits(std::span<const float> logits, int32_t token,
                         std::span<const int32_t> end_tokens) {
  TokenLogits out;
  out.token = token;
  out.token_logit = logits[static_cast<size_t>(token)];
  const float most = *std::max_element(logits.begin(), logits.end());
  const auto bin_of = [&](float logit) {
    return std::min(static_cast<int>((most - logit) / kBinWidth), kNumBins - 1);
  };
  std::vector<double> sums(kNumBins), counts(kNumBins);
  for (const float logit : logits) {
    const size_t bin = static_cast<size_t>(bin_of(logit));
    sums[bin] += logit;
    counts[bin] += 1;
  }
  // Whole bins are kept, so that no bin is cut.
  int num_kept_bins = 0;
  double kept = 0;
  while (num_kept_bins < kNumBins &&
         kept + counts[static_cast<size_t>(num_kept_bins)] <= kKeptLogits) {
    kept += counts[static_cast<size_t>(num_kept_bins++)];
  }
  const float least = most - kBinWidth * static_cast<float>(num_kept_bins + 1);
  for (size_t id = 0; id < logits.size(); ++id) {
    if (logits[id] < least || bin_of(logits[id]) >= num_kept_bins) continue;
    out.kept.push_back({static_cast<int32_t>(id), logits[id]});
  }
  std::sort(out.kept.begin(), out.kept.end(),
            [](const KeptLogit& a, const KeptLogit& b) { return a.logit > b.logit; });
  for (size_t bin = static_cast<size_t>(num_kept_bins); bin < kNumBins; ++bin) {
    if (counts[bin] == 0) continue;
    out.bins.push_back(
        {static_cast<float>(sums[bin] / counts[bin]), static_cast<float>(counts[bin])});
  }
  for (const int32_t end : end_tokens) {
    if (end >= 0 && static_cast<size_t>(end) < logits.size()) {
      out.ends.push_back({end, logits[static_cast<size_t>(end)]});
    }
  }
  return out;
}

TokenScore ScoreToken(const TokenLogits& logits, const SamplerSettings& settings) {
  if (OnlyTemperature(logits, settings)) return ScoreAtTemperature(logits, settings.temperature);
  std::vector<Entry> entries = EntriesOf(logits, settings);
  const auto heat = [&] {
    for (Entry& entry : entries) entry.logit /= settings.temperature;
  };
  if (!settings.temperature_last) heat();
  // The sum is over the tokens that the filters leave, or over all. It is most of the work, so it is
  // computed once, and not at all where the filters remove the token.
  const bool of_rest = settings.renormalised || settings.temperature_last;
  const double full = of_rest ? 0 : LogSum(entries);
  if (HasFilter(settings)) Filter(entries, settings);
  if (settings.temperature_last) heat();
  const auto token = std::find_if(entries.begin(), entries.end(),
                                  [](const Entry& entry) { return entry.is_token; });
  if (token == entries.end()) return {kNever};
  return {token->logit - (of_rest ? LogSum(entries) : full)};
}

}  // namespace tandem::drift
