// Bytes of a GenerateGroup or Score request, from the wire to the last token: parsed, checked, and
// run in a small engine when they ask for little. The first byte chooses the message.
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "common/base/check.h"
#include "proto/rollout.pb.h"
#include "rollout_server/engine/engine.h"
#include "rollout_server/service/rollout_messages.h"
#include "tests/support/temp_dir.h"
#include "tests/support/tiny_model.h"

namespace tandem::rollout {
namespace {

constexpr int64_t kFewTokens = 64, kFewCompletions = 4, kFewNewTokens = 6;

std::unique_ptr<Engine> MakeEngine() {
  testing::TempDir directory;
  ModelConfig config = testing::TinyModelConfig();
  config.vocab_size = 512;
  TANDEM_CHECK(testing::WriteTinyModel(directory.path(), TANDEM_SOURCE_DIR, config, 1).ok());
  EngineOptions options;
  options.dtype = ComputeDType::kFp32;
  options.kv_capacity_tokens = 2048;
  options.num_threads = 1;
  return Engine::Create(directory.path(), options).value();
}

void Generate(Engine& engine, const std::string& bytes) {
  v1::GenerateGroupRequest message;
  if (!message.ParseFromString(bytes)) return;
  auto submission = SubmissionFromWire(message);
  if (!submission.ok()) return;
  if (!engine.Validate(submission->request).ok()) return;
  if (static_cast<int64_t>(submission->request.prompt.size()) > kFewTokens ||
      submission->request.num_completions > kFewCompletions ||
      submission->request.sampling.max_new_tokens > kFewNewTokens) {
    return;
  }
  const SamplingParams sampling = submission->request.sampling;
  const int32_t wanted = submission->request.num_completions;
  submission->request.key = 1;
  TANDEM_CHECK(engine.Add(std::move(submission->request)).ok());
  int32_t finished = 0;
  while (engine.HasWork()) {
    auto events = engine.Step();
    TANDEM_CHECK(events.ok());
    for (const EngineEvent& event : *events) {
      const auto* completion = std::get_if<CompletionFinished>(&event);
      if (completion == nullptr) continue;
      ++finished;
      v1::Completion wire;
      CompletionToWire(completion->completion, sampling, &wire);
      TANDEM_CHECK(wire.token_ids_size() == wire.behaviour_logprobs_size());
    }
  }
  TANDEM_CHECK(finished == wanted);
  TANDEM_CHECK(engine.Stats().kv_used_tokens == 0);
}

void Score(const Engine& engine, const std::string& bytes) {
  v1::ScoreRequest message;
  if (!message.ParseFromString(bytes)) return;
  const auto question =
      ScoreFromWire(message, engine.config().vocab_size, engine.config().max_position_embeddings);
  if (question.ok()) TANDEM_CHECK(!question->sequences.empty());
}

}  // namespace
}  // namespace tandem::rollout

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const std::unique_ptr<tandem::rollout::Engine> engine = tandem::rollout::MakeEngine();
  if (size == 0) return 0;
  const std::string bytes(reinterpret_cast<const char*>(data) + 1, size - 1);
  if (data[0] % 2 == 0) {
    tandem::rollout::Generate(*engine, bytes);
  } else {
    tandem::rollout::Score(*engine, bytes);
  }
  return 0;
}
