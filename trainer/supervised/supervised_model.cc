#include "trainer/supervised/supervised_model.h"

#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <numeric>
#include <thread>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/status_macros.h"
#include "common/comm/rank_reducer.h"
#include "common/tensor/torch_status.h"
#include "trainer/critic/score_head.h"
#include "trainer/optimizer/optimizer.h"
#include "trainer/optimizer/placed_policy.h"
#include "trainer/optimizer/row_passes.h"
#include "trainer/supervised/packed_examples.h"

namespace tandem::trainer {
namespace {

// Examples that are packed and scored before their log-probs are exchanged: bounds the memory of
// rows.
constexpr int64_t kExamplesAtOnce = 256;

// What a pass over a row gave: numbers on the host, and tensors with their gradient.
struct RowScores {
  at::Tensor logprobs;  // [T] float32
  at::Tensor heads;     // [places of the row, K], on the device
  at::Tensor heads_on_host;
};

// The tokens of a row at which the heads read, by example and place.
std::vector<int64_t> HiddenAt(const SupervisedObjective& objective,
                              const std::vector<PackedExample>& examples) {
  std::vector<int64_t> tokens;
  for (const PackedExample& packed : examples) {
    for (const ScorePlace& place : objective.ScorePlaces(packed.example)) {
      tokens.push_back(packed.completions[place.completion].begin + place.token);
    }
  }
  return tokens;
}

template <typename T>
std::span<T> Part(T* values, const TokenRange& range) {
  return {values + range.begin, static_cast<size_t>(range.size())};
}

// The part of a row's numbers that belongs to one example; `heads_begin` counts the row's scores.
template <typename Result, typename T>
Result OfExample(const PackedExample& packed, T* logprobs, T* heads, int64_t heads_begin,
                 int64_t num_scores) {
  Result result;
  if (heads != nullptr) {
    result.heads = {heads + heads_begin, static_cast<size_t>(num_scores)};
    return result;
  }
  for (const TokenRange& range : packed.completions) {
    result.logprobs.push_back(Part(logprobs, range));
  }
  result.prompt_logprobs = Part(logprobs, {packed.prompt.begin + 1, packed.prompt.end});
  return result;
}

// Calls use(example, its scores, its slopes) for each example of the row. `slopes` has the shape of
// the row's log-probs or scores.
template <typename Use>
void ForEachExample(const SupervisedObjective& objective,
                    const std::vector<PackedExample>& examples, const RowScores& scores,
                    at::Tensor* slopes, const Use& use) {
  const bool with_heads = scores.heads.defined();
  const float* const logprobs = with_heads ? nullptr : scores.logprobs.const_data_ptr<float>();
  const float* const heads = with_heads ? scores.heads_on_host.const_data_ptr<float>() : nullptr;
  float* const slope = slopes == nullptr ? nullptr : slopes->data_ptr<float>();
  int64_t begin = 0;
  for (const PackedExample& packed : examples) {
    const int64_t count = with_heads
                              ? static_cast<int64_t>(objective.ScorePlaces(packed.example).size()) *
                                    scores.heads.size(1)
                              : 0;
    const auto of_example = OfExample<ExampleScores>(packed, logprobs, heads, begin, count);
    ExampleSlopes own;
    if (slope != nullptr) {
      own = OfExample<ExampleSlopes>(packed, slope, with_heads ? slope : nullptr, begin, count);
    }
    use(packed.example, of_example, slope == nullptr ? nullptr : &own);
    begin += count;
  }
}

std::vector<int64_t> AllOf(int64_t count) {
  std::vector<int64_t> numbers(static_cast<size_t>(count));
  std::iota(numbers.begin(), numbers.end(), 0);
  return numbers;
}

// Those of the examples, however many of them share a prompt in a row.
int64_t NumTokens(const PackedExamples& packed) {
  int64_t count = 0;
  for (const std::vector<PackedExample>& examples : packed.of_row) {
    for (const PackedExample& example : examples) {
      count += example.prompt.size();
      for (const TokenRange& completion : example.completions) count += completion.size();
    }
  }
  return count;
}

bool IsOfHead(const TensorSource& source) {
  return source.spec.name == kScoreWeight ||
         absl::EndsWith(source.spec.name, absl::StrCat(".", kScoreWeight));
}

}  // namespace

struct SupervisedModel::Impl {
  SupervisedModelSetup setup;  // without tensors
  comm::RankReducer ranks{nullptr};
  std::unique_ptr<PlacedPolicy> trunk;
  std::unique_ptr<ScoreHead> head;   // null: a language model
  std::unique_ptr<AdamW> optimizer;  // of the trunk; null: not trainable

