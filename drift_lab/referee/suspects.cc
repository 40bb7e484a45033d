#include "drift_lab/referee/suspects.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "common/tokenizer/tokenizer.h"

namespace tandem::drift {
namespace {

void AddNorms(const ModelConfig& config, std::vector<Suspect>& out) {
  for (const double eps : {1e-3, 1e-4, 1e-2, 1e-5, 1e-6, 0.0}) {
    if (std::abs(eps - config.rms_norm_eps) < 1e-9) continue;
    Suspect suspect{"rms_norm_eps",
                    absl::StrFormat("rms_norm_eps %g in place of %g", eps, config.rms_norm_eps),
                    "compare the engine's config.json with the model's"};
    suspect.variant.rms_norm_eps = eps;
    out.push_back(std::move(suspect));
  }
}

void AddRotary(const ModelConfig& config, std::vector<Suspect>& out) {
  const auto add = [&](const std::string& cause, const std::string& text, const Variant& variant) {
    out.push_back({cause, text,
                   "compare rope_theta and rope_scaling of the engine with the model's", variant});
  };
  for (const double theta : {1e4, 1e5, 5e5, 1e6}) {
    const double factor = theta / config.rope.theta;
    if (std::abs(factor - 1) < 1e-6) continue;
    add("rope_theta", absl::StrFormat("rope theta %g in place of %g", theta, config.rope.theta),
        {.rope_theta_factor = factor});
  }
  for (const double scale : {2.0, 4.0, 8.0, 0.5}) {
    add("rope_scaling", absl::StrFormat("positions divided by %g (linear rope scaling)", scale),
        {.rope_scale = scale});
  }
  add("position_offset", "drawn tokens one position too far", {.completion_gap = 1});
  add("position_offset", "drawn tokens one position too near", {.completion_gap = -1});
  add("position_offset", "positions begin again at the first drawn token",
      {.positions_restart = true});
  add("rope_layout", "rotary pairs of neighbours in place of halves", {.rope_interleaved = true});
}

void AddAttention(const ModelConfig& config, int64_t longest, std::vector<Suspect>& out) {
  for (const int64_t window : {16, 32, 64, 128, 256, 512, 1024, 4096}) {
    if (window >= longest) break;
    for (const int64_t sinks : {0, 4}) {
      out.push_back({"attention_window",
                     absl::StrCat("attention sees the last ", window, " tokens",
                                  sinks > 0 ? absl::StrCat(" and the first ", sinks) : ""),
                     "look for a sliding window or a context limit in the engine's options",
                     {.window = window, .sinks = sinks}});
    }
  }
  for (const int64_t first : {1, 4}) {
    out.push_back({"attention_sinks",
                   absl::StrCat("attention does not see the first ", first, " tokens"),
                   "look for evicted or masked first tokens",
                   {.hidden_first = first}});
  }
  for (const double cap : {50.0, 20.0}) {
    out.push_back({"attention_softcap",
                   absl::StrFormat("attention scores capped at %g", cap),
                   "the model has no soft cap; the engine's config has one",
                   {.attention_softcap = cap}});
  }
  const double root = std::sqrt(static_cast<double>(config.head_dim));
  out.push_back({"attention_scale",
                 "attention scores divided by the head size, not its root",
                 "compare the scale of attention",
                 {.attention_scale = 1 / root}});
  out.push_back({"activation", "GELU in place of SiLU", "compare hidden_act", {.gelu = true}});
  if (config.qk_norm != QkNorm::kNone) {
    out.push_back({"qk_norm",
                   "no norms of queries and keys",
                   "the engine runs another architecture",
                   {.unnormed_qk = true}});
  }
  if (config.attention_qkv_bias) {
    out.push_back(
        {"bias", "biases left out", "the engine's loader drops the biases", {.no_bias = true}});
  }
}

Suspect Rounded(WeightFormat format, bool embedding) {
  Suspect suspect{
      "quantised_weights",
      absl::StrCat("weights quantised to ", WeightFormatName(format),
                   embedding ? ", the embedding and head too" : ""),
      "score with the quantised weights on the trainer's side too, or serve what is trained"};
  suspect.rounds = true;
  suspect.may_round_inputs =
      embedding && (format == WeightFormat::kQ8Block32 || format == WeightFormat::kQ4KMedium ||
                    format == WeightFormat::kQ4Block32 || format == WeightFormat::kQ5Block32);
  suspect.variant.format = format;
  suspect.variant.format_embedding = embedding;
  return suspect;
}

void AddRoundings(std::vector<Suspect>& out) {
  out.push_back(Rounded(WeightFormat::kQ8Block32, true));
  out.push_back(Rounded(WeightFormat::kQ4KMedium, true));
  for (const WeightFormat format :
       {WeightFormat::kQ8Block32, WeightFormat::kInt8Channel, WeightFormat::kInt8Tensor,
        WeightFormat::kInt8Group128, WeightFormat::kAsym8Channel, WeightFormat::kFp8Channel,
        WeightFormat::kFp8Tensor, WeightFormat::kInt4Group128, WeightFormat::kInt4Group64,
        WeightFormat::kInt4Group32, WeightFormat::kInt4Channel, WeightFormat::kAsym4Group128,
        WeightFormat::kAsym4Group64, WeightFormat::kAsym4Group32, WeightFormat::kQ4Block32,
        WeightFormat::kQ5Block32}) {
    out.push_back(Rounded(format, false));
  }
  const char* const advice = "look at the option for the dtype of the engine's KV cache";
  out.push_back({"quantised_kv", "keys and values in int8", advice, {.kv_bits = 8}, true});
  out.push_back({"quantised_kv", "keys and values in fp8 e4m3", advice, {.kv_fp8 = true}, true});
  out.push_back({"quantised_kv", "keys and values in int4", advice, {.kv_bits = 4}, true});
}

// Casts in an engine that is otherwise in float32.
void AddSites(std::vector<Suspect>& out) {
  const auto add = [&](const char* text, const Variant& variant) {
    out.push_back({"rounded_site", text,
                   "look for a cast in the engine: log-softmax and attention take float32", variant,
                   true});
  };
  add("logits rounded to bf16", {.logits = Precision::kBf16});
  add("logits rounded to fp16", {.logits = Precision::kFp16});
  add("attention scores rounded to bf16", {.scores_bf16 = true});
}

// The ids of the system message that the model's chat template writes where a conversation has none;
// empty if it writes none, or none in ChatML.
std::vector<int32_t> DefaultSystemMessage(const std::string& directory) {
  const absl::StatusOr<std::unique_ptr<Tokenizer>> tokenizer = Tokenizer::Load(directory);
  if (!tokenizer.ok()) return {};
  const absl::StatusOr<std::string> chat =
      (*tokenizer)->RenderChat(R"([{"role": "user", "content": "?"}])", false);
  const std::string end = "<|im_end|>\n";
  if (!chat.ok() || !chat->starts_with("<|im_start|>system\n")) return {};
  return (*tokenizer)
      ->Encode(chat->substr(0, chat->find(end) + end.size()))
      .value_or(std::vector<int32_t>());
}

int64_t CommonPrefix(std::span<const RefereeRow> rows) {
  int64_t common = rows.empty() ? 0 : rows.front().prompt_length;
  for (const RefereeRow& row : rows) {
    int64_t n = 0;
    while (n < std::min(common, row.prompt_length) &&
           row.ids[static_cast<size_t>(n)] == rows.front().ids[static_cast<size_t>(n)]) {
      ++n;
    }
    common = n;
  }
  return common;
}

void AddPrompts(const RefereeModel& model, std::span<const RefereeRow> rows,
                std::vector<Suspect>& out) {
  const char* const advice = "print the token ids that each side is given and compare them";
  const auto has_row = [&](int32_t id) { return id >= 0 && id < model.config().vocab_size; };
  const auto add = [&](const std::string& text, Variant variant) {
    // A tokenizer may have more ids than the model has rows of its embedding: no engine took those.
    if (!std::ranges::all_of(variant.edit_ids, has_row)) return;
    out.push_back({"prompt", text, advice, std::move(variant)});
  };
  add("the prompt's first token is missing", {.edit = PromptEdit::kDropFirst, .edit_tokens = 1});
  const int32_t bos = model.config().bos_token_id;
  const bool all_begin =
      std::ranges::all_of(rows, [&](const RefereeRow& row) { return row.ids.front() == bos; });
  if (bos < 0 || all_begin) {
    add("the prompt's first token is there twice", {.edit = PromptEdit::kDoubleFirst});
  } else {
    add("a beginning-of-text token stands before the prompt",
        {.edit = PromptEdit::kPrepend, .edit_ids = {bos}});
  }
  const int64_t common = CommonPrefix(rows);
  const std::vector<int32_t> ids = DefaultSystemMessage(model.directory());
  const int64_t length = static_cast<int64_t>(ids.size());
  const bool there =
      length > 0 && std::ranges::any_of(rows, [&](const RefereeRow& row) {
        return row.prompt_length > length && std::equal(ids.begin(), ids.end(), row.ids.begin());
      });
  if (there) {
    add("the template's system message is missing",
        {.edit = PromptEdit::kDropIds, .edit_ids = ids});
  } else if (length > 0) {
    add("the template's own system message stands before the prompt",
        {.edit = PromptEdit::kPrepend, .edit_ids = ids});
    if (common >= 4) {
      add("the template's own system message in place of what all prompts begin with",
          {.edit = PromptEdit::kSwapFirst, .edit_tokens = common, .edit_ids = ids});
    }
  }
  if (common >= 2) {
    add(absl::StrCat("the ", common, " tokens that all prompts begin with are missing"),
        {.edit = PromptEdit::kDropFirst, .edit_tokens = common});
  }
  int64_t longest = 0;
  for (const RefereeRow& row : rows) longest = std::max(longest, row.prompt_length);
  for (const int64_t kept : {64, 128, 256, 512, 1024, 2048}) {
    if (kept >= longest) break;
    add(absl::StrCat("prompts are cut to their last ", kept, " tokens"),
        {.edit = PromptEdit::kKeepLast, .edit_tokens = kept});
    add(absl::StrCat("prompts are cut to their first ", kept, " tokens"),
        {.edit = PromptEdit::kKeepFirst, .edit_tokens = kept});
  }
  for (const int64_t last : {1, 3}) {
    add(absl::StrCat("the prompt's last ", last, last == 1 ? " token is" : " tokens are",
                     " missing"),
        {.edit = PromptEdit::kDropLast, .edit_tokens = last});
  }
}

}  // namespace

std::vector<Suspect> OtherWeights(const RefereeModel& model) {
  std::vector<Suspect> out;
  if (model.other() == nullptr || model.differing().empty()) return out;
  for (const double share : {1.0, 0.5, 2.0, -1.0}) {
    Suspect suspect{
        share == 1 ? "other_weights" : "other_weights_scaled",
        share == 1 ? "all weights are those of --weights"
                   : absl::StrFormat("weights %g of the way from --model to --weights", share),
        "the engine serves other weights than the records say: push, or merge the adapter"};
    suspect.variant.other_layers.assign(static_cast<size_t>(model.config().num_layers), true);
    suspect.variant.other_embedding = suspect.variant.other_head = suspect.variant.other_norm =
        true;
    suspect.variant.other_share = share;
    out.push_back(std::move(suspect));
  }
  return out;
}

std::vector<Suspect> ForwardSuspects(const RefereeModel& model, std::span<const RefereeRow> rows) {
  std::vector<Suspect> out;
  int64_t longest = 0;
  for (const RefereeRow& row : rows) {
    longest = std::max(longest, static_cast<int64_t>(row.ids.size()));
  }
  AddNorms(model.config(), out);
  AddPrompts(model, rows, out);
  AddRotary(model.config(), out);
  AddAttention(model.config(), longest, out);
  AddSites(out);
  AddRoundings(out);  // which cost most
  return out;
}

std::vector<Suspect> HiddenSuspects(const RefereeModel& model) {
  std::vector<Suspect> out = OtherWeights(model);
  if (out.size() > 1) out.resize(1);
  out.push_back(Rounded(WeightFormat::kQ8Block32, true));
  out.push_back(Rounded(WeightFormat::kInt8Channel, false));
  out.push_back(Rounded(WeightFormat::kFp8Channel, false));
  return out;
}

Suspect WithEmbedding(const Suspect& suspect) { return Rounded(suspect.variant.format, true); }

std::vector<Suspect> PartsOfOther(const RefereeModel& model) {
  std::vector<Suspect> parts;
  if (model.other() == nullptr) return parts;
  const auto differs = [&](const std::string& prefix) {
    return std::any_of(model.differing().begin(), model.differing().end(),
                       [&](const std::string& name) { return name.starts_with(prefix); });
  };
  const size_t num_layers = static_cast<size_t>(model.config().num_layers);
  for (size_t layer = 0; layer < num_layers; ++layer) {
    if (!differs(absl::StrCat("model.layers.", layer, "."))) continue;
    Suspect part{"part_of_other_weights", absl::StrCat("layer ", layer), ""};
    part.variant.other_layers.assign(num_layers, false);
    part.variant.other_layers[layer] = true;
    parts.push_back(std::move(part));
  }
  // A head that is tied to the embedding is a matrix of its own in an engine that copies it.
  const bool tied = model.config().tie_word_embeddings;
  if (differs("model.embed_tokens")) {
    Suspect part{"part_of_other_weights", "the embedding", ""};
    part.variant.other_embedding = true;
    parts.push_back(std::move(part));
  }
  if (differs(tied ? "model.embed_tokens" : "lm_head")) {
    Suspect part{"part_of_other_weights", "the head", ""};
    part.variant.other_head = true;
    parts.push_back(std::move(part));
  }
  if (differs("model.norm.")) {
    Suspect part{"part_of_other_weights", "the last norm", ""};
    part.variant.other_norm = true;
    parts.push_back(std::move(part));
  }
  return parts;
}

Suspect JoinParts(const RefereeModel& model, std::span<const Suspect> parts,
                  const std::vector<bool>& chosen) {
  Suspect joined{"part_of_other_weights", "",
                 "find the shard or push that left these tensors as they were"};
  joined.variant.other_layers.assign(static_cast<size_t>(model.config().num_layers), false);
  std::vector<std::string> names;
  for (size_t i = 0; i < parts.size(); ++i) {
    if (!chosen[i]) continue;
    const Variant& part = parts[i].variant;
    for (size_t layer = 0; layer < part.other_layers.size(); ++layer) {
      if (part.other_layers[layer]) joined.variant.other_layers[layer] = true;
    }
    joined.variant.other_embedding |= part.other_embedding;
    joined.variant.other_head |= part.other_head;
    joined.variant.other_norm |= part.other_norm;
    names.push_back(parts[i].text);
  }
  const size_t all = names.size();
  if (all > 4) {
    names = {names.front(), names[1], "...", names.back()};
  }
  joined.text = absl::StrCat(all, all == 1 ? " part is" : " parts are",
                             " of --weights: ", absl::StrJoin(names, ", "));
  return joined;
}

}  // namespace tandem::drift
