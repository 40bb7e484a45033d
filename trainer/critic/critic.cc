#include "trainer/critic/critic.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/status_macros.h"
#include "common/tensor/torch_status.h"
#include "trainer/critic/value_loss.h"

namespace tandem::trainer {
namespace {

at::Tensor TakeAt(std::span<const float> of_row, const std::vector<int64_t>& tokens) {
  at::Tensor taken = at::empty({static_cast<int64_t>(tokens.size())});
  float* out = taken.data_ptr<float>();
  for (const int64_t t : tokens) *out++ = of_row[static_cast<size_t>(t)];
  return taken;
}

std::span<const float> AsSpan(const at::Tensor& values) {
  return {values.const_data_ptr<float>(), static_cast<size_t>(values.numel())};
}

// The tensors of a model and of its optimizer, with the names that a checkpoint gives them.
void Append(std::vector<TensorSource> tensors, std::vector<TensorSource>& state) {
  std::ranges::move(tensors, std::back_inserter(state));
}

}  // namespace

ValuePlaces FindValuePlaces(const ExperienceBatch& batch, size_t row) {
  const Microbatch& micro = batch.microbatches[row];
  ValuePlaces places;
  for (int64_t t = 0; t < micro.row.num_tokens(); ++t) {
    if (!micro.loss_mask[static_cast<size_t>(t)]) continue;
    places.tokens.push_back(t);
    places.hidden_at.push_back(micro.row.source[static_cast<size_t>(t)]);
  }
  for (size_t i = 0; i < batch.completions.size(); ++i) {
    const CompletionOrigin& completion = batch.completions[i];
    if (completion.microbatch != static_cast<int64_t>(row) || !completion.truncated) continue;
    places.truncated.push_back(i);
    places.hidden_at.push_back(completion.end - 1);
  }
  return places;
}

absl::Status AddOverRanks(comm::RankReducer& ranks, const CriticNumbers& own,
                          CriticNumbers& numbers) {
  std::vector<double> sums = {own.loss_sum, static_cast<double>(own.num_clipped),
                              static_cast<double>(own.num_tokens)};
  TANDEM_RETURN_IF_ERROR(ranks.Sum(sums));
  numbers.loss_sum += sums[0];
  numbers.num_clipped += static_cast<int64_t>(sums[1]);
  numbers.num_tokens += static_cast<int64_t>(sums[2]);
  return absl::OkStatus();
}

Critic::Critic(std::unique_ptr<PlacedPolicy> backbone, const CriticSetup& setup,
               const CriticOptions& options)
    : options_(options),
      backbone_(std::move(backbone)),
      head_(1, setup.config.hidden_size,
            setup.placing.device == Device::kCpu ? at::Device(at::kCPU) : at::Device(at::kCUDA),
            options.optimizer) {}

absl::StatusOr<std::unique_ptr<Critic>> Critic::Create(const CriticSetup& setup,
                                                       const CriticOptions& options) {
  std::unique_ptr<PlacedPolicy> backbone;
  if (!setup.weights.empty()) {
    ModelConfig trunk = setup.config;
    trunk.tie_word_embeddings = true;  // no head over the vocabulary
    TANDEM_ASSIGN_OR_RETURN(backbone, PlacedPolicy::Create(trunk, setup.placing));
    TANDEM_RETURN_IF_ERROR(backbone->Fill(PresentAll(setup.weights)));
    backbone->policy().CheckpointActivations(setup.checkpoint_activations);
  }
  TANDEM_ASSIGN_OR_RETURN(
      auto critic, CatchTorch("critic", [&] {
        return std::unique_ptr<Critic>(new Critic(std::move(backbone), setup, options));
      }));
  if (setup.head.has_value()) TANDEM_RETURN_IF_ERROR(critic->head_.Fill(*setup.head));
  if (critic->backbone_ == nullptr) return critic;
  TANDEM_ASSIGN_OR_RETURN(critic->optimizer_, MakeOptimizer(*critic->backbone_, options.optimizer));
  return critic;
}

absl::StatusOr<BatchValues> Critic::Score(RowPasses& passes, std::span<const at::Tensor> hidden) {
  const ExperienceBatch& batch = passes.batch();
  const size_t num_rows = batch.microbatches.size();
  std::vector<ValuePlaces> places;
  std::vector<int64_t> num_truncated;
  for (size_t m = 0; m < num_rows; ++m) {
    places.push_back(FindValuePlaces(batch, m));
    num_truncated.push_back(static_cast<int64_t>(places[m].truncated.size()));
  }
  // [T + k] by row: values at their tokens, then those after truncated completions.
  std::vector<at::Tensor> of_rows(num_rows);
  const auto take = [&](size_t m, const at::Tensor& states) {
    const at::NoGradGuard no_grad;
    const at::Tensor values = head_.Scores(states).view(-1).cpu().contiguous();
    const float* from = values.const_data_ptr<float>();
    const int64_t num_tokens = batch.microbatches[m].row.num_tokens();
    of_rows[m] = at::zeros({num_tokens + num_truncated[m]});
    float* const to = of_rows[m].data_ptr<float>();
    for (const int64_t t : places[m].tokens) to[t] = *from++;
    std::copy_n(from, num_truncated[m], to + num_tokens);
  };
  const auto own_pass = [&](size_t m) -> absl::Status {
    if (shares_backbone()) return CatchTorch("values", [&] { take(m, hidden[m]); });
    TANDEM_ASSIGN_OR_RETURN(const TokenScores scores,
                            backbone_->Run(batch.microbatches[m].row,
                                           {.logprobs = false, .hidden_at = places[m].hidden_at}));
    return CatchTorch("values", [&] { take(m, scores.hidden); });
  };
  if (shares_backbone()) {
    for (size_t m = 0; m < num_rows; ++m) {
      if (hidden[m].defined()) TANDEM_RETURN_IF_ERROR(own_pass(m));
    }
  } else {
    TANDEM_RETURN_IF_ERROR(passes.Forward(*backbone_, passes.AllRows(), own_pass));
  }
  TANDEM_RETURN_IF_ERROR(passes.Share(passes.AllRows(), of_rows, num_truncated));
  BatchValues values{.bootstraps = std::vector<float>(batch.completions.size())};
  for (size_t m = 0; m < num_rows; ++m) {
    const int64_t num_tokens = batch.microbatches[m].row.num_tokens();
    values.rows.push_back(of_rows[m].narrow(0, 0, num_tokens).contiguous());
    const float* const after = of_rows[m].const_data_ptr<float>() + num_tokens;
    for (size_t k = 0; k < places[m].truncated.size(); ++k) {
      values.bootstraps[places[m].truncated[k]] = after[k];
    }
  }
  return values;
}

at::Tensor Critic::LossOf(const ValuePlaces& places, size_t row, const at::Tensor& hidden,
                          const BatchValues& start, const std::vector<float>& targets,
                          const at::Tensor& scale, CriticNumbers& numbers) const {
  const at::Device device = hidden.device();
  const auto num_trained = static_cast<int64_t>(places.tokens.size());
  const at::Tensor values = head_.Scores(hidden.narrow(0, 0, num_trained)).view(-1);
  const ValueLossSums sums =
      SumValueLoss({.values = values,
                    .start_values = TakeAt(AsSpan(start.rows[row]), places.tokens).to(device),
                    .targets = TakeAt(targets, places.tokens).to(device),
                    .scale = scale.to(device)},
                   options_.value_clip);
  numbers.loss_sum += sums.total.item<double>();
  numbers.num_clipped += sums.num_clipped;
  numbers.num_tokens += num_trained;
  return sums.total;
}

at::Tensor Critic::RowLoss(const ExperienceBatch& batch, size_t row, const at::Tensor& hidden,
                           const BatchValues& start, const std::vector<float>& targets,
                           std::span<const double> scale, CriticNumbers& numbers) const {
  const ValuePlaces places = FindValuePlaces(batch, row);
  const std::vector<float> scales(scale.begin(), scale.end());
  return options_.loss_coefficient *
         LossOf(places, row, hidden, start, targets, TakeAt(scales, places.tokens), numbers);
}

absl::Status Critic::Train(RowPasses& passes, const Minibatch& rows, const BatchValues& start,
                           const std::vector<std::vector<float>>& targets, CriticNumbers& numbers) {
  const ExperienceBatch& batch = passes.batch();
  CriticNumbers own;
  TANDEM_RETURN_IF_ERROR(passes.Train(*backbone_, rows, [&](size_t m) -> absl::Status {
    ValuePlaces places = FindValuePlaces(batch, m);
    places.hidden_at.resize(places.tokens.size());
    TANDEM_ASSIGN_OR_RETURN(
        const TokenScores scores,
        backbone_->Run(batch.microbatches[m].row,
                       {.with_gradient = true, .logprobs = false, .hidden_at = places.hidden_at}));
    TANDEM_RETURN_IF_ERROR(CatchTorch("value loss", [&] {
      const at::Tensor ones = at::ones({static_cast<int64_t>(places.tokens.size())});
      LossOf(places, m, scores.hidden, start, targets[m], ones, own).backward();
    }));
    return backbone_->buckets().failure();
  }));
  TANDEM_RETURN_IF_ERROR(backbone_->buckets().FinishGradients());
  CriticNumbers minibatch;
  TANDEM_RETURN_IF_ERROR(AddOverRanks(passes.ranks(), own, minibatch));
  numbers.loss_sum += minibatch.loss_sum;
  numbers.num_clipped += minibatch.num_clipped;
  numbers.num_tokens += minibatch.num_tokens;
  return Update(passes.ranks(), minibatch.loss_sum, minibatch.num_tokens, numbers);
}

absl::Status Critic::Update(comm::RankReducer& ranks, double loss, int64_t num_tokens,
                            CriticNumbers& numbers) {
  TANDEM_RETURN_IF_ERROR(head_.SumGradients(ranks));
  ++numbers.num_updates;
  if (num_tokens == 0 || !std::isfinite(loss)) {
    ++numbers.skipped_updates;
    return CatchTorch("gradients of the critic", [&] {
      optimizer_->ZeroGrads();
      head_.ZeroGrads();
    });
  }
  TANDEM_ASSIGN_OR_RETURN(const double own, CatchTorch("norm of the critic's gradients", [&] {
                            return optimizer_->SquaredGradNorm();
                          }));
  TANDEM_ASSIGN_OR_RETURN(double squares, ranks.SumInOrder(own));
  squares += head_.SquaredGradNorm();
  TANDEM_ASSIGN_OR_RETURN(const OptimizerUpdate update, CatchTorch("critic's optimizer", [&] {
                            const double scale = 1 / static_cast<double>(num_tokens);
                            head_.Step(squares, scale);
                            return optimizer_->Step(squares, scale);
                          }));
  numbers.grad_norm = update.grad_norm;
  numbers.learning_rate = update.learning_rate;
  numbers.skipped_updates += update.skipped;
  if (update.skipped) return absl::OkStatus();
  TANDEM_RETURN_IF_ERROR(backbone_->buckets().ShareMasters());
  backbone_->policy().WeightsChanged();
  return absl::OkStatus();
}

std::vector<TensorSource> Critic::State() const {
  std::vector<TensorSource> state;
  if (backbone_ != nullptr) Append(backbone_->Masters(), state);
  Append(head_.Weights(), state);
  if (backbone_ != nullptr) {
    Append(optimizer_->State([this](size_t parameter, const std::vector<at::Tensor>& own) {
      return backbone_->buckets().Collect(parameter, own);
    }),
           state);
  }
  Append(head_.OptimizerState(), state);
  return state;
}

absl::Status Critic::Restore(const std::vector<TensorSource>& state, int64_t num_updates) {
  // By the order of State: masters and the head's weight come before all moments.
  const auto first_moment = std::ranges::find_if(state, [](const TensorSource& source) {
    return absl::StartsWith(source.spec.name, "exp_avg");
  });
  const std::vector<TensorSource> weights(state.begin(), first_moment);
  std::vector<TensorSource> moments(first_moment, state.end()), of_head;
  const auto is_of_head = [](const TensorSource& source) {
    return absl::EndsWith(source.spec.name, absl::StrCat(".", kScoreWeight));
  };
  std::ranges::copy_if(moments, std::back_inserter(of_head), is_of_head);
  std::erase_if(moments, is_of_head);
  if (backbone_ != nullptr) TANDEM_RETURN_IF_ERROR(backbone_->Restore(weights));
  // The head reads its weight and, after the backbone's moments, its own.
  TANDEM_RETURN_IF_ERROR(head_.RestoreWeight(weights));
  if (backbone_ != nullptr) TANDEM_RETURN_IF_ERROR(optimizer_->Restore(moments, num_updates));
  return head_.RestoreOptimizer(of_head, num_updates);
}

int64_t Critic::held_bytes() const {
  if (backbone_ == nullptr) return head_.bytes();
  const ParameterBuckets& parts = backbone_->buckets();
  return head_.bytes() + parts.master_bytes() + parts.gradient_bytes() + optimizer_->state_bytes();
}

}  // namespace tandem::trainer
