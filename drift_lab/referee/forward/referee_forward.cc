#include "drift_lab/referee/forward/referee_forward.h"

#include <ATen/ATen.h>
#include <c10/core/InferenceMode.h>

#include <algorithm>
#include <cmath>
#include <exception>
#include <map>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "drift_lab/referee/forward/referee_tensors.h"

namespace tandem::drift {
namespace {

constexpr int64_t kTokensAtATime = 2048;
constexpr int64_t kLogitRows = 256;

// A row as the variant plays it.
struct PlayedRow {
  const RefereeRow* row = nullptr;
  std::vector<int64_t> ids;
  std::vector<double> positions;
  int64_t shift = 0;  // of the drawn tokens against the record
  int64_t first = 0;  // of the pack's tokens
  int64_t size() const { return static_cast<int64_t>(ids.size()); }
};

PlayedRow Play(const RefereeRow& row, const Variant& variant) {
  PlayedRow played{.row = &row};
  const int64_t prompt = row.prompt_length;
  int64_t from = 0, until = prompt;
  switch (variant.edit) {
    case PromptEdit::kNone:
      break;
    case PromptEdit::kDropFirst:
      from = std::min(variant.edit_tokens, std::max<int64_t>(prompt - 1, 0));
      break;
    case PromptEdit::kDropIds: {
      const std::vector<int32_t>& ids = variant.edit_ids;
      if (static_cast<int64_t>(ids.size()) < prompt &&
          std::equal(ids.begin(), ids.end(), row.ids.begin()))
        from = static_cast<int64_t>(ids.size());
      break;
    }
    case PromptEdit::kKeepLast:
      from = std::max<int64_t>(prompt - variant.edit_tokens, 0);
      break;
    case PromptEdit::kKeepFirst:
      until = std::min(prompt, variant.edit_tokens);
      break;
    case PromptEdit::kDropLast:
      until = std::max<int64_t>(prompt - variant.edit_tokens, std::min<int64_t>(prompt, 1));
      break;
    case PromptEdit::kSwapFirst:
      from = std::min(variant.edit_tokens, std::max<int64_t>(prompt - 1, 0));
      played.ids.assign(variant.edit_ids.begin(), variant.edit_ids.end());
      break;
    case PromptEdit::kPrepend:
      played.ids.assign(variant.edit_ids.begin(), variant.edit_ids.end());
      break;
    case PromptEdit::kDoubleFirst:
      if (!row.ids.empty()) played.ids.push_back(row.ids.front());
      break;
  }
  played.ids.insert(played.ids.end(), row.ids.begin() + from, row.ids.begin() + until);
  const int64_t begin = played.size();
  played.shift = begin - prompt;
  played.ids.insert(played.ids.end(), row.ids.begin() + prompt, row.ids.end());
  for (int64_t t = 0; t < played.size(); ++t) {
    double position = static_cast<double>(t);
    if (t >= begin) {
      position += static_cast<double>(variant.completion_gap);
      if (variant.positions_restart) position -= static_cast<double>(begin);
    }
    played.positions.push_back(position / variant.rope_scale);
  }
  return played;
}

// The forward pass of a variant over packs of rows.
class Player {
 public:
  Player(const RefereeModel& model, const Variant& variant)
      : model_(model),
        config_(model.config()),
        variant_(variant),
        dtype_(variant.precision == Precision::kBf16 ? at::kBFloat16 : at::kFloat),
        eps_(variant.rms_norm_eps >= 0 ? variant.rms_norm_eps : config_.rms_norm_eps) {
    const RotaryEmbedding own = MakeRotaryEmbedding(config_.rope, config_.head_dim);
    for (size_t i = 0; i < own.inverse_frequencies.size(); ++i) {
      const double part = 2.0 * static_cast<double>(i) / static_cast<double>(config_.head_dim);
      frequencies_.push_back(own.inverse_frequencies[i] *
                             std::pow(variant.rope_theta_factor, -part));
    }
  }

