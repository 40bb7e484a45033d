#include "common/rendezvous/rank_environment.h"

#include <unistd.h>

#include <optional>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"

namespace tandem::comm {
namespace {

constexpr int kLargestWorld = 1 << 20;
// Ports for Slurm jobs, derived from the job's number: above the range that systems assign by
// themselves.
constexpr int kFirstSlurmPort = 61000, kNumSlurmPorts = 4000;

// Reads variables and remembers the first problem, which Status() returns.
class Reader {
 public:
  explicit Reader(const EnvironmentVariables& variables) : variables_(variables) {}

  bool Has(const char* name) const {
    const auto found = variables_.find(name);
    return found != variables_.end() && !found->second.empty();
  }

  std::string Text(const char* name, std::string otherwise) const {
    return Has(name) ? variables_.find(name)->second : std::move(otherwise);
  }

  // A number in [low, high], or `otherwise` where the variable is not set.
  int Number(const char* name, int low, int high, std::optional<int> otherwise = {}) {
    if (!Has(name)) {
      if (!otherwise) Fail(absl::StrCat(name, " is not set"));
      return otherwise.value_or(low);
    }
    const std::string text = Text(name, "");
    int value = 0;
    if (absl::SimpleAtoi(text, &value) && value >= low && value <= high) return value;
    Fail(absl::StrCat(name, "=", text, ": want a whole number from ", low, " to ", high));
    return low;
  }

  void Fail(std::string problem) {
    if (problem_.empty()) problem_ = std::move(problem);
  }

  absl::Status Status(const std::string& source) const {
    if (problem_.empty()) return absl::OkStatus();
    return InvalidArgument("ranks as ", source, " sets them: ", problem_);
  }

