#include "cli/io/shared_flags.h"

#include <cstdio>
#include <filesystem>
#include <system_error>

#include "cli/io/output_file.h"
#include "common/options/command_line.h"

namespace tandem::cli {

void AddWeightsDTypeFlag(CLI::App* sub, std::string& dtype) {
  sub->add_option("--dtype", dtype, "compute dtype; default: that of the weights")
      ->check(CLI::IsMember({"fp32", "bf16"}));
}

std::map<std::string, WeightScheme> WeightSchemes() {
  return {{"dtype", WeightScheme::kWide},
          {"int8", WeightScheme::kInt8},
          {"fp8_e4m3", WeightScheme::kFp8E4m3},
          {"int4_group", WeightScheme::kInt4Group}};
}

std::map<std::string, Activations> ActivationFormats() {
  return {
      {"auto", Activations::kAuto}, {"dtype", Activations::kDtype}, {"int8", Activations::kInt8}};
}

void AddWeightFlags(CLI::App* sub, QuantisationOptions& weights) {
  sub->add_option("--weight-format", weights.weights,
                  "number format of the rollout engine's weights (docs/quantised_rollouts.md)")
      ->transform(
          CLI::CheckedTransformer(WeightSchemes()).description("{dtype,int8,fp8_e4m3,int4_group}"))
      ->default_str(weights.weights == WeightScheme::kWide
                        ? "dtype"
                        : std::string(WeightSchemeName(weights.weights)));
  sub->add_option("--weight-group", weights.group, "inputs that share a scale of int4_group")
      ->check(CLI::IsMember({32, 64, 128}))
      ->capture_default_str();
  sub->add_option("--activations", weights.activations,
                  "inputs of quantised weights; auto: int8 for int8 weights, else as --dtype")
      ->transform(CLI::CheckedTransformer(ActivationFormats()).description("{auto,dtype,int8}"))
      ->default_str("auto");
  sub->add_flag("--quantise-head,!--no-quantise-head", weights.head,
                "quantise head and embedding too (on)");
  const std::map<std::string, KvFormat> kv_formats = {
      {"dtype", KvFormat::kDtype}, {"int8", KvFormat::kInt8}, {"fp8_e4m3", KvFormat::kFp8E4m3}};
  sub->add_option("--kv", weights.kv, "number format of the rollout engine's KV cache")
      ->transform(CLI::CheckedTransformer(kv_formats).description("{dtype,int8,fp8_e4m3}"))
      ->default_str("dtype");
  sub->add_option_function<std::vector<std::string>>(
         "--weights-by-layer",
         [&weights](const std::vector<std::string>& places) {
           for (const std::string& place : places) {
             const size_t equals = place.find('=');
             weights.by_layer.emplace_back(place.substr(0, equals), equals == std::string::npos
                                                                        ? std::string()
                                                                        : place.substr(equals + 1));
           }
         },
         "exceptions, several: PLACE=FORMAT, as in 3.down_proj=dtype, 0-4=int8 or head=dtype")
      ->delimiter(',');
}

void AddThreadsFlag(CLI::App* sub, int64_t& threads) {
  AddNonNegative(sub, "--threads", threads, "compute threads; 0: one per core of the machine");
}

std::map<std::string, Numerics> NumericsModes() {
  return {
      {"fast", Numerics::kFast}, {"invariant", Numerics::kInvariant}, {"exact", Numerics::kExact}};
}

void AddNumericsFlag(CLI::App* sub, Numerics& numerics) {
  sub->add_option("--numerics", numerics,
                  "fast; invariant: results of the rollout engine do not depend on the batch "
                  "composition; exact: both sides give the same bits")
      ->transform(CLI::CheckedTransformer(NumericsModes()).description("{fast,invariant,exact}"))
      ->default_str("fast");
}

void AddRunNumericsFlag(CLI::App* sub, std::vector<std::string>& sets) {
  sub->add_option_function<std::string>(
         "--numerics",
         [&sets](const std::string& mode) {
           sets.push_back("server.engine.numerics=" + mode);
           sets.push_back("trainer.numerics=" + mode);
         },
         "numerics of servers and trainer: fast, invariant or exact")
      ->check(CLI::IsMember({"fast", "invariant", "exact"}));
}

CLI::Option* AddConfigArgument(CLI::App* sub, std::string& config, const std::string& help) {
  return sub->add_option("config", config, help)->required()->check([](const std::string& path) {
    std::error_code ignored;
    if (path.find('=') == std::string::npos || std::filesystem::exists(path, ignored)) {
      return std::string();
    }
    return path + " is a setting and no run file: every setting takes a --set of its own, --set " +
           path;
  });
}

void AddRunSetFlag(CLI::App* sub, std::vector<std::string>& sets, const std::string& over) {
  AddSetFlag(*sub, sets, "over " + over);
}

void AddCallerFlags(CLI::App* sub, rpc::TlsOptions* options) {
  sub->add_option("--tls", options->directory,
                  "directory of tls.crt, tls.key and ca.crt: calls over mutual TLS");
  sub->add_option("--token-file", options->token_file,
                  "file with the bearer token that the servers ask for");
}

absl::StatusOr<rpc::Caller> LoadCaller(const rpc::TlsOptions& options) {
  return rpc::Caller::Load(options, {rpc::Role::kTrainer, rpc::Role::kClient, rpc::Role::kViewer},
                           "");
}

void AddJsonFlags(CLI::App* sub, JsonFlags* flags) {
  sub->add_flag("--json", flags->print, "print one JSON object instead of the text");
  sub->add_option("--json-out", flags->file, "write that JSON object to this file too");
}

absl::Status PrintResult(const JsonFlags& flags, const std::string& text, std::string json) {
  if (!json.ends_with('\n')) json += '\n';
  const absl::Status written =
      flags.file.empty() ? absl::OkStatus() : WriteOutputFile(flags.file, json);
  std::fputs(flags.print ? json.c_str() : text.c_str(), stdout);
  return written;
}

}  // namespace tandem::cli