  absl::StatusOr<PackedExamples> Pack(std::span<const int64_t> examples,
                                      const std::function<GroupTokens(int64_t)>& tokens_of,
                                      bool prompt_is_target) const {
    return PackExamples(examples, tokens_of,
                        {.microbatch_tokens = setup.microbatch_tokens,
                         .num_ranks = ranks.size(),
                         .prompt_is_target = prompt_is_target});
  }
  absl::StatusOr<PackedExamples> Pack(const SupervisedObjective& objective,
                                      std::span<const int64_t> examples) const {
    return Pack(
        examples, [&](int64_t example) { return objective.Example(example); },
        objective.reads_prompt());
  }
  absl::StatusOr<RowScores> RunRow(const PackedRow& row, std::vector<int64_t> hidden_at,
                                   bool with_gradient);
  absl::Status BeginBatch(SupervisedObjective& objective, std::span<const int64_t> examples);
  absl::Status AddRow(const SupervisedObjective& objective, const PackedRow& row,
                      const std::vector<PackedExample>& examples, bool with_gradient,
                      SupervisedReport& report, std::span<MetricSum> metrics);
  absl::StatusOr<SupervisedReport> Batch(SupervisedObjective& objective,
                                         std::span<const int64_t> examples, bool with_gradient);
  absl::Status Update(SupervisedReport& report);
};

// A pass over one row of this rank.
absl::StatusOr<RowScores> SupervisedModel::Impl::RunRow(const PackedRow& row,
                                                        std::vector<int64_t> hidden_at,
                                                        bool with_gradient) {
  TANDEM_ASSIGN_OR_RETURN(const TokenScores scores,
                          trunk->Run(row, {.with_gradient = with_gradient,
                                           .logprobs = head == nullptr,
                                           .hidden_at = std::move(hidden_at)}));
  RowScores result = {.logprobs = scores.logprobs};
  if (head == nullptr) return result;
  TANDEM_RETURN_IF_ERROR(CatchTorch("scores", [&] {
    const at::AutoGradMode mode(with_gradient);
    result.heads = head->Scores(scores.hidden);
    result.heads_on_host = result.heads.detach().cpu().contiguous();
  }));
  return result;
}

// Scores the sequences that the objective wants to know before the batch.
absl::Status SupervisedModel::Impl::BeginBatch(SupervisedObjective& objective,
                                               std::span<const int64_t> examples) {
  std::vector<int64_t> with_sequence;
  for (const int64_t example : examples) {
    if (objective.SequenceBefore(example).has_value()) with_sequence.push_back(example);
  }
  double sum = 0;
  if (!with_sequence.empty()) {
    TANDEM_ASSIGN_OR_RETURN(
        const PackedExamples packed,
        Pack(
            with_sequence, [&](int64_t example) { return *objective.SequenceBefore(example); },
            /*prompt_is_target=*/false));
    const RowPasses passes(packed.batch, ranks);
    TANDEM_RETURN_IF_ERROR(passes.Forward(*trunk, passes.AllRows(), [&](size_t m) -> absl::Status {
      TANDEM_ASSIGN_OR_RETURN(const RowScores scores, RunRow(packed.batch.microbatches[m].row, {},
                                                             /*with_gradient=*/false));
      ForEachExample(objective, packed.of_row[m], scores, nullptr,
                     [&](int64_t example, const ExampleScores& own, ExampleSlopes*) {
                       sum += objective.NumberBefore(example, own);
                     });
      return absl::OkStatus();
    }));
    TANDEM_ASSIGN_OR_RETURN(sum, ranks.SumInOrder(sum));
  }
  objective.BeginBatch(examples, sum);
  return absl::OkStatus();
}

// Adds the parts of the row's examples to this rank's sums, and their gradient to the masters'.
absl::Status SupervisedModel::Impl::AddRow(const SupervisedObjective& objective,
                                           const PackedRow& row,
                                           const std::vector<PackedExample>& examples,
                                           bool with_gradient, SupervisedReport& report,
                                           std::span<MetricSum> metrics) {
  std::vector<int64_t> hidden_at;
  if (head != nullptr) hidden_at = HiddenAt(objective, examples);
  TANDEM_ASSIGN_OR_RETURN(const RowScores scores, RunRow(row, std::move(hidden_at), with_gradient));
  TANDEM_RETURN_IF_ERROR(CatchTorch("loss of the objective", [&] {
    const at::Tensor& read = head == nullptr ? scores.logprobs : scores.heads;
    at::Tensor slopes;
    if (with_gradient) slopes = at::zeros(read.sizes(), at::kFloat);
    ForEachExample(objective, examples, scores, with_gradient ? &slopes : nullptr,
                   [&](int64_t example, const ExampleScores& own, ExampleSlopes* of_own) {
                     report.loss += objective.Loss(example, own, of_own, metrics);
                   });
    // The derivative of this sum by each number is its slope.
    if (with_gradient) (read * slopes.to(read.device())).sum().backward();
  }));
  return trunk->buckets().failure();
}

absl::StatusOr<SupervisedReport> SupervisedModel::Impl::Batch(SupervisedObjective& objective,
                                                              std::span<const int64_t> examples,
                                                              bool with_gradient) {
  TANDEM_CHECK(objective.num_heads() == (head == nullptr ? 0 : setup.num_heads));
  TANDEM_RETURN_IF_ERROR(BeginBatch(objective, examples));
  TANDEM_ASSIGN_OR_RETURN(const PackedExamples packed, Pack(objective, examples));
  SupervisedReport report;
  std::vector<MetricSum> metrics(objective.MetricNames().size());
  const RowPasses passes(packed.batch, ranks);
  const auto pass = [&](size_t m) {
    return AddRow(objective, packed.batch.microbatches[m].row, packed.of_row[m], with_gradient,
                  report, metrics);
  };
  if (with_gradient) {
    TANDEM_RETURN_IF_ERROR(passes.Train(*trunk, passes.AllRows(), pass));
    TANDEM_RETURN_IF_ERROR(trunk->buckets().FinishGradients());
    if (head != nullptr) TANDEM_RETURN_IF_ERROR(head->SumGradients(ranks));
  } else {
    TANDEM_RETURN_IF_ERROR(passes.Forward(*trunk, passes.AllRows(), pass));
  }
  std::vector<double> sums = {report.loss};
  for (const MetricSum& metric : metrics) sums.insert(sums.end(), {metric.sum, metric.count});
  TANDEM_RETURN_IF_ERROR(ranks.Sum(sums));
  report.loss = sums[0];
  for (size_t i = 0; i < metrics.size(); ++i) {
    report.metrics.push_back(MetricSum{sums[1 + 2 * i], sums[2 + 2 * i]}.mean());
  }
  report.num_tokens = NumTokens(packed);
  return report;
}

absl::Status SupervisedModel::Impl::Update(SupervisedReport& report) {
  if (!std::isfinite(report.loss)) {
    report.skipped = true;
    return CatchTorch("gradients", [&] {
      optimizer->ZeroGrads();
      if (head != nullptr) head->ZeroGrads();
    });
  }
  TANDEM_ASSIGN_OR_RETURN(const double own, CatchTorch("norm of gradients", [&] {
                            return optimizer->SquaredGradNorm();
                          }));
  TANDEM_ASSIGN_OR_RETURN(double squares, ranks.SumInOrder(own));
  if (head != nullptr) squares += head->SquaredGradNorm();
  TANDEM_ASSIGN_OR_RETURN(const OptimizerUpdate update, CatchTorch("optimizer", [&] {
                            if (head != nullptr) head->Step(squares, /*grad_scale=*/1);
                            return optimizer->Step(squares);
                          }));
  report.grad_norm = update.grad_norm;
  report.learning_rate = update.learning_rate;
  report.skipped = update.skipped;
  if (update.skipped) return absl::OkStatus();
  TANDEM_RETURN_IF_ERROR(trunk->buckets().ShareMasters());
  trunk->policy().WeightsChanged();
  return absl::OkStatus();
}

SupervisedModel::SupervisedModel(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
SupervisedModel::~SupervisedModel() = default;

absl::StatusOr<std::unique_ptr<SupervisedModel>> SupervisedModel::Create(
    const SupervisedModelSetup& setup) {
  auto impl = std::make_unique<Impl>();
  impl->setup = setup;
  impl->setup.weights.clear();
  impl->setup.head.reset();
  impl->ranks = comm::RankReducer(setup.collectives.values);
  ModelConfig config = setup.config;
  if (setup.num_heads > 0) config.tie_word_embeddings = true;  // no head over the vocabulary
  TANDEM_ASSIGN_OR_RETURN(
      impl->trunk,
      PlacedPolicy::Create(config, {.dtype = setup.dtype,
                                    .trainable = setup.trainable,
                                    .numerics = setup.numerics,
                                    .device = setup.device,
                                    .collectives = setup.collectives,
                                    .buckets = {.shard_parameters = setup.shard_parameters}}));
  TANDEM_RETURN_IF_ERROR(impl->trunk->Fill(PresentAll(setup.weights)));
  impl->trunk->policy().CheckpointActivations(setup.checkpoint_activations);
  if (setup.num_heads > 0) {
    const at::Device device(setup.device == Device::kCpu ? at::kCPU : at::kCUDA);
    TANDEM_ASSIGN_OR_RETURN(impl->head, CatchTorch("head", [&] {
                              return std::make_unique<ScoreHead>(
                                  setup.num_heads, config.hidden_size, device, setup.optimizer);
                            }));
    if (setup.head.has_value()) TANDEM_RETURN_IF_ERROR(impl->head->Fill(*setup.head));
  }
  if (setup.trainable) {
    TANDEM_ASSIGN_OR_RETURN(impl->optimizer, MakeOptimizer(*impl->trunk, setup.optimizer));
  }
  return std::unique_ptr<SupervisedModel>(new SupervisedModel(std::move(impl)));
}

absl::StatusOr<SupervisedReport> SupervisedModel::Train(SupervisedObjective& objective,
                                                        std::span<const int64_t> examples) {
  TANDEM_ASSIGN_OR_RETURN(SupervisedReport report,
                          impl_->Batch(objective, examples, /*with_gradient=*/true));
  TANDEM_RETURN_IF_ERROR(impl_->Update(report));
  return report;
}

absl::StatusOr<SupervisedReport> SupervisedModel::Evaluate(SupervisedObjective& objective,
                                                           std::span<const int64_t> examples) {
  return impl_->Batch(objective, examples, /*with_gradient=*/false);
}

absl::StatusOr<std::vector<float>> SupervisedModel::Logprobs(
    int64_t count, const std::function<GroupTokens(int64_t)>& tokens_of,
    const std::function<void(int64_t)>& progress) {
  const std::vector<int64_t> all = AllOf(count);
  std::vector<float> logprobs;
  for (int64_t begin = 0; begin < count; begin += kExamplesAtOnce) {
    const int64_t end = std::min(count, begin + kExamplesAtOnce);
    const auto some =
        std::span(all).subspan(static_cast<size_t>(begin), static_cast<size_t>(end - begin));
    TANDEM_ASSIGN_OR_RETURN(const PackedExamples packed,
                            impl_->Pack(some, tokens_of, /*prompt_is_target=*/false));
    RowPasses passes(packed.batch, impl_->ranks);
    std::vector<at::Tensor> rows(packed.of_row.size());
    TANDEM_RETURN_IF_ERROR(
        passes.Forward(*impl_->trunk, passes.AllRows(), [&](size_t m) -> absl::Status {
          TANDEM_ASSIGN_OR_RETURN(const RowScores scores,
                                  impl_->RunRow(packed.batch.microbatches[m].row, {},
                                                /*with_gradient=*/false));
          rows[m] = scores.logprobs;
          return absl::OkStatus();
        }));
    TANDEM_RETURN_IF_ERROR(passes.Share(passes.AllRows(), rows));
    for (size_t m = 0; m < rows.size(); ++m) {
      const float* const values = rows[m].const_data_ptr<float>();
      for (const PackedExample& example : packed.of_row[m]) {
        for (const TokenRange& range : example.completions) {
          const auto part = Part(values, range);
          logprobs.insert(logprobs.end(), part.begin(), part.end());
        }
      }
    }
    if (progress) progress(end);
  }
  return logprobs;
}

absl::StatusOr<std::vector<float>> SupervisedModel::HeadScores(
    const SupervisedObjective& objective) {
  const std::vector<int64_t> examples = AllOf(objective.num_examples());
  TANDEM_ASSIGN_OR_RETURN(const PackedExamples packed, impl_->Pack(objective, examples));
  std::vector<size_t> begins = {0};  // [examples + 1]
  for (const int64_t example : examples) {
    const size_t places = objective.ScorePlaces(example).size();
    begins.push_back(begins.back() + places * static_cast<size_t>(impl_->setup.num_heads));
  }
  std::vector<double> all(begins.back(), 0);  // of this rank's rows; else 0
  const RowPasses passes(packed.batch, impl_->ranks);
  TANDEM_RETURN_IF_ERROR(
      passes.Forward(*impl_->trunk, passes.AllRows(), [&](size_t m) -> absl::Status {
        TANDEM_ASSIGN_OR_RETURN(
            const RowScores scores,
            impl_->RunRow(packed.batch.microbatches[m].row, HiddenAt(objective, packed.of_row[m]),
                          /*with_gradient=*/false));
        ForEachExample(objective, packed.of_row[m], scores, nullptr,
                       [&](int64_t example, const ExampleScores& own, ExampleSlopes*) {
                         std::ranges::copy(own.heads,
                                           all.begin() + static_cast<std::ptrdiff_t>(
                                                             begins[static_cast<size_t>(example)]));
                       });
        return absl::OkStatus();
      }));
  TANDEM_RETURN_IF_ERROR(impl_->ranks.Sum(all));
  return std::vector<float>(all.begin(), all.end());
}

std::vector<TensorSource> SupervisedModel::Weights() const {
  std::vector<TensorSource> weights = impl_->trunk->Masters();
  if (impl_->head != nullptr)
    std::ranges::move(impl_->head->Weights(), std::back_inserter(weights));
  return weights;
}

std::vector<TensorSource> SupervisedModel::OptimizerState() const {
  TANDEM_CHECK(impl_->optimizer != nullptr);
  std::vector<TensorSource> state =
      impl_->optimizer->State([this](size_t parameter, const std::vector<at::Tensor>& own) {
        return impl_->trunk->buckets().Collect(parameter, own);
      });
  if (impl_->head == nullptr) return state;
  std::ranges::move(impl_->head->OptimizerState(), std::back_inserter(state));
  return state;
}

absl::StatusOr<bool> SupervisedModel::WeightsAreFinite() {
  TANDEM_ASSIGN_OR_RETURN(
      const bool own, CatchTorch("weights", [&] {
        const auto is_finite = [](const at::Tensor& x) {
          if (!x.is_cpu()) return x.isfinite().all().item<bool>();
          // A loop: LibTorch's would make a tensor of the weights' size.
          const std::span values(x.const_data_ptr<float>(), static_cast<size_t>(x.numel()));
          return std::ranges::all_of(values, [](float value) { return std::isfinite(value); });
        };
        return std::ranges::all_of(impl_->trunk->buckets().OwnMasters(), is_finite) &&
               (impl_->head == nullptr || is_finite(std::as_const(*impl_->head).weight()));
      }));
  TANDEM_ASSIGN_OR_RETURN(const double any_not, MaxOverRanks(own ? 0 : 1));
  return any_not == 0;
}

int64_t SupervisedModel::num_updates() const { return impl_->optimizer->num_updates(); }

absl::Status SupervisedModel::Restore(const std::vector<TensorSource>& weights,
                                      const std::vector<TensorSource>& optimizer_state,
                                      int64_t num_updates) {
  std::vector<TensorSource> of_trunk, of_head;
  for (const TensorSource& source : optimizer_state) {
    (IsOfHead(source) ? of_head : of_trunk).push_back(source);
  }
  TANDEM_RETURN_IF_ERROR(impl_->trunk->Restore(weights));
  TANDEM_RETURN_IF_ERROR(impl_->optimizer->Restore(of_trunk, num_updates));
  if (impl_->head == nullptr) return absl::OkStatus();
  TANDEM_RETURN_IF_ERROR(impl_->head->RestoreWeight(weights));
  return impl_->head->RestoreOptimizer(of_head, num_updates);
}

int SupervisedModel::rank() const { return impl_->ranks.rank(); }
int SupervisedModel::num_ranks() const { return impl_->ranks.size(); }

absl::StatusOr<double> MaxOverRanks(const RankCollectives& collectives, double own) {
  TANDEM_RETURN_IF_ERROR(comm::RankReducer(collectives.values).Max(std::span(&own, 1)));
  return own;
}

absl::StatusOr<double> SupervisedModel::MaxOverRanks(double own) {
  return trainer::MaxOverRanks(impl_->setup.collectives, own);
}

void SupervisedModel::UseThreads(int64_t num_threads) {
  const auto cores = static_cast<int64_t>(std::thread::hardware_concurrency());
  at::set_num_threads(static_cast<int>(num_threads > 0 ? num_threads : cores));
}

}  // namespace tandem::trainer
