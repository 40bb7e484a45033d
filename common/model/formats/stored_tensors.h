// Tensors of a model as its quantised servers hold them: what a weight push sends when it is quantised
// by the trainer. Names and order are those of ModelTensors; a quantised matrix [out, in] is U8 [out,
// StoredRowBytes] of stored rows (common/matrix/stored_row.h). Pure.
#pragma once

#include <string>
#include <vector>

#include "common/matrix/weight_format.h"
#include "common/model/model_config.h"
#include "common/model/quantisation_plan.h"
#include "common/weights/host_tensor.h"

namespace tandem {

// The format of the tensor with this name: kWide for what is no matrix, or not quantised.
WeightFormat FormatOf(const QuantisationPlan& plan, const std::string& name);

// ModelTensors of `dtype`, with the plan's quantised matrices as stored rows.
std::vector<TensorSpec> StoredTensors(const ModelConfig& config, DType dtype,
                                      const QuantisationPlan& plan);

// A tensor of a server's dtype (F32 or BF16) as it is stored; itself where `format` is wide. The same
// bits as an engine makes of it.
HostTensor StoreTensor(const HostTensor& tensor, const WeightFormat& format);

}  // namespace tandem
