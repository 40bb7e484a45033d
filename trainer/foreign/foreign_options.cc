#include "trainer/foreign/foreign_options.h"

#include <filesystem>

namespace tandem::trainer {

void BindOptions(OptionBinder& binder, ForeignOptions& options) {
  binder.Text(
      "weights_dir", &options.weights_dir,
      "versions of the weights for the servers to load, which must see this directory under "
      "the same path; empty: foreign_weights in the run directory");
  binder.Choice("in_flight", &options.in_flight,
                {{"drain", ForeignInFlight::kDrain}, {"abort", ForeignInFlight::kAbort}},
                "what a push does to completions in progress: wait for their end, or end them and "
                "ask again");
  binder.Flag("checksums", &options.checksums,
              "compare the server's SHA-256 digests with what was written, after each push: both "
              "sides read all weights for it");
}

std::string WeightsDirOf(const ForeignOptions& options, const std::string& run_directory) {
  return std::filesystem::absolute(options.weights_dir.empty() ? run_directory + "/foreign_weights"
                                                               : options.weights_dir)
      .lexically_normal()
      .string();
}

}  // namespace tandem::trainer
