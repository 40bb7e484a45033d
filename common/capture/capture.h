// Capture: one batch of completions with everything that is known about it, stored on disk. It is
// the unit of study, of bug reports and of counterfactual replay. The trainer (capture.every) and
// `tandem drift capture` write captures, and the drift lab reads them. docs/run_directory.md
// describes the format. Free of LibTorch.
//
// A capture is a directory with tensors.safetensors (the columns) and manifest.json (the facts, and
// the digest of the columns). The manifest is written last, so a directory without one is not a
// capture.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/capture/token_record.h"
#include "common/model/token_support.h"
#include "common/weights/digest.h"

namespace tandem::offpolicy {

// The version that WriteCapture writes. A capture with completions of several turns has another
// one, because a program that does not know the column `turn` would take given tokens for drawn
// ones. (Format 3 is that of records files, docs/records.md.) ReadCapture also reads version 1,
// which stores supports as plain ids.
inline constexpr int64_t kCaptureFormatVersion = 2;
inline constexpr int64_t kTurnsFormatVersion = 4;

// The sampling parameters of the request.
struct CapturedSampling {
  float temperature = 1;
  int32_t top_k = 0;
  float top_p = 1, min_p = 0;
  int32_t min_new_tokens = 0, max_new_tokens = 0;
};

// A server that sampled some of the tokens, as it describes itself.
struct CapturedServer {
  std::string address, build, dtype, numerics, instruction_set, in_flight;
  std::string weights = "dtype";  // PlanText of the formats of its weights and KV
  // Where it applied a pushed adapter: "merged" into the weights, or "unmerged", beside them.
  std::string lora = "merged";
};

// The trainer's forward pass that computed the proximal log-probs.
struct CapturedTrainer {
  std::string dtype, numerics, instruction_set, library;
  int64_t row_tokens = 0;         // most tokens of a packed row; 0: unknown
  std::string weights = "dtype";  // PlanText of what its forward imitates (fake_quantise)
};

// A version of the weights: one that sampled tokens of the capture, or one that they were scored
// again under.
struct CapturedWeights {
  int64_t version = 0;
  std::string rounding;        // how the cast to the servers' dtype rounds: "nearest" or "dither"
  DigestMap served;            // digest of the bytes the servers verifiably ran; empty: unknown
  std::string masters;         // path of the fp32 safetensors in the capture; empty: not kept
  std::string masters_digest;  // CombinedDigest of its tensors
  // In a run that trains adapters: path in the capture of A and B (LoraTensors), with which the masters
  // were merged; empty: none, or not kept.
  std::string adapter;
  int64_t adapter_rank = 0;
  float adapter_scaling = 1;
};

struct CaptureManifest {
  std::string created_at;  // RFC 3339
  std::string source;      // "run" or "server"
  std::string tandem_version;
  std::string run_id;
  int64_t step = 0;              // the train step that was to consume the batch
  int64_t proximal_version = 0;  // version of the weights behind proximal_logprobs
  std::string model_path, model_type, tokenizer_hash;
  std::string model_config_digest;  // digest of config.json
  CapturedSampling sampling;
  std::vector<CapturedServer> servers;
  CapturedTrainer trainer;               // empty strings when nothing was scored again
  std::vector<CapturedWeights> weights;  // sorted by version
  std::vector<std::string> injected;     // injected faults (drift.inject); empty in a healthy run
};

enum class CapturedFinish : uint8_t { kStop = 1, kLength = 2, kStopString = 3, kStoppedEarly = 4 };

// The columns. Lengths: [G] groups, [S] completions sorted by group, [T] tokens sorted by
// completion.
struct Capture {
  CaptureManifest manifest;

  std::vector<int64_t> group_id;        // [G]
  std::vector<int32_t> prompt_ids;      // all prompts, concatenated
  std::vector<int64_t> prompt_offsets;  // [G + 1]

