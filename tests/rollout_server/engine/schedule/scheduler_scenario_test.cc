// Plays the scenario files in scenarios/: events in, plans out. A file is read line by line:
//
//   limits blocks=8 sequences=4 step_tokens=64 [prefix_cache=off]
//   add group=1 prompt=20 members=2 new=8 [priority=1] [text=5]   equal texts are equal prompts
//   abort group=1
//   install keep|recompute
//   hold | release                        admissions
//   step                                  the plan must be what the `>` lines below it say
//   > admit 1                             groups admitted
//   > copy 2                              number of blocks copied
//   > prompt 1 [0,20) draws               work on a group's prompt
//   > member 1.0 [20,21) draws            work on one member
//   run 40                                this many steps whose plans are not checked
//   teach 16                              this many groups of another text that use a quarter of
//                                         their worst case, so that the scheduler overcommits
//   finish 1.0                            the member's next token is its last
//   pause 1.0                             the member's next token ends a turn: it waits
//   give member=1.0 ids=5                 5 ids are given to a member that waits
//   free 5                                blocks available now
//   preempted 1                           number of preemptions so far
//   idle                                  no step has anything to compute
//
// # opens a comment. Every member draws token 7 whenever a plan says so.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "rollout_server/engine/schedule/scheduler.h"

namespace tandem::rollout {
namespace {

using Fields = std::map<std::string, int64_t>;

class Scenario {
 public:
  void Play(std::istream& file) {
    std::string line;
    for (int number = 1; std::getline(file, line); ++number) {
      line = line.substr(0, line.find('#'));
      while (!line.empty() && line.back() == ' ') line.pop_back();
      if (line.empty()) continue;
      SCOPED_TRACE(absl::StrCat("line ", number, ": ", line));
      if (line[0] == '>') {
        expected_.push_back(line.substr(2));
        continue;
      }
      CheckPlan();
      Do(line);
      if (::testing::Test::HasFatalFailure()) return;
    }
    CheckPlan();
  }

 private:
  // The member whose name the next word ends in ("member=1.0", or "1.0" alone).
  Sequence* Member(std::istringstream& words) {
    std::string word;
    words >> word;
    word = word.substr(word.find('=') + 1);  // npos + 1 is 0
    for (const auto& group : scheduler_->running()) {
      for (const auto& s : group->sequences) {
        if (NameOf(*s) == word) return s.get();
      }
    }
    ADD_FAILURE() << "no member " << word;
    return nullptr;
  }

  static Fields Parse(std::istringstream& words) {
    Fields fields;
    for (std::string word; words >> word;) {
      const size_t equals = word.find('=');
      const std::string value = word.substr(equals + 1);
      fields[word.substr(0, equals)] = value == "off" ? 0 : value == "on" ? 1 : std::stoll(value);
    }
    return fields;
  }

  void Do(const std::string& line) {
    std::istringstream words(line);
    std::string verb, word;
    words >> verb;
    if (verb == "limits") {
      Fields f = Parse(words);
      scheduler_ = std::make_unique<Scheduler>(
          SchedulerLimits{f.at("blocks"), f.at("sequences"), f.at("step_tokens"),
                          !f.contains("prefix_cache") || f.at("prefix_cache") != 0});
    } else if (verb == "add") {
      Fields f = Parse(words);
      GroupRequest request;
      request.key = f.at("group");
      const int64_t text = f.contains("text") ? f.at("text") : 1000 + request.key;
      for (int64_t i = 0; i < f.at("prompt"); ++i) {
        request.prompt.push_back(static_cast<int32_t>(text * 1000 + i));
      }
      request.num_completions = static_cast<int32_t>(f.at("members"));
      request.sampling.max_new_tokens = static_cast<int32_t>(f.at("new"));
      request.priority = static_cast<int32_t>(f["priority"]);
      scheduler_->Add(std::move(request));
    } else if (verb == "abort") {
      EXPECT_TRUE(scheduler_->Abort(Parse(words).at("group")));
    } else if (verb == "install") {
      words >> word;
      scheduler_->OnInstall(word == "recompute");
    } else if (verb == "hold" || verb == "release") {
      scheduler_->HoldAdmissions(verb == "hold");
    } else if (verb == "finish") {
      words >> word;
      last_.insert(word);
    } else if (verb == "pause") {
      words >> word;
      pausing_.insert(word);
    } else if (verb == "give") {
      Sequence* const member = Member(words);
      if (member == nullptr) return;
      ASSERT_TRUE(member->waits);
      const int64_t ids = Parse(words).at("ids");
      member->completion.token_ids.resize(member->completion.token_ids.size() +
                                          static_cast<size_t>(ids));
      scheduler_->Continue(member);
    } else if (verb == "free") {
      int64_t want = 0;
      words >> want;
      EXPECT_EQ(scheduler_->blocks().num_available(), want);
    } else if (verb == "preempted") {
      uint64_t want = 0;
      words >> want;
      EXPECT_EQ(scheduler_->stats().num_preemptions, want);
    } else if (verb == "idle") {
      EXPECT_FALSE(scheduler_->HasWork());
    } else if (verb == "step") {
      Step();
      has_plan_ = true;
    } else if (verb == "run") {
      int64_t count = 0;
      words >> count;
      for (int64_t i = 0; i < count; ++i) Step();
    } else if (verb == "teach") {
      int64_t count = 0;
      words >> count;
      for (int64_t i = 0; i < count; ++i) {
        GroupRequest request;
        request.key = 100000 + i;
        request.prompt = {1};
        request.sampling.max_new_tokens = 64;  // four blocks, of which one is used
        scheduler_->Add(std::move(request));
        last_.insert(absl::StrCat(100000 + i, ".0"));
        Step();
      }
    } else {
      FAIL() << "unknown event";
    }
  }

