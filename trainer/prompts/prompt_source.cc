#include "trainer/prompts/prompt_source.h"

#include <algorithm>
#include <iterator>
#include <numeric>
#include <span>
#include <utility>

#include "common/base/stable_random.h"
#include "common/base/status_macros.h"
#include "common/weights/digest.h"

namespace tandem::trainer {

std::vector<int64_t> EpochOrder(int64_t n, uint64_t seed, int64_t epoch) {
  std::vector<int64_t> order(static_cast<size_t>(n));
  std::iota(order.begin(), order.end(), 0);
  // Fisher-Yates over a stateless hash: std::shuffle differs between standard libraries.
  for (int64_t i = n - 1; i > 0; --i) {
    const uint64_t draw =
        StableHash({seed, static_cast<uint64_t>(epoch), static_cast<uint64_t>(i)});
    std::swap(order[static_cast<size_t>(i)], order[draw % static_cast<uint64_t>(i + 1)]);
  }
  return order;
}

absl::StatusOr<std::unique_ptr<PromptSource>> PromptSource::Open(const std::string& path,
                                                                 const DataOptions& options,
                                                                 uint64_t seed,
                                                                 const Tokenizer& tokenizer) {
  const DatasetPart part = {.split = options.split, .subset = options.subset};
  DataOptions whole = options;
  whole.eval_share = 0;
  TANDEM_ASSIGN_OR_RETURN(ReadPrompts read, ReadPromptsOf(path, part, whole, 0, tokenizer));
  std::unique_ptr<PromptSource> source(new PromptSource(seed, options.shuffle));
  source->num_dropped_ = read.num_dropped;
  source->AddPart(std::move(read.kept));
  return source;
}

// The first data set has the seed itself, so that the order of one alone is that of the seed.
void PromptSource::AddPart(std::vector<experience::v1::Prompt> prompts) {
  const uint64_t number = parts_.size();
  parts_.push_back({.first = std::ssize(prompts_),
                    .size = std::ssize(prompts),
                    .seed = number == 0 ? seed_ : StableHash({seed_, number})});
  std::ranges::move(prompts, std::back_inserter(prompts_));
}

std::string PromptSource::digest() const {
  std::vector<uint64_t> hashes = {shuffle_};
  for (const experience::v1::Prompt& prompt : prompts_) {
    const auto& ids = prompt.token_ids();
    hashes.push_back(HashTokenIds({ids.data(), static_cast<size_t>(ids.size())}));
  }
  for (size_t i = 0; mixture_.has_value() && i < parts_.size(); ++i) {
    hashes.push_back(static_cast<uint64_t>(parts_[i].size));
    hashes.push_back(static_cast<uint64_t>(mixture_->units()[i]));
  }
  return Digest128(std::as_bytes(std::span(hashes)));
}

PromptSource::Place PromptSource::PlaceIn(Part& part, int64_t count) const {
  const int64_t epoch = count / part.size;
  if (epoch != part.order_epoch) {
    part.order = EpochOrder(part.size, part.seed, shuffle_ ? epoch : 0);
    if (!shuffle_) std::iota(part.order.begin(), part.order.end(), 0);
    part.order_epoch = epoch;
  }
  return {.position = part.first + part.order[static_cast<size_t>(count % part.size)],
          .epoch = epoch};
}

PromptSource::Place PromptSource::PlaceAt(int64_t cursor) {
  if (!mixture_.has_value()) return PlaceIn(parts_[0], cursor);
  const Mixture::Draw draw = mixture_->At(cursor);
  return PlaceIn(parts_[draw.source], draw.count);
}

const experience::v1::Prompt& PromptSource::Row(int64_t position, int64_t epoch) {
  experience::v1::Prompt& prompt = prompts_[static_cast<size_t>(position)];
  prompt.set_epoch(epoch);
  return prompt;
}

// Reads the data sets of a run into its two sources.
class RunPromptReader {
 public:
  RunPromptReader(const DataOptions& data, uint64_t seed, const Tokenizer& tokenizer)
      : data_(data), seed_(seed), tokenizer_(tokenizer) {}

  absl::StatusOr<RunPrompts> Read() {
    RunPrompts prompts;
    prompts.train.reset(new PromptSource(seed_, data_.shuffle));
    if (data_.eval_share > 0) prompts.eval.reset(new PromptSource(seed_, data_.shuffle));
    std::vector<experience::v1::Prompt> held_out;
    for (const std::string& path : TrainPaths(data_)) {
      TANDEM_RETURN_IF_ERROR(ReadTrain(path, *prompts.train, held_out));
    }
    if (!data_.mixture.empty()) {
      std::vector<double> weights;
      for (const auto& [path, weight] : data_.mixture) weights.push_back(weight);
      prompts.train->mixture_.emplace(weights);
    }
    if (!data_.eval.empty()) {
      DataOptions eval = data_;
      eval.split.clear();
      eval.subset.clear();
      TANDEM_ASSIGN_OR_RETURN(prompts.eval,
                              PromptSource::Open(data_.eval, eval, seed_, tokenizer_));
    }
    if (data_.eval_share == 0) return prompts;
    if (held_out.empty()) {
      return InvalidArgument("trainer.data.eval_share ", data_.eval_share, " holds out none of ",
                             prompts.train->prompts().size(), " prompts: set a larger share");
    }
    prompts.eval->AddPart(std::move(held_out));
    return prompts;
  }

  const std::string& longest_place() const { return longest_place_; }
  int64_t longest_tokens() const { return longest_tokens_; }

 private:
  absl::Status ReadTrain(const std::string& path, PromptSource& train,
                         std::vector<experience::v1::Prompt>& held_out) {
    const DatasetPart part = {.split = data_.split, .subset = data_.subset};
    TANDEM_ASSIGN_OR_RETURN(ReadPrompts read,
                            ReadPromptsOf(path, part, data_, next_index_, tokenizer_));
    next_index_ += read.num_rows;
    train.num_dropped_ += read.num_dropped;
    train.AddPart(std::move(read.kept));
    std::ranges::move(read.held_out, std::back_inserter(held_out));
    if (read.longest_tokens <= longest_tokens_) return absl::OkStatus();
    longest_tokens_ = read.longest_tokens;
    longest_place_ = read.longest_place;
    return absl::OkStatus();
  }

  const DataOptions& data_;
  const uint64_t seed_;
  const Tokenizer& tokenizer_;
  int64_t next_index_ = 0;
  int64_t longest_tokens_ = 0;
  std::string longest_place_;
};

absl::StatusOr<RunPrompts> OpenRunPrompts(const DataOptions& data, int64_t run_seed,
                                          const LongestTokens& longest, const ModelConfig& model,
                                          const Tokenizer& tokenizer) {
  TANDEM_RETURN_IF_ERROR(CheckOptions(data));
  RunPromptReader reader(data, static_cast<uint64_t>(run_seed), tokenizer);
  TANDEM_ASSIGN_OR_RETURN(RunPrompts prompts, reader.Read());
  const int64_t needed = reader.longest_tokens() + longest.tokens;
  if (needed > model.max_position_embeddings) {
    return InvalidArgument(reader.longest_place(), ": ", reader.longest_tokens(),
                           " prompt tokens and ", longest.option, " ", longest.tokens,
                           " exceed the model's context of ", model.max_position_embeddings);
  }
  return prompts;
}

}  // namespace tandem::trainer
