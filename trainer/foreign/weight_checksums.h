// CompareChecksums: which parameters of a vLLM server are, byte for byte, what was written for it
// (stage 9). vLLM gives SHA-256 digests of its parameters as its kernels hold them
// (/weight_checker). A parameter that it keeps in the layout of the model's files has the digest of
// our tensor of that name; one that it joined (qkv_proj, gate_up_proj) has the digest of our tensors
// one after the other. Parameters that it packs for its kernels, splits over GPUs or rounds have
// neither, and nothing is said of them. Pure. Used by foreign_server.cc.
#pragma once

#include <map>
#include <set>
#include <string>

#include "absl/functional/function_ref.h"

namespace tandem::trainer {

// The bytes of a tensor by its Hugging Face name; null: there is none.
using FindBytes = absl::FunctionRef<const std::string*(const std::string& name)>;

// `checksums`: parameter, as "dp0:pp0:pcp0:tp0:model.norm.weight" or the name alone, to 64 hex digits.
// Returns the names of those that were proven, as they are spelt there.
std::set<std::string> CompareChecksums(const std::map<std::string, std::string>& checksums,
                                       FindBytes find);

}  // namespace tandem::trainer
