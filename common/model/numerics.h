// Numerics: what a run promises about the arithmetic of its two sides (docs/numerics.md).
#ifndef TANDEM_COMMON_MODEL_NUMERICS_H_
#define TANDEM_COMMON_MODEL_NUMERICS_H_

#include <string_view>

namespace tandem {

enum class Numerics {
  kFast,       // each side its own best kernels: the mode whose mismatch is studied
  kInvariant,  // the engine's results depend on the sequence and the weights alone
  kExact,      // and the trainer's forward gives the engine's bits at equal weights
};

constexpr std::string_view NumericsName(Numerics numerics) {
  switch (numerics) {
    case Numerics::kFast:
      return "fast";
    case Numerics::kInvariant:
      return "invariant";
    case Numerics::kExact:
      return "exact";
  }
  return "";
}

// Binder is OptionBinder (common/options/options.h).
template <typename Binder>
void BindNumerics(Binder& binder, Numerics* field, std::string_view help) {
  binder.template Choice<Numerics>(
      "numerics", field,
      {{"fast", Numerics::kFast}, {"invariant", Numerics::kInvariant}, {"exact", Numerics::kExact}},
      help);
}

}  // namespace tandem

#endif  // TANDEM_COMMON_MODEL_NUMERICS_H_
