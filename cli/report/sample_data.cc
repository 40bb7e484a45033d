#include "cli/report/run_data.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

namespace tandem::report {
namespace {

constexpr int64_t kContextBefore = 8;  // tokens shown around a worst token
constexpr int64_t kContextAfter = 4;

std::string FileOf(int64_t step) { return absl::StrCat("rollouts/step_", step, ".jsonl"); }

Json FieldOr(const Json& object, const char* key, Json fallback) {
  const auto it = object.find(key);
  return it == object.end() ? std::move(fallback) : *it;
}

// The first `size` elements of the array `key`, or nulls if it is missing.
Json ArrayOrNulls(const Json& completion, const char* key, size_t size) {
  const auto it = completion.find(key);
  if (it == completion.end() || !it->is_array() || it->empty()) return Json(size, nullptr);
  Json cut = Json::array();
  for (size_t i = 0; i < size && i < it->size(); ++i) cut.push_back((*it)[i]);
  return cut;
}

// Runs [[value, count], ..] as one value per token.
Json ValuePerToken(const Json& runs, size_t size) {
  Json values = Json::array();
  if (!runs.is_array()) return Json(size, nullptr);
  for (const Json& run : runs) {
    if (!run.is_array() || run.size() != 2 || !run[1].is_number_integer()) continue;
    const int64_t count = run[1].get<int64_t>();
    for (int64_t i = 0; i < count && values.size() < size; ++i) values.push_back(run[0]);
  }
  while (values.size() < size) values.push_back(nullptr);
  return values;
}

// Whether each token was given between two turns; null where the completion is of one turn.
Json GivenPerToken(const Json& completion, size_t size) {
  const auto segments = completion.find("segments");
  if (segments == completion.end()) return nullptr;
  Json given = Json::array();
  for (const Json& kind : ValuePerToken(*segments, size)) given.push_back(kind == "given");
  return given;
}

// The version that drew each token; null for given tokens, which its spans leave out.
Json VersionPerToken(const Json& completion, size_t size) {
  const Json drawn = ValuePerToken(FieldOr(completion, "versions", nullptr), size);
  const Json given = GivenPerToken(completion, size);
  if (given.is_null()) return drawn;
  Json versions = Json::array();
  size_t next = 0;
  for (const Json& one : given) versions.push_back(one == true ? Json() : drawn[next++]);
  return versions;
}

// Describes a per-token array whose length is not that of the tokens. Empty if there is none.
std::string LengthFault(const Json& completion) {
  const auto tokens = completion.find("tokens");
  if (tokens == completion.end() || !tokens->is_array()) return "has no tokens";
  for (const char* key : {"behaviour_logprobs", "raw_logprobs", "proximal_logprobs", "entropies"}) {
    const auto it = completion.find(key);
    if (it == completion.end() || !it->is_array() || it->empty()) continue;
    if (it->size() != tokens->size()) {
      return absl::StrCat("has ", tokens->size(), " tokens and ", it->size(), " ", key);
    }
  }
  return "";
}

bool IsMasked(const Json& completion) {
  const auto it = completion.find("masked");
  return it != completion.end() && it->is_boolean() && it->get<bool>();
}

Json CompletionData(const Json& completion, const SampleLimits& limits) {
  const size_t num_tokens = completion.at("tokens").size();
  const size_t shown = std::min<size_t>(num_tokens, limits.max_tokens_per_completion);
  Json data = {{"index", FieldOr(completion, "index", 0)},
               {"reward", FieldOr(completion, "reward", nullptr)},
               {"advantage", FieldOr(completion, "advantage", nullptr)},
               {"masked", IsMasked(completion)},
               {"drop_reason", FieldOr(completion, "drop_reason", "")},
               {"finish_reason", FieldOr(completion, "finish_reason", "")},
               {"num_tokens", num_tokens},
               {"tokens", ArrayOrNulls(completion, "tokens", shown)},
               {"behaviour", ArrayOrNulls(completion, "behaviour_logprobs", shown)},
               {"proximal", ArrayOrNulls(completion, "proximal_logprobs", shown)},
               {"entropies", ArrayOrNulls(completion, "entropies", shown)},
               {"versions", VersionPerToken(completion, shown)}};
  data["num_drawn"] = num_tokens;
  if (completion.contains("segments")) {
    data["given"] = GivenPerToken(completion, shown);
    const Json all = GivenPerToken(completion, num_tokens);
    data["num_drawn"] = std::ranges::count(all, Json(false));
  }
  return data;
}

struct Place {
  int64_t step = 0;
  Json group;  // as shown, without its completions
  Json index;
};

// The `limit` tokens with the largest abs(delta) seen so far, and the completions that hold them.
class WorstTokens {
 public:
  explicit WorstTokens(const SampleLimits& limits)
      : limits_(limits), limit_(limits.num_worst_tokens) {}

