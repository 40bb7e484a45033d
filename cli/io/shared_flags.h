// Flags that have the same form and meaning in several commands.
#pragma once

#include <CLI/CLI.hpp>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/model/numerics.h"
#include "common/model/quantisation_plan.h"
#include "common/rpc/credentials.h"
#include "common/rpc/tls_directory.h"

namespace tandem::cli {

// Flags whose default is the current value of `field`, shown in the help: a number above 0, a
// number from 0 on, a share, an integer from `least` to `most`, and one of a few words.
template <typename Number>
CLI::Option* AddPositive(CLI::App* sub, const char* name, Number& field, const char* help) {
  const auto check = [](const std::string& text) {  // CLI's own names a range of 300 digits
    double value = 0;
    const bool small = absl::SimpleAtod(text, &value) && !(value > 0);
    return small ? absl::StrCat("is ", text, ", want above 0") : std::string();
  };
  return sub->add_option(name, field, help)
      ->check(CLI::Validator(check, "POSITIVE"))
      ->capture_default_str();
}
template <typename Number>
CLI::Option* AddNonNegative(CLI::App* sub, const char* name, Number& field, const char* help) {
  const auto check = [](const std::string& text) {  // CLI's own names a range of 300 digits
    return text.starts_with('-') ? absl::StrCat("is ", text, ", want 0 or more") : std::string();
  };
  return sub->add_option(name, field, help)
      ->check(CLI::Validator(check, "NONNEGATIVE"))
      ->capture_default_str();
}
template <typename Number>
CLI::Option* AddShare(CLI::App* sub, const char* name, Number& field, const char* help) {
  return sub->add_option(name, field, help)->check(CLI::Range(0.0, 1.0))->capture_default_str();
}
template <typename Number>
CLI::Option* AddRange(CLI::App* sub, const char* name, Number& field, int least, int most,
                      const char* help) {
  return sub->add_option(name, field, help)->check(CLI::Range(least, most))->capture_default_str();
}
inline CLI::Option* AddChoice(CLI::App* sub, const char* name, std::string& field,
                              const std::vector<std::string>& choices, const char* help) {
  return sub->add_option(name, field, help)->check(CLI::IsMember(choices))->capture_default_str();
}

// --dtype fp32|bf16, where the default is the dtype of the weights.
void AddWeightsDTypeFlag(CLI::App* sub, std::string& dtype);

// The formats of --weight-format and --activations by name.
std::map<std::string, WeightScheme> WeightSchemes();
std::map<std::string, Activations> ActivationFormats();
// --weight-format, --weight-group, --activations, --quantise-head, --weights-by-layer and --kv, which
// are the options weights, weights_group and so on of server.engine.
void AddWeightFlags(CLI::App* sub, QuantisationOptions& weights);

// --threads: 0 means the cores of the machine.
void AddThreadsFlag(CLI::App* sub, int64_t& threads);

// --numerics fast|invariant|exact.
std::map<std::string, Numerics> NumericsModes();
void AddNumericsFlag(CLI::App* sub, Numerics& numerics);
// The same for both sides of a run, appended to `sets` as KEY=VALUE.
void AddRunNumericsFlag(CLI::App* sub, std::vector<std::string>& sets);

// The argument CONFIG, a run file. A setting in its place (--set a=1 b=2) is reported as such and
// not as a missing file.
CLI::Option* AddConfigArgument(CLI::App* sub, std::string& config, const std::string& help);

// --set KEY=VALUE of a run file. `over` names what the settings override.
void AddRunSetFlag(CLI::App* sub, std::vector<std::string>& sets,
                   const std::string& over = "the file");

// --tls and --token-file of commands that call rollout servers.
void AddCallerFlags(CLI::App* sub, rpc::TlsOptions* options);
// Loads an identity of any role that may call. Errors are those of rpc::Caller::Load.
absl::StatusOr<rpc::Caller> LoadCaller(const rpc::TlsOptions& options);

// --json and --json-out FILE of commands whose result has a JSON form.
struct JsonFlags {
  bool print = false;  // --json
  std::string file;    // --json-out
};
void AddJsonFlags(CLI::App* sub, JsonFlags* flags);

// Prints `text`, or `json` under --json, on standard output, and writes `json` to the file of
// --json-out. `json` is one object, with or without a newline at its end. Errors are those of
// WriteOutputFile; the result is printed all the same.
absl::Status PrintResult(const JsonFlags& flags, const std::string& text, std::string json);

}  // namespace tandem::cli