  // Hidden states after the final norm, [T, E].
  at::Tensor Hidden(const std::vector<PlayedRow>& rows);

  // [R, V] fp32
  at::Tensor Logits(const at::Tensor& hidden) {
    const at::Tensor logits = at::linear(Input(hidden), Head());
    const auto site = variant_.logits == Precision::kBf16   ? at::kBFloat16
                      : variant_.logits == Precision::kFp16 ? at::kHalf
                                                            : logits.scalar_type();
    return logits.to(site).to(at::kFloat);
  }

 private:
  const at::Tensor& Own(const std::string& name) const { return model_.tensors().by_name.at(name); }

  // The weight as it is played, before formats.
  at::Tensor Mixed(const std::string& name, bool other) const {
    const at::Tensor& own = Own(name);
    if (!other || model_.other() == nullptr) return own;
    const at::Tensor& theirs = model_.other()->by_name.at(name);
    return variant_.other_share == 1 ? theirs : own + (theirs - own) * variant_.other_share;
  }
  // `layer` is -1 for the embedding and the head.
  at::Tensor Matrix(const std::string& name, int64_t layer, bool other, bool rounded) {
    const auto found = kept_.find(name);
    if (found != kept_.end()) return found->second;
    at::Tensor matrix = Mixed(name, other);
    if (rounded) {
      matrix =
          RoundedWeights(matrix, FormatOfMatrix(variant_.format, name, layer, config_.num_layers));
    }
    return kept_[name] = matrix.to(dtype_);
  }
  at::Tensor Embedding() {
    return Matrix("model.embed_tokens.weight", -1, variant_.other_embedding,
                  variant_.format_embedding);
  }
  at::Tensor Head() {
    if (config_.tie_word_embeddings && variant_.other_head == variant_.other_embedding) {
      return Embedding();
    }
    if (!config_.tie_word_embeddings) {
      return Matrix("lm_head.weight", -1, variant_.other_head, variant_.format_embedding);
    }
    at::Tensor& head = kept_["head"];
    if (!head.defined()) head = Mixed("model.embed_tokens.weight", variant_.other_head).to(dtype_);
    return head;
  }
  bool IsOther(int64_t layer) const {
    return static_cast<size_t>(layer) < variant_.other_layers.size() &&
           variant_.other_layers[static_cast<size_t>(layer)];
  }

  // What a matrix multiplies. llama.cpp rounds it to int8, in blocks that go with those of the matrix.
  at::Tensor Input(const at::Tensor& x) const {
    if (!variant_.activations_q8) return x.to(dtype_);
    const bool super = variant_.format == WeightFormat::kQ4KMedium && x.size(-1) % 256 == 0;
    return RoundedActivations(x.to(at::kFloat), super ? 256 : 32).to(dtype_);
  }
  at::Tensor Linear(const std::string& name, int64_t layer, bool bias, const at::Tensor& input) {
    const at::Tensor weight = Matrix(absl::StrCat(name, ".weight"), layer, IsOther(layer), true);
    if (!bias || variant_.no_bias) return at::linear(input, weight);
    return at::linear(input, weight, Mixed(absl::StrCat(name, ".bias"), IsOther(layer)).to(dtype_));
  }
  at::Tensor Norm(const at::Tensor& x, const at::Tensor& weight) const {
    const at::Tensor wide = x.to(at::kFloat);
    const at::Tensor normed = wide * at::rsqrt(wide.square().mean(-1, true) + eps_);
    return normed.to(dtype_) * weight.to(dtype_);
  }

  // [T, H, D]
  at::Tensor Rotate(const at::Tensor& x) const {
    if (variant_.rope_interleaved) {
      const at::Tensor even = x.slice(-1, 0, at::nullopt, 2), odd = x.slice(-1, 1, at::nullopt, 2);
      return at::stack({even * cos_ - odd * sin_, odd * cos_ + even * sin_}, -1).flatten(-2);
    }
    const std::vector<at::Tensor> half = x.chunk(2, -1);
    return at::cat({half[0] * cos_ - half[1] * sin_, half[1] * cos_ + half[0] * sin_}, -1);
  }
  void MakeTables(const std::vector<PlayedRow>& rows);
  at::Tensor Visible(int64_t size) const;
  // [H, T, D] each -> [T, H * D], of one row.
  at::Tensor AttendRow(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v) const;
  at::Tensor Attention(int64_t layer, const std::vector<PlayedRow>& rows, const at::Tensor& normed);

