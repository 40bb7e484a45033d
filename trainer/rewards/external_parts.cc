#include "trainer/rewards/external_parts.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/check.h"
#include "common/base/status_macros.h"
#include "trainer/rewards/judge/pairing.h"
#include "trainer/rewards/python/python_reward.h"

namespace tandem::trainer {
namespace {

constexpr char kIdentityMark[] = "\n";
constexpr char kMathFunction[] = "tandem_rl.rewards.math:math_reward";
constexpr int64_t kMostOfAPass = 256;  // completions of which a reward model gives answers together

// Answers where no reward model was loaded.
class NoModel : public Asker {
 public:
  std::vector<RewardAnswer> Ask(std::span<const RewardQuestion> questions) override {
    return std::vector<RewardAnswer>(questions.size(),
                                     FailedPrecondition("this program loads no reward model"));
  }
};

// The questions about a group, and what their answers mean for its completions.
struct Plan {
  std::vector<RewardQuestion> questions;
  std::function<std::vector<RewardAnswer>(std::vector<RewardAnswer>)> combine;  // empty: as it is
};

// The mean of `samples` answers to each completion, of those that are there.
std::vector<RewardAnswer> MeanOfSamples(const std::vector<RewardAnswer>& answers, size_t samples) {
  std::vector<RewardAnswer> means;
  for (size_t begin = 0; begin < answers.size(); begin += samples) {
    double sum = 0;
    int64_t count = 0;
    for (size_t i = begin; i < begin + samples; ++i) {
      if (!answers[i].ok()) continue;
      sum += answers[i]->value;
      ++count;
    }
    if (count == 0)
      means.push_back(answers[begin].status());
    else
      means.push_back(ExternalAnswer{.value = sum / static_cast<double>(count)});
  }
  return means;
}

Plan PointwisePlan(const std::shared_ptr<const HeldGroup>& group, int64_t samples) {
  Plan plan;
  for (size_t i = 0; i < group->inputs().size(); ++i) {
    for (int64_t sample = 0; sample < samples; ++sample) {
      plan.questions.push_back({.group = group, .index = i, .sample = sample});
    }
  }
  if (samples > 1) {
    plan.combine = [samples](const std::vector<RewardAnswer>& answers) {
      return MeanOfSamples(answers, static_cast<size_t>(samples));
    };
  }
  return plan;
}

// The ring of opponents depends on the group's texts alone, so a run that is repeated asks the
// same.
uint64_t SeedOf(const HeldGroup& group) {
  std::vector<std::string_view> texts;
  for (const RewardInput& input : group.inputs()) texts.push_back(input.text);
  if (!texts.empty()) texts.push_back(group.inputs().front().prompt);
  uint64_t seed = 0;
  TANDEM_CHECK(absl::SimpleHexAtoi(DigestOfParts(texts).substr(0, 16), &seed));
  return seed;
}

Plan PairwisePlan(const std::shared_ptr<const HeldGroup>& group, int64_t opponents,
                  RewardTally* tally) {
  const size_t n = group->inputs().size();
  std::vector<CompletionPair> pairs = MakePairs(n, opponents, SeedOf(*group));
  Plan plan = {.questions = PairQuestions(group, pairs)};
  plan.combine = [n, pairs = std::move(pairs), tally](const std::vector<RewardAnswer>& verdicts) {
    PairwiseRewards rewards = ScorePairs(n, pairs, verdicts);
    tally->Update([&](RewardNumbers& numbers) {
      numbers.pairs += rewards.num_judged;
      numbers.pair_disagreements += rewards.num_disagreements;
    });
    return std::move(rewards.answers);
  };
  return plan;
}

// A digest of all that decides an answer.
std::string KeyOf(const std::string& identity, const RewardQuestion& question) {
  const RewardInput& input = question.input();
  const std::string_view other =
      question.other.has_value() ? question.group->inputs()[*question.other].text : "";
  const std::string rest = absl::StrCat(question.sample, question.other.has_value() ? " pair" : "",
                                        input.truncated ? " truncated" : "");
  return DigestOfParts(std::array<std::string_view, 7>{identity, rest, input.prompt, input.text,
                                                       other, input.answer, input.source_json});
}

}  // namespace

struct ExternalParts::Part {
  std::string name;
  std::string identity;  // of whom is asked, for keys of the cache
  bool cached = true;
  std::function<Plan(const std::shared_ptr<const HeldGroup>&)> plan;
  std::unique_ptr<ServiceCaller> caller;  // null: a program
  // Last: its threads use the caller. Shared by the functions in Python, which are one pool's.
  std::shared_ptr<QuestionPool> pool;
};

struct ExternalParts::Gathering {
  Mutex mu;
  size_t open ABSL_GUARDED_BY(mu) = 0;  // components
  ExternalAnswers answers ABSL_GUARDED_BY(mu);
  Done done;