  static std::string NameOf(const Sequence& s) {
    return absl::StrCat(s.group->request.key, ".", s.completion.index);
  }

  void Step() {
    const StepPlan plan = scheduler_->Plan();
    plan_.clear();
    for (const RunningGroup* group : plan.admitted) {
      plan_.push_back(absl::StrCat("admit ", group->request.key));
    }
    if (!plan.copies.empty()) plan_.push_back(absl::StrCat("copy ", plan.copies.size()));
    for (const Work& work : plan.work) {
      plan_.push_back(
          absl::StrCat(work.sequence == nullptr ? absl::StrCat("prompt ", work.group->request.key)
                                                : absl::StrCat("member ", NameOf(*work.sequence)),
                       " [", work.begin, ",", work.end, ")", work.draws ? " draws" : ""));
    }
    scheduler_->Computed(plan);
    std::vector<Sequence*> drawn;
    for (const Work& work : plan.work) {
      if (!work.draws) continue;
      if (work.sequence != nullptr) {
        drawn.push_back(work.sequence);
      } else {
        for (const auto& s : work.group->sequences) drawn.push_back(s.get());
      }
    }
    for (Sequence* s : drawn) {
      s->completion.token_ids.push_back(7);
      const bool full = static_cast<int32_t>(s->completion.token_ids.size()) ==
                        s->group->request.sampling.max_new_tokens;
      if (full || last_.erase(NameOf(*s)) > 0) {
        scheduler_->Finish(s);
      } else if (pausing_.erase(NameOf(*s)) > 0) {
        scheduler_->Wait(s);
      }
    }
  }

  void CheckPlan() {
    if (has_plan_) {
      EXPECT_EQ(plan_, expected_) << "in the step before this line";
    } else {
      EXPECT_TRUE(expected_.empty()) << "a plan is expected but no step came before";
    }
    has_plan_ = false;
    expected_.clear();
  }

  std::unique_ptr<Scheduler> scheduler_;
  std::set<std::string> last_, pausing_;
  bool has_plan_ = false;
  std::vector<std::string> plan_, expected_;
};

std::vector<std::string> ScenarioFiles() {
  std::vector<std::string> files;
  const std::string directory =
      absl::StrCat(TANDEM_SOURCE_DIR, "/tests/rollout_server/engine/scenarios");
  for (const auto& entry : std::filesystem::directory_iterator(directory)) {
    files.push_back(entry.path().stem());
  }
  std::sort(files.begin(), files.end());
  return files;
}

class SchedulerScenario : public ::testing::TestWithParam<std::string> {};

TEST_P(SchedulerScenario, PlansWhatTheFileSays) {
  std::ifstream file(absl::StrCat(TANDEM_SOURCE_DIR, "/tests/rollout_server/engine/scenarios/",
                                  GetParam(), ".txt"));
  ASSERT_TRUE(file.good());
  Scenario().Play(file);
}

INSTANTIATE_TEST_SUITE_P(Files, SchedulerScenario, ::testing::ValuesIn(ScenarioFiles()),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace tandem::rollout
