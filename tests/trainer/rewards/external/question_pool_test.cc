#include "trainer/rewards/external/question_pool.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <latch>
#include <memory>
#include <string>
#include <vector>

#include "tests/trainer/rewards/held_completions.h"

namespace tandem::trainer {
namespace {

using ::testing::ElementsAre;

// Answers as the test says; the batch is what one worker took.
class ScriptedAsker : public Asker {
 public:
  using Answer =
      std::function<std::vector<RewardAnswer>(std::span<const RewardQuestion>, EndSign*)>;
  ScriptedAsker(Answer answer, EndSign* end) : answer_(std::move(answer)), end_(end) {}
  std::vector<RewardAnswer> Ask(std::span<const RewardQuestion> questions) override {
    return answer_(questions, end_);
  }

 private:
  const Answer answer_;
  EndSign* const end_;
};

QuestionPool::MakeAsker Scripted(ScriptedAsker::Answer answer) {
  return [answer = std::move(answer)](EndSign* end) {
    return std::make_unique<ScriptedAsker>(answer, end);
  };
}

std::vector<RewardAnswer> Lengths(std::span<const RewardQuestion> questions) {
  std::vector<RewardAnswer> answers;
  for (const RewardQuestion& question : questions) {
    answers.push_back(ExternalAnswer{.value = static_cast<double>(question.input().text.size())});
  }
  return answers;
}

std::vector<QuestionPool::Asked> Asking(const std::vector<std::string>& texts,
                                        std::vector<RewardAnswer>* answers, std::latch* all) {
  answers->assign(texts.size(), absl::UnknownError("none"));
  std::vector<QuestionPool::Asked> asked;
  for (RewardQuestion& question : QuestionsAbout(texts)) {
    const size_t i = question.index;
    asked.push_back({std::move(question), [answers, all, i](RewardAnswer answer) {
                       (*answers)[i] = std::move(answer);
                       all->count_down();
                     }});
  }
  return asked;
}

TEST(QuestionPool, GivesEachQuestionItsAnswer) {
  QuestionPool pool({.workers = 3, .batch_size = 2},
                    Scripted([](auto questions, EndSign*) { return Lengths(questions); }));
  std::vector<RewardAnswer> answers;
  std::latch all(5);
  pool.Submit(Asking({"a", "bb", "ccc", "dddd", "eeeee"}, &answers, &all));
  all.wait();
  for (size_t i = 0; i < 5; ++i) EXPECT_EQ(answers[i]->value, static_cast<double>(i + 1));
}

TEST(QuestionPool, AShortLineIsSharedAmongTheWorkersInsteadOfFillingABatch) {
  std::latch both(2);  // passed only where two workers ask at the same time
  QuestionPool pool({.workers = 2, .batch_size = 100}, Scripted([&](auto questions, EndSign*) {
                      EXPECT_EQ(questions.size(), 2u);
                      both.arrive_and_wait();
                      return Lengths(questions);
                    }));
  std::vector<RewardAnswer> answers;
  std::latch all(4);
  // The second worker starts with the first, and finds what that one left.
  pool.Submit(Asking({"a", "b", "c", "d"}, &answers, &all));
  all.wait();
  EXPECT_EQ(answers[3]->value, 1);
}

TEST(QuestionPool, AGroupIsNotDividedWhereGroupsAreWhole) {
  std::atomic<size_t> num_calls = 0;
  QuestionPool pool({.workers = 2, .batch_size = 1, .whole_groups = true},
                    Scripted([&](auto questions, EndSign*) {
                      EXPECT_EQ(questions.size(), 3u);
                      ++num_calls;
                      return Lengths(questions);
                    }));
  std::vector<RewardAnswer> first, second;
  std::latch all(6);
  pool.Submit(Asking({"a", "b", "c"}, &first, &all));
  pool.Submit(Asking({"d", "e", "f"}, &second, &all));
  all.wait();
  EXPECT_EQ(num_calls, 2u);
}

TEST(QuestionPool, ABatchHasAtMostItsSize) {
  std::atomic<size_t> most = 0;
  QuestionPool pool({.workers = 1, .batch_size = 3}, Scripted([&](auto questions, EndSign*) {
                      most = std::max(most.load(), questions.size());
                      return Lengths(questions);
                    }));
  std::vector<RewardAnswer> answers;
  std::latch all(7);
  pool.Submit(Asking({"a", "b", "c", "d", "e", "f", "g"}, &answers, &all));
  all.wait();
  EXPECT_EQ(most, 3u);
}

TEST(QuestionPool, CancelEndsWhatIsAskedAndWhatWaitsAndWhatComesLater) {
  std::latch asked(1);
  QuestionPool pool({.workers = 1, .batch_size = 1},
                    Scripted([&](std::span<const RewardQuestion> questions, EndSign* end) {
                      asked.count_down();
                      EXPECT_TRUE(end->WaitFor(std::chrono::seconds(60)));
                      return std::vector<RewardAnswer>(questions.size(),
                                                       absl::CancelledError("the asker ended"));
                    }));
  std::vector<RewardAnswer> answers, later;
  std::latch all(2), refused(1);
  pool.Submit(Asking({"a", "b"}, &answers, &all));
  asked.wait();
  pool.Cancel();
  all.wait();
  EXPECT_EQ(answers[0].status().message(), "the asker ended");
  EXPECT_EQ(answers[1].status().message(), "the run ends: the question was not asked");
  pool.Submit(Asking({"c"}, &later, &refused));
  refused.wait();
  EXPECT_EQ(later[0].status().code(), absl::StatusCode::kCancelled);
}

}  // namespace
}  // namespace tandem::trainer