  void Put(const std::string& name, std::vector<RewardAnswer> of_part) {
    ExternalAnswers all;
    {
      MutexLock lock(&mu);
      answers[name] = std::move(of_part);
      if (--open > 0) return;
      all = std::move(answers);
    }
    done(std::move(all));
  }
};

struct ExternalParts::PartGathering {
  std::string name;
  std::vector<RewardAnswer> answers;  // each is written once, by whoever has it
  std::atomic<size_t> open = 0;
  Plan plan;
  std::shared_ptr<Gathering> whole;

  void Put(size_t i, RewardAnswer answer) {
    answers[i] = std::move(answer);
    if (open.fetch_sub(1) == 1) Finish();
  }
  void Finish() {
    whole->Put(name, plan.combine ? plan.combine(std::move(answers)) : std::move(answers));
  }
};

absl::Status ExternalParts::AddPart(const std::string& name) {
  auto part = std::make_unique<Part>();
  part->name = name;
  part->plan = [](const auto& group) { return PointwisePlan(group, 1); };
  const auto make_caller = [&](const ServiceOptions& service) {
    part->caller = std::make_unique<ServiceCaller>("reward." + name, service, &tally_);
    return part->caller.get();
  };
  if (name == "subprocess") {
    const SubprocessRewardOptions& asked = options_.subprocess;
    if (asked.command.empty()) return InvalidArgument("reward.subprocess.command is empty");
    part->cached = asked.cached;
    part->identity = absl::StrJoin(asked.command, kIdentityMark);
    part->pool = std::make_shared<QuestionPool>(asked.pool, [&asked](EndSign* end) {
      return std::make_unique<SubprocessReward>(asked, end);
    });
  } else if (name == "http") {
    const HttpRewardOptions& asked = options_.http;
    TANDEM_RETURN_IF_ERROR(CheckHttpClientOptions(asked.client, "reward.http"));
    part->identity = asked.client.url;
    ServiceCaller* const caller = make_caller(asked.service);
    part->pool = std::make_shared<QuestionPool>(
        PoolOptions{asked.service.workers, asked.batch_size}, [&asked, caller](EndSign* end) {
          return std::make_unique<HttpReward>(asked, caller, end);
        });
  } else if (name == "grpc") {
    const GrpcRewardOptions& asked = options_.grpc;
    TANDEM_RETURN_IF_ERROR(CheckGrpcRewardOptions(asked));
    part->identity = asked.address;
    ServiceCaller* const caller = make_caller(asked.service);
    part->pool = std::make_shared<QuestionPool>(
        PoolOptions{asked.service.workers, asked.batch_size}, [&asked, caller](EndSign* end) {
          return std::make_unique<GrpcReward>(asked, caller, end);
        });
  } else if (name == "model") {
    TANDEM_RETURN_IF_ERROR(CheckRewardModelOptions(options_.model));
    part->cached = false;  // a sampled completion hardly comes twice
    part->pool = std::make_shared<QuestionPool>(PoolOptions{1, kMostOfAPass},
                                                [this](EndSign* end) -> std::unique_ptr<Asker> {
                                                  if (make_model_ == nullptr)
                                                    return std::make_unique<NoModel>();
                                                  return make_model_(&tally_, end);
                                                });
  } else if (name != "judge") {
    TANDEM_RETURN_IF_ERROR(AddPython(name, part.get()));
  } else {
    const JudgeOptions& asked = options_.judge;
    TANDEM_ASSIGN_OR_RETURN(rubric_, ReadRubric(asked));
    part->identity = absl::StrJoin({asked.client.url, asked.model, rubric_, asked.score_pattern,
                                    absl::StrCat(asked.temperature, " ", asked.max_tokens, " ",
                                                 asked.score_min, " ", asked.score_max)},
                                   kIdentityMark);
    part->plan = [this, &asked](const auto& group) {
      return asked.mode == JudgeMode::kPairwise ? PairwisePlan(group, asked.opponents, &tally_)
                                                : PointwisePlan(group, asked.samples);
    };
    ServiceCaller* const caller = make_caller(asked.service);
    part->pool = std::make_shared<QuestionPool>(
        PoolOptions{asked.service.workers, 1}, [this, &asked, caller](EndSign* end) {
          return std::make_unique<JudgeReward>(
              JudgeParts{asked, rubric_, caller, budget_.get(), &tally_}, end);
        });
  }
  part->identity = absl::StrCat(name, kIdentityMark, part->identity);
  parts_.push_back(std::move(part));
  return absl::OkStatus();
}

absl::Status ExternalParts::AddPython(const std::string& name, Part* part) {
  if (python_pool_ == nullptr) {
    TANDEM_ASSIGN_OR_RETURN(python_functions_, PythonFunctions(options_.python));
    const auto computed = ComputedComponents(options_);
    if (std::ranges::find(computed, kMathComponent) != computed.end()) {
      python_functions_.push_back({std::string(kMathComponent), kMathFunction});
    }
    python_pool_ = std::make_shared<QuestionPool>(options_.python.pool, [this](EndSign* end) {
      return std::make_unique<PythonReward>(python_functions_, options_.python, &tally_, end);
    });
  }
  const auto found = std::ranges::find(python_functions_, name, &PythonFunction::name);
  TANDEM_CHECK(found != python_functions_.end());
  part->cached = false;  // a function sees the completions of a group together
  part->plan = [scorer =
                    static_cast<size_t>(found - python_functions_.begin())](const auto& group) {
    Plan plan = PointwisePlan(group, 1);
    for (RewardQuestion& question : plan.questions) question.scorer = scorer;
    return plan;
  };
  part->pool = python_pool_;
  return absl::OkStatus();
}

absl::Status ExternalParts::Check(std::string_view row) const {
  if (python_functions_.empty()) return absl::OkStatus();
  return CheckPythonFunctions(python_functions_, options_.python, row);
}

absl::StatusOr<std::unique_ptr<ExternalParts>> ExternalParts::Create(const RewardOptions& options,
                                                                     MakeModelAsker make_model) {
  std::unique_ptr<ExternalParts> parts(new ExternalParts(options, std::move(make_model)));
  for (const std::string& name : ComputedComponents(options)) {
    if (FindComponent(options, name)->kind != ComponentKind::kExternal) continue;
    TANDEM_RETURN_IF_ERROR(parts->AddPart(name));
  }
  if (parts->parts_.empty()) return nullptr;
  return parts;
}

ExternalParts::ExternalParts(const RewardOptions& options, MakeModelAsker make_model)
    : options_(options), make_model_(std::move(make_model)) {}

ExternalParts::~ExternalParts() { Cancel(); }

absl::Status ExternalParts::Open(const std::string& run_id) {
  TANDEM_ASSIGN_OR_RETURN(cache_, AnswerCache::Open(options_.cache));
  budget_ =
      std::make_unique<JudgeBudget>(options_.judge.budget, run_id.empty() ? nullptr : cache_.get(),
                                    absl::StrCat("judge of run ", run_id), &tally_);
  return absl::OkStatus();
}

void ExternalParts::Cancel() {
  for (const auto& part : parts_) part->pool->Cancel();
}

void ExternalParts::TakeAnswer(const std::string& key, const RewardAnswer& answer) {
  if (answer.ok()) cache_->Store(key, *answer);
  std::vector<QuestionPool::Done> waiting;
  {
    MutexLock lock(&mu_);
    const auto found = asked_.find(key);
    waiting = std::move(found->second);
    asked_.erase(found);
  }
  for (const QuestionPool::Done& done : waiting) done(answer);
}

void ExternalParts::AskThroughCache(Part& part, RewardQuestion question, QuestionPool::Done done,
                                    std::vector<QuestionPool::Asked>* to_ask) {
  const std::string key = KeyOf(part.identity, question);
  std::optional<ExternalAnswer> known;
  {
    // Under one lock: an answer that comes meanwhile is in the cache before its key leaves asked_.
    MutexLock lock(&mu_);
    known = cache_->Find(key, question.input().text);
    if (!known.has_value()) {
      const auto [under_way, is_first] = asked_.try_emplace(key);
      under_way->second.push_back(std::move(done));
      if (is_first) {
        to_ask->push_back({std::move(question),
                           [this, key](const RewardAnswer& answer) { TakeAnswer(key, answer); }});
        return;
      }
    }
  }
  tally_.Update([](RewardNumbers& numbers) { ++numbers.cache_hits; });
  if (known.has_value()) done(*std::move(known));
}

void ExternalParts::AskPart(Part& part, const std::shared_ptr<const HeldGroup>& group,
                            const std::shared_ptr<Gathering>& whole) {
  auto gathering = std::make_shared<PartGathering>();
  gathering->name = part.name;
  gathering->whole = whole;
  gathering->plan = part.plan(group);
  std::vector<RewardQuestion> questions = std::move(gathering->plan.questions);
  gathering->answers.assign(questions.size(), absl::UnknownError("not asked"));
  gathering->open = questions.size();
  if (questions.empty()) return gathering->Finish();
  std::vector<QuestionPool::Asked> to_ask;
  for (size_t i = 0; i < questions.size(); ++i) {
    QuestionPool::Done done = [gathering, i](RewardAnswer answer) {
      gathering->Put(i, std::move(answer));
    };
    if (part.cached && options_.cache.entries > 0) {
      AskThroughCache(part, std::move(questions[i]), std::move(done), &to_ask);
    } else {
      to_ask.push_back({std::move(questions[i]), std::move(done)});
    }
  }
  if (!to_ask.empty()) part.pool->Submit(std::move(to_ask));
}

void ExternalParts::Ask(std::shared_ptr<const HeldGroup> group, Done done) {
  auto whole = std::make_shared<Gathering>();
  whole->done = std::move(done);
  {
    MutexLock lock(&whole->mu);
    whole->open = parts_.size();
  }
  for (const auto& part : parts_) AskPart(*part, group, whole);
}

}  // namespace tandem::trainer
