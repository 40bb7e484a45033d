#include "rollout_server/engine/cuda/cuda_weights.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <c10/core/InferenceMode.h>
#include <c10/core/StreamGuard.h>

#include <atomic>
#include <map>
#include <string>

#include "absl/strings/str_cat.h"
#include "rollout_server/engine/cuda/device_ops.h"

namespace tandem::rollout {
namespace {

at::ScalarType TypeOf(DType dtype) { return dtype == DType::kBF16 ? at::kBFloat16 : at::kFloat; }

// Maps each of the model's tensors to rows of the arrays that the kernels read.
class Layout {
 public:
  Layout(const std::vector<TensorSpec>& tensors, DType dtype) : type_(TypeOf(dtype)) {
    for (const TensorSpec& spec : tensors) shapes_[spec.name] = spec.shape;
  }

  // Concatenates the named tensors by rows, in `to`'s memory if it has their shape.
  void Stack(const std::vector<std::string>& names, at::Tensor& to) { Stack(names, type_, to); }
  void Floats(const std::vector<std::string>& names, at::Tensor& to) {
    Stack(names, at::kFloat, to);
  }

  void Linear(const std::string& prefix, const std::vector<std::string>& names, bool has_bias,
              CudaLinear& to) {
    std::vector<std::string> weights, biases;
    for (const std::string& name : names) {
      weights.push_back(absl::StrCat(prefix, name, ".weight"));
      biases.push_back(absl::StrCat(prefix, name, ".bias"));
    }
    Stack(weights, to.weight);
    if (has_bias) Floats(biases, to.bias);
  }

  void Layer(const ModelConfig& config, int64_t index, CudaLayer& to) {
    const std::string layer = absl::StrCat("model.layers.", index, ".");
    const std::string attention = layer + "self_attn.", mlp = layer + "mlp.";
    Floats({layer + "input_layernorm.weight"}, to.input_norm);
    Floats({layer + "post_attention_layernorm.weight"}, to.post_norm);
    if (config.qk_norm != QkNorm::kNone) {
      Floats({attention + "q_norm.weight"}, to.q_norm);
      Floats({attention + "k_norm.weight"}, to.k_norm);
    }
    Linear(attention, {"q_proj", "k_proj", "v_proj"}, config.attention_qkv_bias, to.qkv);
    Linear(attention, {"o_proj"}, config.attention_o_bias, to.o);
    Linear(mlp, {"gate_proj", "up_proj"}, config.mlp_bias, to.gate_up);
    Linear(mlp, {"down_proj"}, config.mlp_bias, to.down);
  }

  const at::Tensor& place(const std::string& name) const { return places_.at(name); }

 private:
  void Stack(const std::vector<std::string>& names, at::ScalarType type, at::Tensor& to) {
    std::vector<int64_t> shape = shapes_.at(names[0]);
    shape[0] = 0;
    for (const std::string& name : names) shape[0] += shapes_.at(name)[0];
    if (!to.defined() || to.sizes() != at::IntArrayRef(shape)) {
      to = at::empty(shape, cuda::On(type));
    }
    int64_t first = 0;
    for (const std::string& name : names) {
      const int64_t rows = shapes_.at(name)[0];
      places_[name] = to.narrow(0, first, rows);
      first += rows;
    }
  }

  const at::ScalarType type_;
  std::map<std::string, std::vector<int64_t>> shapes_;
  std::map<std::string, at::Tensor> places_;
};

}  // namespace

uint64_t CudaWeights::NextPlace() {
  static std::atomic<uint64_t> last{0};
  return ++last;
}

int64_t CudaWeights::layer_bytes() const {
  int64_t bytes = 0;
  for (const CudaLayer& layer : layers) {
    for (const CudaLinear* linear : {&layer.qkv, &layer.o, &layer.gate_up, &layer.down}) {
      bytes += static_cast<int64_t>(linear->weight.nbytes());
    }
  }
  return bytes;
}

std::vector<at::Tensor> TensorPlaces(const ModelConfig& config, DType dtype, CudaWeights& weights) {
  const std::vector<TensorSpec> tensors = ModelTensors(config, dtype);
  Layout layout(tensors, dtype);
  layout.Stack({"model.embed_tokens.weight"}, weights.embedding);
  if (config.tie_word_embeddings) {
    weights.head = weights.embedding;
  } else {
    layout.Stack({"lm_head.weight"}, weights.head);
  }
  weights.layers.resize(static_cast<size_t>(config.num_layers));
  for (int64_t i = 0; i < config.num_layers; ++i) {
    layout.Layer(config, i, weights.layers[static_cast<size_t>(i)]);
  }
  layout.Floats({"model.norm.weight"}, weights.final_norm);
  std::vector<at::Tensor> places;
  for (const TensorSpec& spec : tensors) places.push_back(layout.place(spec.name));
  return places;
}

std::unique_ptr<CudaWeights> UploadWeights(const ModelConfig& config,
                                           const std::vector<HostTensor>& tensors, DType dtype,
                                           std::unique_ptr<CudaWeights> spare) {
  const c10::InferenceMode inference;
  // Beside the engine thread's stream: a push does not hold its steps up.
  const c10::Stream stream = cuda::StreamOfUploads();
  const c10::StreamGuard guard(stream);
  if (!spare) spare = std::make_unique<CudaWeights>();
  const std::vector<at::Tensor> places = TensorPlaces(config, dtype, *spare);
  for (size_t i = 0; i < tensors.size(); ++i) {
    // copy_ reads only.
    places[i].copy_(at::from_blob(const_cast<std::byte*>(tensors[i].bytes.data()),
                                  tensors[i].spec.shape, at::TensorOptions().dtype(TypeOf(dtype))));
  }
  cuda::Wait(stream);
  return spare;
}

}  // namespace tandem::rollout
