#include "trainer/run/run_card.h"

#include <unistd.h>

#include <fstream>
#include <thread>

#include "absl/strings/ascii.h"
#include "common/base/version.h"
#include "common/files/file_system.h"
#include "nlohmann/json.hpp"

namespace tandem::trainer {
namespace {

std::string CpuName() {
  std::ifstream info("/proc/cpuinfo");
  for (std::string line; std::getline(info, line);) {
    const size_t colon = line.find(": ");
    if (line.rfind("model name", 0) == 0 && colon != std::string::npos)
      return line.substr(colon + 2);
  }
  return "unknown";
}

int64_t MemoryGib() {
  const int64_t bytes = int64_t{sysconf(_SC_PHYS_PAGES)} * sysconf(_SC_PAGE_SIZE);
  return (bytes + (int64_t{1} << 29)) >> 30;
}

}  // namespace

std::string ReadModelSource(const std::string& model_directory) {
  const auto text = ReadFile(model_directory + "/SOURCE.txt");
  return text.ok() ? std::string(absl::StripAsciiWhitespace(*text)) : "";
}

std::string ToJson(const RunCard& card) {
  nlohmann::ordered_json servers = nlohmann::ordered_json::array();
  for (const ServerCard& server : card.servers) {
    servers.push_back({{"address", server.address},
                       {"dtype", server.dtype},
                       {"numerics", server.numerics},
                       {"instruction_set", server.instruction_set},
                       {"in_flight", server.in_flight},
                       {"version", server.version},
                       {"weight_digest", server.weight_digest},
                       {"injected", server.injected}});
  }
  const nlohmann::ordered_json json = {
      {"schema", 1},
      {"run_id", card.run_id},
      {"started_at", card.started_at},
      {"seed", card.seed},
      {"deterministic", card.deterministic},
      {"model",
       {{"path", card.model_path},
        {"type", card.model_type},
        {"source", card.model_source},
        {"num_parameters", card.num_parameters},
        {"tokenizer_hash", card.tokenizer_hash}}},
      {"trainer",
       {{"dtype", card.trainer_dtype},
        {"numerics", card.trainer_numerics},
        {"instruction_set", card.trainer_instruction_set},
        {"threads", card.threads}}},
      {"servers", servers},
      {"versions",
       {{"tandem", std::string(ProjectVersion()) + " (" + std::string(GitCommit()) + ")"},
        {"libtorch", card.libtorch},
        {"grpc", card.grpc}}},
      {"hardware",
       {{"cpu", CpuName()},
        {"cores", std::thread::hardware_concurrency()},
        {"memory_gib", MemoryGib()}}},
      {"task",
       {{"num_train_prompts", card.num_train_prompts},
        {"num_eval_prompts", card.num_eval_prompts}}}};
  return json.dump(1, ' ', false, nlohmann::json::error_handler_t::replace);
}

}  // namespace tandem::trainer