 private:
  const EnvironmentVariables& variables_;
  std::string problem_;
};

// MASTER_ADDR and MASTER_PORT take precedence over what the launcher implies.
void ReadMaster(Reader& read, const std::string& implied_host, int implied_port,
                RankEnvironment& out) {
  out.master_host = read.Text("MASTER_ADDR", implied_host);
  out.master_port = read.Number("MASTER_PORT", 1, 65535, implied_port);
  if (out.master_host.empty() && out.world_size > 1) {
    read.Fail("MASTER_ADDR is not set: the host of rank 0");
  }
}

void ReadTorchrun(Reader& read, RankEnvironment& out) {
  out.world_size = read.Number("WORLD_SIZE", 1, kLargestWorld);
  out.rank = read.Number("RANK", 0, out.world_size - 1);
  out.local_rank = read.Number("LOCAL_RANK", 0, out.world_size - 1, 0);
  out.local_world_size = read.Number("LOCAL_WORLD_SIZE", 1, out.world_size, 1);
  out.launch_id = read.Text("TORCHELASTIC_RUN_ID", "none");
  out.restart = read.Number("TORCHELASTIC_RESTART_COUNT", 0, kLargestWorld, 0);
  ReadMaster(read, out.world_size == 1 ? "127.0.0.1" : "", kDefaultMasterPort, out);
}

void ReadKubeflow(Reader& read, RankEnvironment& out) {
  out.world_size = read.Number("PET_NNODES", 1, kLargestWorld);
  out.rank = read.Number("PET_NODE_RANK", 0, out.world_size - 1);
  if (read.Text("PET_NPROC_PER_NODE", "1") != "1") {
    read.Fail(
        "PET_NPROC_PER_NODE is not 1: start the trainer by `tandem ranks --per-node N`, or by "
        "torchrun --no-python, which start one process a device");
  }
  ReadMaster(read, read.Text("PET_MASTER_ADDR", ""),
             read.Number("PET_MASTER_PORT", 1, 65535, kDefaultMasterPort), out);
}

void ReadSlurm(Reader& read, RankEnvironment& out) {
  out.world_size = read.Number("SLURM_NTASKS", 1, kLargestWorld);
  if (read.Has("SLURM_STEP_NUM_TASKS")) {
    out.world_size = read.Number("SLURM_STEP_NUM_TASKS", 1, kLargestWorld);
  }
  out.rank = read.Number("SLURM_PROCID", 0, out.world_size - 1);
  out.local_rank = read.Number("SLURM_LOCALID", 0, out.world_size - 1, 0);
  // "4", or "4(x2),3" for several hosts; the count of the first host is used.
  const std::string tasks = read.Text("SLURM_STEP_TASKS_PER_NODE", "1");
  if (!absl::SimpleAtoi(tasks.substr(0, tasks.find_first_of("(,")), &out.local_world_size)) {
    read.Fail(absl::StrCat("SLURM_STEP_TASKS_PER_NODE=", tasks, ": want \"4\" or \"4(x2),3\""));
  }
  // Step numbers use all 32 bits: an interactive step is 4294967290.
  const std::string job = read.Text("SLURM_JOB_ID", "0"), step = read.Text("SLURM_STEP_ID", "0");
  uint64_t job_number = 0, step_number = 0;
  if (!absl::SimpleAtoi(job, &job_number) || !absl::SimpleAtoi(step, &step_number)) {
    read.Fail(absl::StrCat("SLURM_JOB_ID=", job, ", SLURM_STEP_ID=", step, ": want numbers"));
  }
  out.launch_id = absl::StrCat(job, ".", step);
  out.restart = read.Number("SLURM_RESTART_COUNT", 0, kLargestWorld, 0);
  const auto host =
      FirstSlurmHost(read.Text("SLURM_STEP_NODELIST", read.Text("SLURM_JOB_NODELIST", "")));
  if (!host.ok()) read.Fail(std::string(host.status().message()));
  ReadMaster(read, host.value_or(""),
             kFirstSlurmPort + static_cast<int>((job_number + step_number) % kNumSlurmPorts), out);
}

void ReadJobSet(Reader& read, RankEnvironment& out) {
  out.world_size = read.Number("WORLD_SIZE", 1, kLargestWorld);
  out.rank = read.Number("JOB_COMPLETION_INDEX", 0, out.world_size - 1);
  out.restart = read.Number("JOBSET_RESTART_ATTEMPT", 0, kLargestWorld, 0);
  ReadMaster(read, read.Text("JOBSET_COORDINATOR", out.world_size == 1 ? "127.0.0.1" : ""),
             kDefaultMasterPort, out);
}

void ReadLws(Reader& read, RankEnvironment& out) {
  out.world_size = read.Number("LWS_GROUP_SIZE", 1, kLargestWorld);
  out.rank = read.Number("LWS_WORKER_INDEX", 0, out.world_size - 1);
  ReadMaster(read, read.Text("LWS_LEADER_ADDRESS", ""), kDefaultMasterPort, out);
}

void ReadOpenMpi(Reader& read, RankEnvironment& out) {
  out.world_size = read.Number("OMPI_COMM_WORLD_SIZE", 1, kLargestWorld);
  out.rank = read.Number("OMPI_COMM_WORLD_RANK", 0, out.world_size - 1);
  out.local_rank = read.Number("OMPI_COMM_WORLD_LOCAL_RANK", 0, out.world_size - 1, 0);
  out.local_world_size = read.Number("OMPI_COMM_WORLD_LOCAL_SIZE", 1, out.world_size, 1);
  out.launch_id = read.Text("PMIX_NAMESPACE", "none");
  ReadMaster(read, out.local_world_size == out.world_size ? "127.0.0.1" : "", kDefaultMasterPort,
             out);
}

struct Source {
  const char* name;
  std::vector<const char*> needs;  // set by this launcher: used if all of them are there
  void (*read)(Reader&, RankEnvironment&);
};

const std::vector<Source>& Sources() {
  static const std::vector<Source> sources = {
      {"torchrun", {"RANK"}, ReadTorchrun},
      {"Kubeflow", {"PET_NODE_RANK"}, ReadKubeflow},
      // Excludes the batch script itself, where SLURM_PROCID is 0 and no other rank was started.
      {"Slurm", {"SLURM_PROCID", "SLURM_STEP_ID"}, ReadSlurm},
      {"JobSet", {"JOB_COMPLETION_INDEX", "WORLD_SIZE"}, ReadJobSet},
      {"LWS", {"LWS_WORKER_INDEX"}, ReadLws},
      {"Open MPI", {"OMPI_COMM_WORLD_RANK"}, ReadOpenMpi}};
  return sources;
}

// Two launchers must agree. The exception is torchrun, which names its run: an outer launcher sees
// several of its ranks as one task, so torchrun is trusted before this check.
absl::Status CheckAgainst(const RankEnvironment& used, const RankEnvironment& other) {
  if (used.rank == other.rank && used.world_size == other.world_size) return absl::OkStatus();
  return InvalidArgument(
      "ranks are set twice: ", used.source, " says ", used.rank, " of ", used.world_size, ", ",
      other.source, " says ", other.rank, " of ", other.world_size,
      "; unset the variables of one of them (RANK and WORLD_SIZE, if they were set by hand)");
}

}  // namespace

EnvironmentVariables ProcessEnvironment() {
  EnvironmentVariables variables;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string text = *entry;
    if (const size_t at = text.find('='); at != std::string::npos) {
      variables[text.substr(0, at)] = text.substr(at + 1);
    }
  }
  return variables;
}

absl::StatusOr<RankEnvironment> ReadRankEnvironment(const EnvironmentVariables& variables) {
  std::optional<RankEnvironment> used;
  const bool elastic = variables.contains("TORCHELASTIC_RUN_ID");
  for (const Source& source : Sources()) {
    Reader read(variables);
    bool there = true;
    for (const char* const name : source.needs) there = there && read.Has(name);
    if (!there) continue;
    RankEnvironment found{.source = source.name};
    source.read(read, found);
    if (!used) {
      TANDEM_RETURN_IF_ERROR(read.Status(source.name));
      used = found;
      if (elastic) break;
    } else if (read.Status(source.name).ok()) {
      TANDEM_RETURN_IF_ERROR(CheckAgainst(*used, found));
    }
  }
  return used.value_or(RankEnvironment());
}

absl::StatusOr<std::string> FirstSlurmHost(const std::string& node_list) {
  const size_t end = node_list.find_first_of(",[");
  if (end == std::string::npos || node_list[end] == ',') return node_list.substr(0, end);
  const size_t close = node_list.find(']', end);
  if (close == std::string::npos) {
    return InvalidArgument("node list ", node_list, ": a bracket that does not close");
  }
  const std::string inside = node_list.substr(end + 1, close - end - 1);
  // The text after the bracket, up to the next host, is part of the name: "rack[1-2]-gpu".
  const size_t comma = node_list.find(',', close);
  const std::string tail = node_list.substr(
      close + 1, comma == std::string::npos ? std::string::npos : comma - close - 1);
  return absl::StrCat(node_list.substr(0, end), inside.substr(0, inside.find_first_of(",-")), tail);
}

}  // namespace tandem::comm