  const RefereeModel& model_;
  const ModelConfig& config_;
  const Variant& variant_;
  const at::ScalarType dtype_;
  const double eps_;
  std::vector<double> frequencies_;
  at::Tensor cos_, sin_;  // [T, 1, D / 2]
  std::map<std::string, at::Tensor> kept_;
};

void Player::MakeTables(const std::vector<PlayedRow>& rows) {
  std::vector<float> angles;
  for (const PlayedRow& row : rows) {
    for (const double position : row.positions) {
      // The product of floats is what transformers rotates by.
      for (const double frequency : frequencies_) {
        angles.push_back(static_cast<float>(position) * static_cast<float>(frequency));
      }
    }
  }
  const int64_t half = static_cast<int64_t>(frequencies_.size());
  const at::Tensor table = at::from_blob(
      angles.data(), {static_cast<int64_t>(angles.size()) / half, 1, half}, at::kFloat);
  cos_ = table.cos().to(dtype_);
  sin_ = table.sin().to(dtype_);
}

// Additive mask [T, T] in fp32.
at::Tensor Player::Visible(int64_t size) const {
  const at::Tensor index = at::arange(size, at::kLong);
  const at::Tensor query = index.unsqueeze(1), key = index.unsqueeze(0);
  at::Tensor visible = key <= query;
  if (variant_.window > 0) {
    visible = visible & ((query - key < variant_.window) | (key < variant_.sinks));
  }
  if (variant_.hidden_first > 0) {
    visible = visible & ((key >= variant_.hidden_first) | (query == key));
  }
  return at::zeros({size, size}, at::kFloat).masked_fill_(visible.logical_not(), -1e30);
}

at::Tensor Player::AttendRow(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v) const {
  const double scale = variant_.attention_scale / std::sqrt(static_cast<double>(config_.head_dim));
  const int64_t size = q.size(1);
  if (variant_.attention_softcap > 0 || variant_.scores_bf16) {
    at::Tensor scores = at::matmul(q, k.transpose(1, 2)).to(at::kFloat) * scale;
    if (variant_.scores_bf16) scores = scores.to(at::kBFloat16).to(at::kFloat);
    if (const double cap = variant_.attention_softcap; cap > 0)
      scores = at::tanh(scores / cap) * cap;
    return at::matmul((scores + Visible(size)).softmax(-1).to(dtype_), v)
        .transpose(0, 1)
        .reshape({size, -1});
  }
  c10::optional<at::Tensor> mask;
  if (variant_.window > 0 || variant_.hidden_first > 0) mask = Visible(size).to(dtype_);
  return at::scaled_dot_product_attention(q.unsqueeze(0), k.unsqueeze(0), v.unsqueeze(0), mask, 0.0,
                                          !mask.has_value(), scale)
      .squeeze(0)
      .transpose(0, 1)
      .reshape({size, -1});
}

at::Tensor Player::Attention(int64_t layer, const std::vector<PlayedRow>& rows,
                             const at::Tensor& normed) {
  const std::string prefix = absl::StrCat("model.layers.", layer, ".self_attn.");
  const at::Tensor input = Input(normed);
  const bool bias = config_.attention_qkv_bias;
  const auto heads = [&](const char* name, int64_t count) {
    return Linear(absl::StrCat(prefix, name), layer, bias, input)
        .view({-1, count, config_.head_dim});
  };
  at::Tensor q = heads("q_proj", config_.num_heads), k = heads("k_proj", config_.num_kv_heads);
  at::Tensor v = heads("v_proj", config_.num_kv_heads);
  if (config_.qk_norm != QkNorm::kNone && !variant_.unnormed_qk) {
    q = Norm(q, Mixed(absl::StrCat(prefix, "q_norm.weight"), IsOther(layer)));
    k = Norm(k, Mixed(absl::StrCat(prefix, "k_norm.weight"), IsOther(layer)));
  }
  q = Rotate(q);
  k = Rotate(k);
  if (variant_.kv_bits > 0) {
    k = RoundedVectors(k.to(at::kFloat), variant_.kv_bits).to(dtype_);
    v = RoundedVectors(v.to(at::kFloat), variant_.kv_bits).to(dtype_);
  }
  if (variant_.kv_fp8) {
    k = RoundedToE4m3(k.to(at::kFloat)).to(dtype_);
    v = RoundedToE4m3(v.to(at::kFloat)).to(dtype_);
  }
  const int64_t copies = config_.num_heads / config_.num_kv_heads;
  q = q.transpose(0, 1);
  k = k.repeat_interleave(copies, 1).transpose(0, 1);
  v = v.repeat_interleave(copies, 1).transpose(0, 1);
  std::vector<at::Tensor> out;
  for (const PlayedRow& row : rows) {
    const auto part = [&](const at::Tensor& x) { return x.narrow(1, row.first, row.size()); };
    out.push_back(AttendRow(part(q), part(k), part(v)));
  }
  return Linear(absl::StrCat(prefix, "o_proj"), layer, config_.attention_o_bias,
                Input(at::cat(out, 0)));
}

at::Tensor Player::Hidden(const std::vector<PlayedRow>& rows) {
  std::vector<int64_t> ids;
  for (const PlayedRow& row : rows) ids.insert(ids.end(), row.ids.begin(), row.ids.end());
  const at::Tensor index = at::from_blob(ids.data(), {static_cast<int64_t>(ids.size())}, at::kLong);
  MakeTables(rows);
  at::Tensor x = Embedding().index_select(0, index);
  const auto add = [&](const at::Tensor& y) { x = x + y; };
  for (int64_t layer = 0; layer < config_.num_layers; ++layer) {
    const std::string prefix = absl::StrCat("model.layers.", layer, ".");
    const auto norm = [&](const char* name) {
      return Norm(x, Mixed(absl::StrCat(prefix, name), IsOther(layer)));
    };
    add(Attention(layer, rows, norm("input_layernorm.weight")));
    const at::Tensor input = Input(norm("post_attention_layernorm.weight"));
    const auto linear = [&](const char* name, const at::Tensor& of) {
      return Linear(absl::StrCat(prefix, "mlp.", name), layer, config_.mlp_bias, of);
    };
    const at::Tensor gate = linear("gate_proj", input);
    const at::Tensor active = variant_.gelu ? at::gelu(gate) : at::silu(gate);
    add(linear("down_proj", Input(active * linear("up_proj", input))));
  }
  return Norm(x, Mixed("model.norm.weight", variant_.other_norm));
}

// The context's distinct tokens and how often they are there.
void AddSeen(const RefereeRow& row, int64_t target, std::span<const float> logits,
             TokenLogits& out) {
  std::map<int32_t, SeenLogit> seen;
  for (int64_t t = 0; t < target; ++t) {
    const int32_t id = row.ids[static_cast<size_t>(t)];
    SeenLogit& entry = seen[id];
    entry.id = id;
    (t < row.prompt_length ? entry.in_prompt : entry.in_completion) += 1;
  }
  for (auto& [id, entry] : seen) {
    entry.logit = logits[static_cast<size_t>(id)];
    out.seen.push_back(entry);
  }
}

struct Place {
  const RefereeRow* row;
  int64_t target, number, at;  // at: the row of the hidden states whose logits are of the target
};

void ScorePack(Player& player, std::vector<PlayedRow>& pack, const ForwardOptions& options,
               std::vector<TokenLogits>& out) {
  int64_t first = 0;
  std::vector<Place> places;
  for (PlayedRow& row : pack) {
    row.first = first;
    for (size_t i = 0; i < row.row->targets.size(); ++i) {
      const int64_t target = row.row->targets[i];
      const int64_t at = std::max<int64_t>(first + target + row.shift - 1, first);
      places.push_back({row.row, target, static_cast<int64_t>(i), at});
    }
    first += row.size();
  }
  const at::Tensor hidden = player.Hidden(pack);
  for (size_t begin = 0; begin < places.size(); begin += kLogitRows) {
    const size_t count = std::min<size_t>(kLogitRows, places.size() - begin);
    std::vector<int64_t> index;
    for (size_t i = 0; i < count; ++i) index.push_back(places[begin + i].at);
    const at::Tensor rows = hidden.index_select(
        0, at::from_blob(index.data(), {static_cast<int64_t>(count)}, at::kLong));
    const at::Tensor logits = player.Logits(rows).contiguous();
    const size_t vocabulary = static_cast<size_t>(logits.size(1));
    for (size_t i = 0; i < count; ++i) {
      const Place& place = places[begin + i];
      const std::span<const float> of(logits.const_data_ptr<float>() + i * vocabulary, vocabulary);
      TokenLogits token =
          ReduceLogits(of, place.row->ids[static_cast<size_t>(place.target)], options.end_tokens);
      token.row = place.row->row;
      token.place = place.number;
      if (options.with_seen) AddSeen(*place.row, place.target, of, token);
      out.push_back(std::move(token));
    }
  }
}

absl::Status CheckIds(const RefereeModel& model, std::span<const RefereeRow> rows) {
  for (const RefereeRow& row : rows) {
    for (const int32_t id : row.ids) {
      if (id >= 0 && id < model.config().vocab_size) continue;
      return InvalidArgument("row ", row.row, " has the token ", id, ", and the model in ",
                             model.directory(), " has a vocabulary of ", model.config().vocab_size);
    }
  }
  return absl::OkStatus();
}

}  // namespace

std::vector<RefereeRow> RefereeRows(const Records& records) {
  std::vector<RefereeRow> rows;
  for (int64_t r = 0; r < records.num_rows(); ++r) {
    const std::span<const int32_t> ids = records.of_row(records.token_ids, r);
    const std::span<const uint8_t> drawn = records.of_row(records.drawn, r);
    RefereeRow row{.row = r, .ids = {ids.begin(), ids.end()}};
    for (size_t t = 1; t < ids.size(); ++t) {
      if (drawn[t] != 0) row.targets.push_back(static_cast<int64_t>(t));
    }
    if (row.targets.empty()) continue;
    row.prompt_length = drawn[0] != 0 ? 0 : row.targets.front();
    rows.push_back(std::move(row));
  }
  return rows;
}

absl::StatusOr<std::vector<TokenLogits>> RefereeForward(const RefereeModel& model,
                                                        std::span<const RefereeRow> rows,
                                                        const Variant& variant,
                                                        const ForwardOptions& options) {
  TANDEM_RETURN_IF_ERROR(CheckIds(model, rows));
  const c10::InferenceMode inference;
  try {
    Player player(model, variant);
    std::vector<TokenLogits> out;
    std::vector<PlayedRow> pack;
    int64_t tokens = 0;
    for (size_t i = 0; i < rows.size(); ++i) {
      pack.push_back(Play(rows[i], variant));
      tokens += pack.back().size();
      const bool last = i + 1 == rows.size();
      if (!last && tokens + static_cast<int64_t>(rows[i + 1].ids.size()) <= kTokensAtATime) {
        continue;
      }
      ScorePack(player, pack, options, out);
      pack.clear();
      tokens = 0;
      options.progress(static_cast<double>(i + 1) / static_cast<double>(rows.size()));
    }
    return out;
  } catch (const std::exception& error) {
    return Internal("the referee's forward pass: ", error.what());
  }
}

}  // namespace tandem::drift
