#include "drift_lab/referee/settings_search.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <utility>

namespace tandem::drift {
namespace {

struct Family {
  const char* cause = nullptr;
  std::vector<double> grid;  // increasing
  std::function<void(SamplerSettings&, double)> set;
  bool continuous = true;  // a value between two of the grid means something
};

std::vector<Family> Families() {
  return {
      {"temperature",
       {0.1,  0.2, 0.3,  0.4,  0.5,  0.6,  0.7, 0.8, 0.9, 0.95, 0.97, 0.98,
        0.99, 1,   1.01, 1.02, 1.03, 1.05, 1.1, 1.2, 1.3, 1.4,  1.5,  2},
       [](SamplerSettings& s, double x) { s.temperature = x; }},
      {"raw_logprobs", {1}, [](SamplerSettings& s, double) { s = {}; }, false},
      {"top_k",
       {2, 5, 10, 20, 30, 40, 50, 100, 200},
       [](SamplerSettings& s, double x) { s.top_k = static_cast<int64_t>(std::lround(x)); },
       false},
      {"no_filter",
       {0},
       [](SamplerSettings& s, double) {
         s.top_k = 0;
         s.top_p = 1;
         s.min_p = 0;
         s.typical_p = 1;
       },
       false},
      {"top_p",
       {0.5, 0.7, 0.8, 0.85, 0.9, 0.92, 0.95, 0.97, 0.98, 0.99},
       [](SamplerSettings& s, double x) { s.top_p = x; }},
      {"min_p",
       {0.01, 0.02, 0.03, 0.05, 0.08, 0.1, 0.2},
       [](SamplerSettings& s, double x) { s.min_p = x; }},
      {"typical_p",
       {0.2, 0.5, 0.7, 0.8, 0.9, 0.95, 0.99},
       [](SamplerSettings& s, double x) { s.typical_p = x; }},
      {"repetition_penalty",
       {0.8, 0.9, 0.95, 0.98, 1.01, 1.02, 1.05, 1.1, 1.15, 1.2, 1.3, 1.5, 2},
       [](SamplerSettings& s, double x) { s.repetition_penalty = x; }},
      {"repetition_penalty",
       {0.8, 0.9, 0.95, 0.98, 1.01, 1.02, 1.05, 1.1, 1.15, 1.2, 1.3, 1.5, 2},
       [](SamplerSettings& s, double x) {
         s.repetition_penalty = x;
         s.repetition_of_drawn_only = true;
       }},
      {"frequency_penalty",
       {-0.5, 0.05, 0.1, 0.2, 0.3, 0.5, 0.8, 1, 1.5, 2},
       [](SamplerSettings& s, double x) { s.frequency_penalty = x; }},
      {"presence_penalty",
       {-0.5, 0.1, 0.2, 0.3, 0.5, 0.8, 1, 1.5, 2},
       [](SamplerSettings& s, double x) { s.presence_penalty = x; }},
      {"end_token_ban",
       {4, 8, 16, 32, 64, 1e6},
       [](SamplerSettings& s, double x) { s.min_tokens = static_cast<int64_t>(x); },
       false},
      {"logit_softcap", {10, 15, 20, 30, 50}, [](SamplerSettings& s, double x) { s.soft_cap = x; }},
      {"filter_order", {1}, [](SamplerSettings& s, double) { s.temperature_last = true; }, false},
  };
}

// Smaller is better. Settings whose loss reaches `enough` cannot be the best, so their sum may stop
// there: what is returned is then at least `enough` and at most the whole loss.
using Loss = std::function<double(const SamplerSettings&, double enough)>;
constexpr double kWhole = std::numeric_limits<double>::infinity();

double Rounded(double x) {
  const double unit = std::pow(10, std::floor(std::log10(std::max(std::abs(x), 1e-9))) - 2);
  return std::round(x / unit) * unit;
}

struct Found {
  SamplerSettings settings;
  double loss = std::numeric_limits<double>::infinity();
};

// The best of the grids of families.
struct OfGrid {
  Found found;
  size_t which = 0;  // of its family's grid
};

// Looks for a better one than `best` in a family's grid; false if there is none.
bool BetterOfGrid(const Family& family, const SamplerSettings& from, const Loss& loss,
                  OfGrid& best) {
  bool better = false;
  for (size_t i = 0; i < family.grid.size(); ++i) {
    SamplerSettings settings = from;
    family.set(settings, family.grid[i]);
    if (settings == from) continue;
    const double now = loss(settings, best.found.loss);
    if (!(now < best.found.loss)) continue;
    best = {{settings, now}, i};
    better = true;
  }
  return better;
}

// The best between the neighbours of the grid's best, by golden sections.
Found Refined(const Family& family, const SamplerSettings& from, const OfGrid& best,
              const Loss& loss) {
  if (!family.continuous || family.grid.size() < 3) return best.found;
  const auto at = [&](double x) {
    SamplerSettings settings = from;
    family.set(settings, x);
    return Found{settings, loss(settings, kWhole)};
  };
  double low = family.grid[best.which > 0 ? best.which - 1 : 0];
  double high = family.grid[std::min(best.which + 1, family.grid.size() - 1)];
  // One of the two points of a section is one of the next section too.
  constexpr double kGolden = 0.6180339887498949;
  double a = high - kGolden * (high - low), b = low + kGolden * (high - low);
  double of_a = at(a).loss, of_b = at(b).loss;
  for (int round = 0; round < 16; ++round) {
    if (of_a < of_b) {
      high = std::exchange(b, a);
      of_b = of_a;
      a = high - kGolden * (high - low);
      of_a = at(a).loss;
    } else {
      low = std::exchange(a, b);
      of_a = of_b;
      b = low + kGolden * (high - low);
      of_b = at(b).loss;
    }
  }
  Found refined = best.found;
  for (const double x : {(low + high) / 2, Rounded((low + high) / 2)}) {
    const Found found = at(x);
    if (found.loss < refined.loss * 0.999) refined = found;
  }
  return refined;
}

// A cause must lower a loss of `now` by `least_gain(now)`.
SettingsFit Greedy(const SamplerSettings& from, const Loss& loss,
                   const std::function<double(double now)>& least_gain, const std::string& but) {
  SettingsFit fit{.settings = from};
  const Loss counted = [&](const SamplerSettings& settings, double enough) {
    ++fit.num_tried;
    return loss(settings, enough);
  };
  double now = counted(from, kWhole);
  for (int round = 0; round < 3 && now > 0; ++round) {
    OfGrid best;
    Family of;
    for (const Family& family : Families()) {
      if (family.cause != but && BetterOfGrid(family, fit.settings, counted, best)) of = family;
    }
    if (of.cause == nullptr) break;
    const Found refined = Refined(of, fit.settings, best, counted);
    const std::string cause = of.cause;
    if (now - refined.loss < least_gain(now)) break;
    fit.settings = refined.settings;
    now = refined.loss;
    // A second look at a cause that is there already refines it.
    if (std::find(fit.causes.begin(), fit.causes.end(), cause) == fit.causes.end()) {
      fit.causes.push_back(cause);
    }
  }
  return fit;
}

Loss MeanSquareOf(std::span<const TokenLogits> logits, std::span<const double> values,
                  const TokenSet& tokens, const std::vector<bool>& search) {
  // Some hundred tokens are enough to find a setting; the judge measures on the others.
  std::vector<size_t> chosen;
  for (size_t i = 0; i < logits.size(); ++i) {
    if (search[i] && std::isfinite(values[i])) chosen.push_back(i);
  }
  const size_t step = std::max<size_t>(1, chosen.size() / 400);
  std::vector<size_t> used;
  for (size_t i = 0; i < chosen.size(); i += step) used.push_back(chosen[i]);
  return [=, &tokens](const SamplerSettings& settings, double enough) {
    const auto n = static_cast<double>(used.size());
    double sum = 0;
    for (const size_t i : used) {
      const double r = std::clamp(values[i] - ScoreToken(logits[i], settings).logprob, -6.0, 6.0);
      sum += r * r / (tokens.scale[i] * tokens.scale[i]);
      if (sum / n >= enough) break;
    }
    return sum / n;
  };
}

// A token that cannot be drawn costs this many nats: ties and rounding let one through now and then.
constexpr double kImpossible = 14;

Loss UnlikelinessOf(std::span<const TokenLogits> logits) {
  const size_t step = std::max<size_t>(1, logits.size() / 1000);
  return [=](const SamplerSettings& settings, double enough) {
    const auto each = static_cast<double>(step);
    double sum = 0;
    for (size_t i = 0; i < logits.size(); i += step) {
      // Rounding may put the log-prob of a certain token above 0; no term may be negative, because
      // the sum stops early.
      sum += std::max(0.0, std::min(kImpossible, -ScoreToken(logits[i], settings).logprob));
      if (sum * each >= enough) break;
    }
    return sum * each;
  };
}

}  // namespace

SamplerSettings ClaimedSettings(const SideClaims& claims) {
  SamplerSettings settings;
  if (claims.logprobs == "raw") return settings;
  settings.temperature = claims.temperature.value_or(1);
  if (settings.temperature <= 0) settings.temperature = 1;
  settings.top_k = std::max<int64_t>(claims.top_k.value_or(0), 0);
  settings.top_p = claims.top_p.value_or(1);
  settings.min_p = claims.min_p.value_or(0);
  settings.repetition_penalty = claims.repetition_penalty.value_or(1);
  settings.frequency_penalty = claims.frequency_penalty.value_or(0);
  settings.presence_penalty = claims.presence_penalty.value_or(0);
  settings.min_tokens = claims.min_tokens.value_or(0);
  return settings;
}

std::vector<double> PredictLogprobs(std::span<const TokenLogits> logits,
                                    const SamplerSettings& settings) {
  std::vector<double> out;
  out.reserve(logits.size());
  for (const TokenLogits& token : logits) out.push_back(ScoreToken(token, settings).logprob);
  return out;
}

SettingsFit FitSettings(std::span<const TokenLogits> logits, std::span<const double> values,
                        const TokenSet& tokens, const std::vector<bool>& search,
                        const SamplerSettings& from, const std::string& but) {
  // Where next to nothing is left, a setting that changes next to nothing would fit it.
  const auto least_gain = [](double now) { return std::max(0.1 * now, 1e-4); };
  return Greedy(from, MeanSquareOf(logits, values, tokens, search), least_gain, but);
}

DrawCheck CheckDraws(std::span<const TokenLogits> logits, const SamplerSettings& claimed) {
  const auto least_gain = [](double) { return 15.0; };  // nats
  DrawCheck check{.num_tokens = static_cast<int64_t>(logits.size())};
  const Loss loss = UnlikelinessOf(logits);
  const double base = loss(claimed, kWhole);
  check.best = Greedy(claimed, loss, least_gain, "");
  if (check.best.causes.empty()) return check;
  const double best = loss(check.best.settings, kWhole);
  check.follows = false;
  check.gain = base - best;
  const SettingsFit rival = Greedy(claimed, loss, least_gain, check.best.causes.front());
  check.over_rival = loss(rival.settings, kWhole) - best;
  check.rival = rival.causes.empty() ? "" : rival.causes.front();
  return check;
}

}  // namespace tandem::drift
