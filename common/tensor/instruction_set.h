// InstructionSet: the vector instructions that the CPU kernels use, chosen once per process. Pure.
//
// Kernels are written once, on vectors of 16 floats with a fixed order of operations, and compiled
// for each set. kAvx2 and kAvx512 give the same bits. kScalar has no fused multiply-add, and
// kAvx512Bf16 multiplies bf16 pairs with an instruction that rounds differently, so the bits of
// these two differ from all others.
#pragma once

#include <optional>
#include <string_view>
#include <vector>

namespace tandem {

enum class InstructionSet { kScalar, kAvx2, kAvx512, kAvx512Bf16 };

// "scalar", "avx2", "avx512", "avx512_bf16".
std::string_view InstructionSetName(InstructionSet set);
std::optional<InstructionSet> ParseInstructionSet(std::string_view name);

// Of a kernel's variants, the one for a set. kAvx512Bf16 takes that of kAvx512.
template <typename T>
constexpr const T& VariantFor(InstructionSet set, const T& scalar, const T& avx2, const T& avx512) {
  if (set == InstructionSet::kScalar) return scalar;
  return set == InstructionSet::kAvx2 ? avx2 : avx512;
}

// The sets that this machine supports, kScalar first and the best last.
const std::vector<InstructionSet>& SupportedInstructionSets();

// The set in use: the best one, or a lower one that the environment variable TANDEM_INSTRUCTION_SET
// names, to reproduce the bits of a lesser machine. An unknown or unsupported name ends the process
// with a message, because the results would silently differ from those asked for. Thread-safe.
InstructionSet ActiveInstructionSet();

}  // namespace tandem
