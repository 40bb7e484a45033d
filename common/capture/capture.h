// Capture: one batch of completions with everything that is known about it, on disk: the unit of
// study, of bug reports and of counterfactual replay. Written by the trainer (capture.every) and by
// `tandem drift capture`; read by the drift lab. Format: docs/run_directory.md. Free of LibTorch.
//
// A directory with tensors.safetensors (columns) and manifest.json (facts, and the digest of the
// columns), which is written last: a directory without one is not a capture.
#ifndef TANDEM_COMMON_CAPTURE_CAPTURE_H_
#define TANDEM_COMMON_CAPTURE_CAPTURE_H_

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/capture/token_record.h"
#include "common/model/token_support.h"
#include "common/weights/digest.h"

namespace tandem::offpolicy {

// Written. ReadCapture reads 1 as well, which has supports as plain ids.
inline constexpr int64_t kCaptureFormatVersion = 2;

// How the tokens were drawn, as the request asked.
struct CapturedSampling {
  float temperature = 1;
  int32_t top_k = 0;
  float top_p = 1, min_p = 0;
  int32_t min_new_tokens = 0, max_new_tokens = 0;
};

// A server that drew some of them, as it describes itself.
struct CapturedServer {
  std::string address, build, dtype, numerics, instruction_set, in_flight;
};

// The forward that made the proximal log-probs.
struct CapturedTrainer {
  std::string dtype, numerics, instruction_set, library;
  int64_t row_tokens =
      0;  // completions of a group are packed into rows of at most so many; 0: unknown
};

// A version of the weights that tokens of the capture carry, or the one they were re-scored under.
struct CapturedWeights {
  int64_t version = 0;
  std::string rounding;  // of the cast to the servers' dtype: "nearest" or "dither"
  DigestMap served;      // tensor -> digest of the bytes servers were proven to run; empty: unknown
  std::string masters;   // fp32 safetensors, relative to the capture; empty: not kept
  std::string masters_digest;  // CombinedDigest of its tensors
};

struct CaptureManifest {
  std::string created_at;  // RFC 3339
  std::string source;      // "run" or "server"
  std::string tandem_version;
  std::string run_id;
  int64_t step = 0;              // train step that was about to consume the batch
  int64_t proximal_version = 0;  // weights the proximal log-probs are of
  std::string model_path, model_type, tokenizer_hash;
  std::string model_config_digest;  // of config.json
  CapturedSampling sampling;
  std::vector<CapturedServer> servers;
  CapturedTrainer trainer;               // empty strings when nothing was re-scored
  std::vector<CapturedWeights> weights;  // in order of version
  std::vector<std::string>
      injected;  // faults that a run asked for (drift.inject): never empty then
};

enum class CapturedFinish : uint8_t { kStop = 1, kLength = 2, kStopString = 3, kStoppedEarly = 4 };

// Columns. [G] groups, [S] completions in order of group, [T] tokens in order of completion.
struct Capture {
  CaptureManifest manifest;

  std::vector<int64_t> group_id;        // [G]
  std::vector<int32_t> prompt_ids;      // all prompts, one after the other
  std::vector<int64_t> prompt_offsets;  // [G + 1]

  std::vector<int32_t> group;             // [S] place of the completion's group
  std::vector<int32_t> completion_index;  // [S] in its group
  std::vector<int64_t> token_offsets;     // [S + 1]
  std::vector<double> reward;             // [S]
  std::vector<uint8_t> masked;            // [S] 1: not trained
  std::vector<uint8_t> finish;            // [S] CapturedFinish
  std::vector<int64_t> token_hash;        // [S] XXH3-64 of the ids, as the server sent it
  std::vector<int64_t> seed;              // [S]

  std::vector<int32_t> token_ids;               // [T]
  std::vector<float> behaviour_logprobs;        // [T]
  std::vector<float> raw_logprobs;              // [T]
  std::vector<float> proximal_logprobs;         // [T]; NaN where not re-scored
  std::vector<float> entropies;                 // [T] of the sampling distribution
  std::vector<float> logprob_second_moments;    // [T]
  std::vector<float> kept_mass;                 // [T]
  std::vector<float> advantages;                // [T]
  std::vector<int64_t> weight_version;          // [T] that drew the token
  std::vector<int32_t> decode_batch_size;       // [T]
  std::vector<uint8_t> prefix_cached;           // [T]
  std::vector<uint8_t> packed_support;          // ids filters left, where they left some out: bytes
                                                // of PackedSupport, one token after the other
  std::vector<int64_t> packed_support_offsets;  // [T + 1]; equal neighbours: all ids

  int64_t num_groups() const { return static_cast<int64_t>(group_id.size()); }
  int64_t num_completions() const { return static_cast<int64_t>(group.size()); }
  int64_t num_tokens() const { return static_cast<int64_t>(token_ids.size()); }
  std::span<const int32_t> prompt(int64_t group_place) const;
  std::span<const int32_t> ids(int64_t completion) const;
  SupportView support(int64_t token) const;
  const CapturedWeights* WeightsOf(int64_t version) const;  // null when not described
};

// The columns that a TokenRecord needs beside those of the capture.
struct CaptureRecord {
  std::vector<int32_t> sequence, position, version_lag, length;
  std::vector<uint8_t> mask;
};
CaptureRecord MakeCaptureRecord(const Capture& capture);
TokenRecord RecordOf(const Capture& capture, const CaptureRecord& columns);

// Do the columns fit together?
//   INVALID_ARGUMENT  names the column, its length and the one it must have; offsets that fall; a
//                     group out of range; an empty prompt or completion
absl::Status CheckCapture(const Capture& capture);

// Writes to PATH.tmp, fsyncs and renames; a capture that was there is replaced.
//   INVALID_ARGUMENT  CheckCapture
//   RESOURCE_EXHAUSTED, UNAVAILABLE  the disk (file_system.h); nothing is left behind at PATH
absl::Status WriteCapture(const std::string& path, const Capture& capture);

//   NOT_FOUND         no directory, or one without a manifest: writing it did not end
//   INVALID_ARGUMENT  not a capture; one of another format version; CheckCapture
//   DATA_LOSS         the columns are not those the manifest was written for (truncated or changed)
absl::StatusOr<Capture> ReadCapture(const std::string& path);

}  // namespace tandem::offpolicy

#endif  // TANDEM_COMMON_CAPTURE_CAPTURE_H_
