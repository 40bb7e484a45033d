#include "trainer/drift/probe_set.h"

#include <algorithm>
#include <map>
#include <span>
#include <sstream>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/files/file_system.h"
#include "common/weights/digest.h"
#include "nlohmann/json.hpp"

namespace tandem::trainer {
namespace {

using experience::v1::ScoredGroup;
using nlohmann::json;
using Ids = std::vector<int32_t>;

constexpr char kPrompt[] = "prompt_token_ids", kCompletion[] = "completion_token_ids";

void AddCompletion(const Ids& ids, ScoredGroup& group) {
  rollout::v1::Completion* const completion = group.add_completions()->mutable_completion();
  completion->set_index(group.completions_size() - 1);
  for (const int32_t id : ids) {
    completion->add_token_ids(id);
    completion->add_behaviour_logprobs(0);
    completion->add_raw_logprobs(0);
    completion->add_entropies(0);
    completion->add_logprob_second_moments(0);
  }
  completion->add_version_spans()->set_num_tokens(static_cast<int32_t>(ids.size()));
  completion->set_token_hash(HashTokenIds(ids));
}

// Adds to the last group when it has this prompt.
void Add(const Ids& prompt, const Ids& completion, std::vector<ScoredGroup>& groups) {
  if (groups.empty() || !std::ranges::equal(groups.back().prompt().token_ids(), prompt)) {
    ScoredGroup& group = groups.emplace_back();
    group.set_group_id(static_cast<int64_t>(groups.size()) - 1);
    group.mutable_prompt()->mutable_token_ids()->Add(prompt.begin(), prompt.end());
  }
  AddCompletion(completion, groups.back());
}

template <typename Field>
Ids IdsOf(const Field& field) {
  return {field.begin(), field.end()};
}

// A line of the file per completion.
std::string Lines(const std::vector<ScoredGroup>& groups) {
  std::string lines;
  for (const ScoredGroup& group : groups) {
    for (const auto& member : group.completions()) {
      const json line = {{kPrompt, IdsOf(group.prompt().token_ids())},
                         {kCompletion, IdsOf(member.completion().token_ids())}};
      absl::StrAppend(&lines, line.dump(), "\n");
    }
  }
  return lines;
}

ProbeSet Digested(std::vector<ScoredGroup> groups) {
  const std::string lines = Lines(groups);
  return {std::move(groups), Digest128(std::as_bytes(std::span(lines)))};
}

absl::StatusOr<Ids> ReadIds(const json& line, const char* field, const std::string& where) {
  const auto found = line.find(field);
  const auto is_id = [](const json& id) {
    return id.is_number_integer() && id.get<int64_t>() >= 0 && id.get<int64_t>() <= INT32_MAX;
  };
  if (found == line.end() || !found->is_array() || found->empty() ||
      !std::ranges::all_of(*found, is_id)) {
    return InvalidArgument(where, ": ", field, " must be a list of token ids with at least one");
  }
  return found->get<Ids>();
}

}  // namespace

int64_t ProbeSet::num_completions() const {
  int64_t count = 0;
  for (const ScoredGroup& group : groups) count += group.completions_size();
  return count;
}

std::vector<int32_t> ProbeSet::CompletionOfTokens() const {
  std::vector<int32_t> completions;
  int32_t number = 0;
  for (const ScoredGroup& group : groups) {
    for (const auto& member : group.completions()) {
      completions.insert(completions.end(),
                         static_cast<size_t>(member.completion().token_ids_size()), number++);
    }
  }
  return completions;
}

ProbeSet ChooseProbeSet(const std::vector<ScoredGroup>& groups, int64_t count) {
  std::map<size_t, std::vector<int>> chosen;  // group -> places
  int64_t num_chosen = 0;
  bool more = true;
  for (int place = 0; more && num_chosen < count; ++place) {
    more = false;
    for (size_t g = 0; g < groups.size() && num_chosen < count; ++g) {
      if (place >= groups[g].completions_size()) continue;
      more = true;
      if (groups[g].completions(place).masked()) continue;
      chosen[g].push_back(place);
      ++num_chosen;
    }
  }
  std::vector<ScoredGroup> probe;
  for (const auto& [g, places] : chosen) {
    for (const int place : places) {
      Add(IdsOf(groups[g].prompt().token_ids()),
          IdsOf(groups[g].completions(place).completion().token_ids()), probe);
    }
  }
  return Digested(std::move(probe));
}

absl::StatusOr<ProbeSet> ReadProbeSet(const std::string& path) {
  TANDEM_ASSIGN_OR_RETURN(const std::string contents, ReadFile(path));
  std::vector<ScoredGroup> groups;
  std::string claimed;
  std::istringstream lines(contents);
  int64_t number = 0;
  for (std::string text; std::getline(lines, text);) {
    const std::string where = absl::StrCat(path, ":", ++number);
    if (text.empty()) continue;
    const json line = json::parse(text, nullptr, /*allow_exceptions=*/false);
    if (!line.is_object()) return InvalidArgument(where + ": not a JSON object");
    if (line.contains("probe_set")) {
      claimed = line.value("digest", "");
      continue;
    }
    TANDEM_ASSIGN_OR_RETURN(const Ids prompt, ReadIds(line, kPrompt, where));
    TANDEM_ASSIGN_OR_RETURN(const Ids completion, ReadIds(line, kCompletion, where));
    Add(prompt, completion, groups);
  }
  if (groups.empty()) return InvalidArgument(path + ": no completions");
  ProbeSet set = Digested(std::move(groups));
  if (!claimed.empty() && claimed != set.digest) {
    return DataLoss(path, ": the completions have the digest ", set.digest, ", the file says ",
                    claimed, ": it was changed or cut short");
  }
  return set;
}

absl::Status WriteProbeSet(const std::string& path, const ProbeSet& set) {
  const json header = {{"probe_set", 1}, {"digest", set.digest}};
  return WriteFileAtomically(path, absl::StrCat(header.dump(), "\n", Lines(set.groups)));
}

absl::Status CheckProbeSet(const ProbeSet& set, const std::string& path, int64_t vocab_size,
                           int64_t max_context_tokens) {
  int64_t number = 0;
  for (const ScoredGroup& group : set.groups) {
    for (const auto& member : group.completions()) {
      Ids ids = IdsOf(group.prompt().token_ids());
      const auto& drawn = member.completion().token_ids();
      ids.insert(ids.end(), drawn.begin(), drawn.end());
      ++number;
      if (static_cast<int64_t>(ids.size()) > max_context_tokens) {
        return InvalidArgument(path, ": completion ", number, " has ", ids.size(),
                               " tokens with its prompt, the model's context is ",
                               max_context_tokens);
      }
      const int32_t largest = *std::ranges::max_element(ids);
      if (largest >= vocab_size) {
        return InvalidArgument(path, ": completion ", number, " has id ", largest,
                               ", the vocabulary ends before ", vocab_size);
      }
    }
  }
  return absl::OkStatus();
}

}  // namespace tandem::trainer