  void Visit(const Place& place, const Json& completion) {
    const Json& tokens = completion.at("tokens");
    const size_t size = tokens.size();
    const Json behaviour = ArrayOrNulls(completion, "behaviour_logprobs", size);
    const Json proximal = ArrayOrNulls(completion, "proximal_logprobs", size);
    std::shared_ptr<const Holder> holder;  // once it holds one
    for (size_t t = 0; t < size; ++t) {
      if (!behaviour[t].is_number() || !proximal[t].is_number()) continue;
      const double delta = proximal[t].get<double>() - behaviour[t].get<double>();
      if (!IsCandidate(delta)) continue;
      Json row = {{"step", place.step},
                  {"group_id", FieldOr(place.group, "group_id", nullptr)},
                  {"index", place.index},
                  {"position", t},
                  {"token", tokens[t]},
                  {"behaviour", behaviour[t]},
                  {"proximal", proximal[t]},
                  {"delta", delta},
                  {"before", Slice(tokens, static_cast<int64_t>(t) - kContextBefore, t)},
                  {"after", Slice(tokens, t + 1, t + 1 + kContextAfter)}};
      const Json versions = VersionPerToken(completion, size);
      row["version"] = versions[t];
      if (holder == nullptr) holder = std::make_shared<Holder>(place, completion);
      Insert({std::abs(delta), std::move(row), holder});
    }
  }

  // "worst": the tokens; the field "completion" is a place in "worst_completions". A completion is
  // cut behind its last worst token, where that is beyond the limit for others.
  void Take(Json* data) {
    std::vector<std::shared_ptr<const Holder>> holders;
    std::vector<int64_t> last;  // worst position in each of them
    Json rows = Json::array();
    for (Entry& entry : rows_) {
      const auto found = std::ranges::find(holders, entry.holder);
      const auto at = static_cast<size_t>(found - holders.begin());
      if (found == holders.end()) {
        holders.push_back(entry.holder);
        last.push_back(0);
      }
      last[at] = std::max(last[at], entry.row["position"].get<int64_t>());
      entry.row["completion"] = at;
      rows.push_back(std::move(entry.row));
    }
    Json completions = Json::array();
    for (size_t i = 0; i < holders.size(); ++i) {
      SampleLimits limits = limits_;
      limits.max_tokens_per_completion =
          std::max(limits.max_tokens_per_completion, last[i] + 1 + kContextAfter);
      Json shown = holders[i]->place.group;
      shown["step"] = holders[i]->place.step;
      shown["completion"] = CompletionData(holders[i]->completion, limits);
      shown["completion"]["index"] = holders[i]->place.index;
      completions.push_back(std::move(shown));
    }
    (*data)["worst"] = std::move(rows);
    (*data)["worst_completions"] = std::move(completions);
  }

 private:
  struct Holder {
    Holder(const Place& where, const Json& what) : place(where), completion(what) {}
    const Place place;
    const Json completion;
  };
  struct Entry {
    double size = 0;  // abs(delta)
    Json row;
    std::shared_ptr<const Holder> holder;
  };

  bool IsCandidate(double delta) const {
    const double size = std::abs(delta);
    return size > 0 && limit_ > 0 &&
           (static_cast<int64_t>(rows_.size()) < limit_ || size > rows_.back().size);
  }

  void Insert(Entry entry) {
    const auto place =
        std::upper_bound(rows_.begin(), rows_.end(), entry.size,
                         [](double size, const Entry& other) { return size > other.size; });
    rows_.insert(place, std::move(entry));
    if (static_cast<int64_t>(rows_.size()) > limit_) rows_.pop_back();
  }

