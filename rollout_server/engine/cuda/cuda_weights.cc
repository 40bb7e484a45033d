#include "rollout_server/engine/cuda/cuda_weights.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <c10/core/InferenceMode.h>
#include <c10/core/StreamGuard.h>

#include <atomic>
#include <map>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "rollout_server/engine/cuda/device_ops.h"

namespace tandem::rollout {
namespace {

class Uploader {
 public:
  Uploader(const std::vector<HostTensor>& tensors, DType dtype)
      : type_(dtype == DType::kBF16 ? at::kBFloat16 : at::kFloat) {
    for (const HostTensor& tensor : tensors) tensors_[tensor.spec.name] = &tensor;
  }

  // The named tensors one below the other, in `to`'s memory if it has their shape.
  void Stack(const std::vector<std::string>& names, at::Tensor& to) const {
    std::vector<int64_t> shape = tensors_.at(names[0])->spec.shape;
    shape[0] = 0;
    for (const std::string& name : names) shape[0] += tensors_.at(name)->spec.shape[0];
    if (!to.defined() || to.sizes() != at::IntArrayRef(shape)) {
      to = at::empty(shape, cuda::On(type_));
    }
    int64_t first = 0;
    for (const std::string& name : names) {
      const HostTensor& tensor = *tensors_.at(name);
      const int64_t rows = tensor.spec.shape[0];
      // copy_ reads only.
      to.narrow(0, first, rows)
          .copy_(at::from_blob(const_cast<std::byte*>(tensor.bytes.data()), tensor.spec.shape,
                               at::TensorOptions().dtype(type_)));
      first += rows;
    }
  }

  // Vectors, as fp32.
  void Floats(const std::vector<std::string>& names, at::Tensor& to) const {
    at::Tensor typed;
    Stack(names, typed);
    if (to.defined() && to.sizes() == typed.sizes()) {
      to.copy_(typed);
    } else {
      to = typed.to(at::kFloat);
    }
  }

  void Linear(const std::string& prefix, const std::vector<std::string>& names, bool has_bias,
              CudaLinear& to) const {
    std::vector<std::string> weights, biases;
    for (const std::string& name : names) {
      weights.push_back(absl::StrCat(prefix, name, ".weight"));
      biases.push_back(absl::StrCat(prefix, name, ".bias"));
    }
    Stack(weights, to.weight);
    if (has_bias) Floats(biases, to.bias);
  }

  void Layer(const ModelConfig& config, int64_t index, CudaLayer& to) const {
    const std::string layer = absl::StrCat("model.layers.", index, ".");
    const std::string attention = layer + "self_attn.", mlp = layer + "mlp.";
    Floats({layer + "input_layernorm.weight"}, to.input_norm);
    Floats({layer + "post_attention_layernorm.weight"}, to.post_norm);
    if (config.qk_norm) {
      Floats({attention + "q_norm.weight"}, to.q_norm);
      Floats({attention + "k_norm.weight"}, to.k_norm);
    }
    Linear(attention, {"q_proj", "k_proj", "v_proj"}, config.attention_qkv_bias, to.qkv);
    Linear(attention, {"o_proj"}, config.attention_o_bias, to.o);
    Linear(mlp, {"gate_proj", "up_proj"}, config.mlp_bias, to.gate_up);
    Linear(mlp, {"down_proj"}, config.mlp_bias, to.down);
  }

 private:
  const at::ScalarType type_;
  std::map<std::string, const HostTensor*> tensors_;
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

std::unique_ptr<CudaWeights> UploadWeights(const ModelConfig& config,
                                           const std::vector<HostTensor>& tensors, DType dtype,
                                           std::unique_ptr<CudaWeights> spare) {
  const c10::InferenceMode inference;
  // Beside the engine thread's stream: a push does not hold its steps up.
  const c10::Stream stream = cuda::StreamOfUploads();
  const c10::StreamGuard guard(stream);
  if (!spare) spare = std::make_unique<CudaWeights>();
  const Uploader uploader(tensors, dtype);
  uploader.Stack({"model.embed_tokens.weight"}, spare->embedding);
  if (config.tie_word_embeddings) {
    spare->head = spare->embedding;
  } else {
    uploader.Stack({"lm_head.weight"}, spare->head);
  }
  spare->layers.resize(static_cast<size_t>(config.num_layers));
  for (int64_t i = 0; i < config.num_layers; ++i) {
    uploader.Layer(config, i, spare->layers[static_cast<size_t>(i)]);
  }
  uploader.Floats({"model.norm.weight"}, spare->final_norm);
  cuda::Wait(stream);
  return spare;
}

}  // namespace tandem::rollout