  std::vector<int32_t> group;             // [S] index of the completion's group
  std::vector<int32_t> completion_index;  // [S] index within the group
  std::vector<int64_t> token_offsets;     // [S + 1]
  std::vector<double> reward;             // [S]
  std::vector<uint8_t> masked;            // [S] 1: not trained
  std::vector<uint8_t> finish;            // [S] CapturedFinish
  std::vector<int64_t> token_hash;        // [S] XXH3-64 of the ids, as received from the server
  std::vector<int64_t> seed;              // [S]

  std::vector<int32_t> token_ids;             // [T]
  std::vector<float> behaviour_logprobs;      // [T]
  std::vector<float> raw_logprobs;            // [T]
  std::vector<float> proximal_logprobs;       // [T]; NaN where not scored again
  std::vector<float> entropies;               // [T] nats, of the sampling distribution
  std::vector<float> logprob_second_moments;  // [T]
  std::vector<float> kept_mass;               // [T] retained probability mass
  std::vector<float> advantages;              // [T]
  // [T] that add up to a completion's reward. Empty: each reward comes with the last token.
  std::vector<double> token_rewards;
  // [T] the turn that drew the token, from 1; 0: it was given to the model between two turns, and
  // its numbers are NaN. Empty: all completions are of one turn.
  std::vector<int32_t> turn;
  // [T] version that sampled the token; of a given one, that of the next sampled one
  std::vector<int64_t> weight_version;
  std::vector<int32_t> decode_batch_size;       // [T]
  std::vector<uint8_t> prefix_cached;           // [T]
  std::vector<uint8_t> packed_support;          // PackedSupport bytes, token after token, of
                                                // the ids that the sampling filters left
  std::vector<int64_t> packed_support_offsets;  // [T + 1]; an empty range means all ids

  int64_t num_groups() const { return static_cast<int64_t>(group_id.size()); }
  int64_t num_completions() const { return static_cast<int64_t>(group.size()); }
  int64_t num_tokens() const { return static_cast<int64_t>(token_ids.size()); }
  int64_t num_drawn() const {  // of them, without those that were given between two turns
    return num_tokens() - std::ranges::count(turn, 0);
  }
  bool is_drawn(int64_t token) const {
    return turn.empty() || turn[static_cast<size_t>(token)] != 0;
  }
  std::span<const int32_t> prompt(int64_t group_place) const;
  std::span<const int32_t> prompt_of(int64_t completion) const {
    return prompt(group[static_cast<size_t>(completion)]);
  }
  std::span<const int32_t> ids(int64_t completion) const;
  // Where a completion's tokens begin in the [T] columns; they end where the next one's begin.
  int64_t begin_of(int64_t completion) const {
    return token_offsets[static_cast<size_t>(completion)];
  }
  SupportView support(int64_t token) const;
  const CapturedWeights* WeightsOf(int64_t version) const;  // null if not in the manifest
};

// The columns of a TokenRecord that are derived from those of a capture.
struct CaptureRecord {
  std::vector<int32_t> sequence, position, version_lag, length;
  std::vector<uint8_t> mask;
};
CaptureRecord MakeCaptureRecord(const Capture& capture);
TokenRecord RecordOf(const Capture& capture, const CaptureRecord& columns);

// Checks that the columns are consistent.
//   INVALID_ARGUMENT  a column has the wrong length (the message names it, its length and the
//                     expected one), offsets decrease, a group is out of range, or a prompt or a
//                     completion is empty; a completion does not begin and end with a drawn token
absl::Status CheckCapture(const Capture& capture);

// Writes to PATH.tmp, fsyncs and renames. An existing capture at `path` is replaced.
//   INVALID_ARGUMENT  as CheckCapture
//   RESOURCE_EXHAUSTED, UNAVAILABLE  a disk error (file_system.h); PATH is then as it was before
absl::Status WriteCapture(const std::string& path, const Capture& capture);

//   NOT_FOUND         no such directory, or it has no manifest because writing it did not end
//   INVALID_ARGUMENT  not a capture, another format version, or an error of CheckCapture
//   DATA_LOSS         the columns do not match the manifest's digest (truncated or changed)
absl::StatusOr<Capture> ReadCapture(const std::string& path);

}  // namespace tandem::offpolicy