  static Json Slice(const Json& tokens, int64_t begin, int64_t end) {
    Json slice = Json::array();
    const int64_t last = std::min<int64_t>(end, static_cast<int64_t>(tokens.size()));
    for (int64_t t = std::max<int64_t>(begin, 0); t < last; ++t) slice.push_back(tokens[t]);
    return slice;
  }

  const SampleLimits limits_;
  const int64_t limit_;
  std::vector<Entry> rows_;  // by falling size
};

// Reads one file. Returns all its groups for display if `keep`, and passes every trained completion
// to `worst`.
std::vector<Json> ReadGroups(const RunFiles& files, int64_t step, bool keep,
                             const SampleLimits& limits, WorstTokens* worst, Notices* notices) {
  std::vector<Json> groups;
  const std::string name = FileOf(step);
  files.ForEachLine(name, [&](const Json& group, int64_t line) {
    Json shown = {{"group_id", FieldOr(group, "group_id", nullptr)},
                  {"prompt", FieldOr(group, "prompt", "")},
                  {"answer", FieldOr(group, "answer", "")},
                  {"server", FieldOr(group, "server", "")},
                  {"zero_variance", FieldOr(group, "zero_variance", false)},
                  {"drop_reason", FieldOr(group, "drop_reason", "")}};
    const Json facts = shown;
    shown["completions"] = Json::array();
    const Json completions = FieldOr(group, "completions", Json::array());
    if (!completions.is_array()) return;
    for (size_t i = 0; i < completions.size(); ++i) {
      const Json& completion = completions[i];
      const std::string fault =
          completion.is_object() ? LengthFault(completion) : "is not an object";
      if (!fault.empty()) {
        notices->Add(name,
                     absl::StrCat(At(name, line), ": completion ", i, " ", fault, "; left out"));
        continue;
      }
      if (worst != nullptr && !IsMasked(completion)) {
        worst->Visit({step, facts, FieldOr(completion, "index", i)}, completion);
      }
      if (keep) shown["completions"].push_back(CompletionData(completion, limits));
    }
    if (keep) groups.push_back(std::move(shown));
  });
  return groups;
}

std::vector<int64_t> FirstMiddleLast(const std::vector<int64_t>& steps) {
  if (steps.empty()) return {};
  std::vector<int64_t> chosen = {steps.front(), steps[(steps.size() - 1) / 2], steps.back()};
  chosen.erase(std::unique(chosen.begin(), chosen.end()), chosen.end());
  return chosen;
}

}  // namespace

Json BuildSampleData(const RunFiles& files, const SampleLimits& limits, Notices* notices) {
  const std::vector<int64_t> steps = files.RolloutSteps();
  const std::vector<int64_t> chosen = FirstMiddleLast(steps);
  const size_t num_skipped =
      std::max<int64_t>(0, static_cast<int64_t>(steps.size()) - limits.max_worst_token_steps);
  WorstTokens worst(limits);
  Json shown_steps = Json::array();
  for (size_t i = 0; i < steps.size(); ++i) {
    const bool keep = std::find(chosen.begin(), chosen.end(), steps[i]) != chosen.end();
    const bool search = i >= num_skipped;
    if (!keep && !search) continue;
    std::vector<Json> groups =
        ReadGroups(files, steps[i], keep, limits, search ? &worst : nullptr, notices);
    if (!keep) continue;
    std::stable_partition(groups.begin(), groups.end(),
                          [](const Json& group) { return group["zero_variance"] != true; });
    const size_t num_groups = groups.size();
    if (static_cast<int64_t>(num_groups) > limits.max_groups_per_step) {
      groups.resize(limits.max_groups_per_step);
    }
    shown_steps.push_back({{"step", steps[i]}, {"num_groups", num_groups}, {"groups", groups}});
  }
  Json data = {{"steps", std::move(shown_steps)}};
  worst.Take(&data);
  if (!steps.empty()) data["worst_steps"] = {steps[num_skipped], steps.back()};
  return data;
}

}  // namespace tandem::report
