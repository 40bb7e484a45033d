#include "common/tensor/instruction_set.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "common/base/exit_codes.h"

// AddressSanitizer aligns stack frames to 32 bytes, which misaligns 64-byte vectors (gcc bug
// 110027). Its builds therefore stop at AVX2, whose bits are the same.
#if defined(__SANITIZE_ADDRESS__)
#define TANDEM_WIDE_VECTORS 0
#else
#define TANDEM_WIDE_VECTORS 1
#endif

namespace tandem {
namespace {

constexpr std::array<std::string_view, 4> kNames = {"scalar", "avx2", "avx512", "avx512_bf16"};

InstructionSet ChosenByUser(const char* name) {
  const std::optional<InstructionSet> set = ParseInstructionSet(name);
  const auto& supported = SupportedInstructionSets();
  if (set && std::find(supported.begin(), supported.end(), *set) != supported.end()) return *set;
  std::string names;
  for (const InstructionSet one : supported) {
    names += (names.empty() ? "" : ", ") + std::string(InstructionSetName(one));
  }
  std::fprintf(stderr, "TANDEM_INSTRUCTION_SET is '%s'; this machine has %s\n", name,
               names.c_str());
  std::_Exit(ToInt(ExitCode::kUsage));
}

}  // namespace

std::string_view InstructionSetName(InstructionSet set) { return kNames[static_cast<size_t>(set)]; }

std::optional<InstructionSet> ParseInstructionSet(std::string_view name) {
  const auto found = std::find(kNames.begin(), kNames.end(), name);
  if (found == kNames.end()) return std::nullopt;
  return static_cast<InstructionSet>(found - kNames.begin());
}

const std::vector<InstructionSet>& SupportedInstructionSets() {
  static const std::vector<InstructionSet> sets = [] {
    std::vector<InstructionSet> found = {InstructionSet::kScalar};
#if defined(__x86_64__)
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) {
      found.push_back(InstructionSet::kAvx2);
      if (TANDEM_WIDE_VECTORS && __builtin_cpu_supports("avx512f") &&
          __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
          __builtin_cpu_supports("avx512dq")) {
        found.push_back(InstructionSet::kAvx512);
        if (__builtin_cpu_supports("avx512bf16")) found.push_back(InstructionSet::kAvx512Bf16);
      }
    }
#endif
    return found;
  }();
  return sets;
}

InstructionSet ActiveInstructionSet() {
  static const InstructionSet active = [] {
    const char* name = std::getenv("TANDEM_INSTRUCTION_SET");
    return name != nullptr && *name != '\0' ? ChosenByUser(name)
                                            : SupportedInstructionSets().back();
  }();
  return active;
}

}  // namespace tandem
