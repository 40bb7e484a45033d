#include "cli/cluster/slurm_script.h"

#include <algorithm>
#include <cmath>
#include <string_view>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "common/base/status_macros.h"

namespace tandem::cli {
namespace {

// Time between the end of the trainer and the end of the job, for `scontrol requeue` and messages.
constexpr int64_t kRequeueSeconds = 30;

bool IsPlain(std::string_view text) {
  return std::all_of(text.begin(), text.end(), [](char c) {
    return absl::ascii_isalnum(static_cast<unsigned char>(c)) ||
           std::string_view("_-.,:+@/").find(c) != std::string_view::npos;
  });
}

// The name of the run, with '_' for every character that may not be in a #SBATCH line.
std::string JobName(const std::string& run_name) {
  std::string name = run_name;
  for (char& c : name) {
    if (!IsPlain(std::string_view(&c, 1))) c = '_';
  }
  return name;
}

// The #SBATCH lines of a script, and the first problem with one of them.
class Sbatch {
 public:
  void Add(const std::string& option) { absl::StrAppend(&lines_, "#SBATCH ", option, "\n"); }
  void AddValue(const char* option, const char* name, const std::string& value) {
    if (value.empty()) return;
    Check(name, value);
    Add(absl::StrCat(option, "=", value));
  }
  void Check(const char* name, const std::string& value) {
    if (IsPlain(value)) return;
    problem_.Update(InvalidArgument("launch.slurm.", name, " is '", value,
                                    "': only letters, digits and _-.,:+@/ are passed on"));
  }
  void AddLine(const std::string& line) {
    if (!absl::StartsWith(line, "-") || line.find_first_of("\n\r") != std::string::npos) {
      problem_.Update(InvalidArgument("launch.slurm.sbatch: '", line,
                                      "' is not an option of sbatch, like --constraint=h100"));
    }
    Add(line);
  }
  absl::StatusOr<std::string> Lines() const {
    TANDEM_RETURN_IF_ERROR(problem_);
    return lines_;
  }

 private:
  std::string lines_;
  absl::Status problem_;
};

std::string Gres(const SlurmOptions& slurm, int64_t count) {
  if (count == 0) return "--gres=none";
  return absl::StrCat("--gres=gpu:", slurm.gpu_type, slurm.gpu_type.empty() ? "" : ":", count);
}

absl::StatusOr<std::string> SbatchLines(const SlurmJob& job) {
  const SlurmOptions& slurm = job.launch.slurm;
  Sbatch sbatch;
  sbatch.Add(absl::StrCat("--job-name=", JobName(job.run_name)));
  sbatch.Add(absl::StrCat("--nodes=", job.layout.num_nodes));
  sbatch.Add("--ntasks-per-node=1");
  sbatch.Add(absl::StrCat("--cpus-per-task=", job.layout.cpus_per_node));
  sbatch.Check("gpu_type", slurm.gpu_type);
  if (job.layout.gpus_per_node > 0) sbatch.Add(Gres(slurm, job.layout.gpus_per_node));
  sbatch.AddValue("--mem", "memory", slurm.memory);
  sbatch.AddValue("--partition", "partition", slurm.partition);
  sbatch.AddValue("--account", "account", slurm.account);
  sbatch.AddValue("--qos", "qos", slurm.qos);
  sbatch.AddValue("--time", "time", slurm.time);
  if (slurm.exclusive) sbatch.Add("--exclusive");
  sbatch.Add("--requeue");
  sbatch.Add("--open-mode=append");
  sbatch.Add(absl::StrCat("--signal=B:TERM@", SignalSeconds(job.launch)));
  for (const std::string& line : slurm.sbatch) sbatch.AddLine(line);
  return sbatch.Lines();
}

std::vector<std::string> ContainerOptions(const SlurmJob& job) {
  const SlurmOptions& slurm = job.launch.slurm;
  if (slurm.container_image.empty()) return {};
  std::vector<std::string> options = {absl::StrCat("--container-image=", slurm.container_image),
                                      absl::StrCat("--container-workdir=", job.directory)};
  if (!slurm.container_mounts.empty()) {
    options.push_back(absl::StrCat("--container-mounts=", slurm.container_mounts));
  }
  return options;
}

// The settings that slurm_script_body.sh reads: "name=value" and "name=(a b)".
std::string SettingsOf(const SlurmJob& job) {
  const SlurmLayout& layout = job.layout;
  const SlurmOptions& slurm = job.launch.slurm;
  std::string out;
  const auto number = [&](const char* name, int64_t value) {
    absl::StrAppend(&out, name, "=", value, "\n");
  };
  const auto text = [&](const char* name, const std::string& value) {
    absl::StrAppend(&out, name, "=", ShellQuote(value), "\n");
  };
  const auto list = [&](const char* name, const std::vector<std::string>& words) {
    absl::StrAppend(&out, name, "=(");
    for (size_t i = 0; i < words.size(); ++i) {
      absl::StrAppend(&out, i == 0 ? "" : " ", ShellQuote(words[i]));
    }
    absl::StrAppend(&out, ")\n");
  };
  text("directory", job.directory);
  text("run_directory", job.run_directory);
  text("rollout_server", job.server_program);
  text("trainer", job.trainer_program);
  list("inputs", job.inputs);
  list("container", ContainerOptions(job));
  number("num_nodes", layout.num_nodes);
  number("num_servers", job.launch.num_servers);
  number("servers_per_node", layout.servers_per_node);
  number("first_server_node", layout.first_server_node);
  number("base_port", job.launch.base_port);
  const size_t colon = job.observe_listen.rfind(':');
  int64_t observe_port = 0;
  const bool has_port = colon != std::string::npos &&
                        absl::SimpleAtoi(job.observe_listen.substr(colon + 1), &observe_port);
  if (!has_port) observe_port = 0;
  text("observe_host", job.observe_listen.substr(0, observe_port > 0 ? colon : 0));
  number("observe_port", observe_port);
  number("gpus_per_node", layout.gpus_per_node);
  const std::string cpus = "--cpus-per-task=";
  list("preflight_step",
       {absl::StrCat("--nodes=", layout.num_nodes), absl::StrCat("--ntasks=", layout.num_nodes),
        "--ntasks-per-node=1", cpus + "1", Gres(slurm, layout.gpus_per_node)});
  list("server_step",
       {"--nodes=1", "--ntasks=1", "--ntasks-per-node=1", absl::StrCat(cpus, slurm.cpus_per_server),
        Gres(slurm, layout.gpus_per_server)});
  list("trainer_step", {"--relative=0", absl::StrCat("--nodes=", layout.rank_nodes),
                        absl::StrCat("--ntasks=", job.launch.num_ranks),
                        absl::StrCat("--ntasks-per-node=", layout.ranks_per_node),
                        absl::StrCat(cpus, slurm.cpus_per_rank),
                        Gres(slurm, layout.gpus_per_rank * layout.ranks_per_node),
                        absl::StrCat("--wait=", std::llround(std::ceil(job.launch.stop_seconds)))});
  number("ready_seconds", std::llround(std::ceil(job.launch.ready_seconds)));
  number("stop_seconds", std::llround(std::ceil(job.launch.stop_seconds)));
  number("max_restarts", slurm.max_restarts);
  return out;
}

// A word that does not occur in `text`, to end a here-document.
std::string Delimiter(const std::string& text) {
  std::string word = "TANDEM_RUN_FILE";
  while (absl::StrContains(text, word)) word += "_";
  return word;
}

absl::StatusOr<std::string> SetupLines(const SlurmOptions& slurm) {
  std::string lines;
  for (const std::string& line : slurm.setup) {
    if (line.find_first_of("\n\r") != std::string::npos) {
      return InvalidArgument("launch.slurm.setup: '", line, "' is more than one line");
    }
    absl::StrAppend(&lines, line, "\n");
  }
  return lines;
}

}  // namespace

absl::StatusOr<SlurmLayout> PlanSlurmLayout(const LaunchOptions& launch, bool server_on_gpu,
                                            bool trainer_on_gpu) {
  const SlurmOptions& slurm = launch.slurm;
  SlurmLayout layout;
  TANDEM_ASSIGN_OR_RETURN(layout.rank_nodes, NumRankNodes(launch));
  layout.ranks_per_node = launch.num_ranks / layout.rank_nodes;
  layout.gpus_per_rank = trainer_on_gpu ? 1 : 0;
  layout.gpus_per_server =
      launch.gpus_per_server > 0 ? launch.gpus_per_server : (server_on_gpu ? 1 : 0);
  if (slurm.server_nodes > launch.num_servers) {
    return InvalidArgument("launch.slurm.server_nodes ", slurm.server_nodes, " for ",
                           launch.num_servers, " servers: a node would have none");
  }
  const bool shared = slurm.server_nodes == 0;
  const int64_t server_nodes = shared ? layout.rank_nodes : slurm.server_nodes;
  layout.num_nodes = shared ? layout.rank_nodes : layout.rank_nodes + slurm.server_nodes;
  layout.first_server_node = shared ? 0 : layout.rank_nodes;
  layout.servers_per_node = (launch.num_servers + server_nodes - 1) / server_nodes;
  // All nodes of an allocation have the same size, which is that of the fullest node.
  const auto together = [&](int64_t ranks, int64_t servers) {
    return shared ? ranks + servers : std::max(ranks, servers);
  };
  layout.gpus_per_node = together(layout.ranks_per_node * layout.gpus_per_rank,
                                  layout.servers_per_node * layout.gpus_per_server);
  layout.cpus_per_node = together(layout.ranks_per_node * slurm.cpus_per_rank,
                                  layout.servers_per_node * slurm.cpus_per_server);
  return layout;
}

int64_t SignalSeconds(const LaunchOptions& launch) {
  return std::llround(std::ceil(launch.stop_seconds)) + kRequeueSeconds;
}

std::string ShellQuote(const std::string& text) {
  // "--nodes=2" needs no quotes, but "a=b" at the start of a command would be an assignment.
  std::string plain = text;
  if (absl::StartsWith(text, "-")) std::replace(plain.begin(), plain.end(), '=', '-');
  if (!text.empty() && IsPlain(plain)) return text;
  // In double quotes, a script expands only what these characters introduce.
  return absl::StrCat(
      "\"", absl::StrReplaceAll(text, {{"\\", "\\\\"}, {"\"", "\\\""}, {"$", "\\$"}, {"`", "\\`"}}),
      "\"");
}

absl::StatusOr<std::string> SlurmScript(const SlurmJob& job) {
  TANDEM_ASSIGN_OR_RETURN(const std::string sbatch, SbatchLines(job));
  TANDEM_ASSIGN_OR_RETURN(const std::string setup, SetupLines(job.launch.slurm));
  const std::string delimiter = Delimiter(job.run_file);
  std::string script = absl::StrCat(
      "#!/bin/bash\n# A run of Tandem on Slurm, written by `tandem render slurm`: see "
      "docs/slurm.md.\n",
      sbatch, "\n", setup, setup.empty() ? "" : "\n", SettingsOf(job),
      "\n# The whole configuration of the run, so that what was submitted is what runs.\n"
      "write_run_file() {\n  cat <<'",
      delimiter, "'\n", job.run_file);
  if (!absl::EndsWith(script, "\n")) script += "\n";
  absl::StrAppend(&script, delimiter, "\n}\n", kSlurmScriptBody);
  return script;
}

}  // namespace tandem::cli
