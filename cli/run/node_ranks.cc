#include "cli/run/node_ranks.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <random>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"

namespace tandem::cli {
namespace {

using comm::EnvironmentVariables;

bool Has(const EnvironmentVariables& variables, const char* name) {
  const auto found = variables.find(name);
  return found != variables.end() && !found->second.empty();
}

// Replaces variables by those that the flags stand for.
absl::Status ApplyFlags(const NodeFlags& flags, EnvironmentVariables& variables) {
  if (flags.node_rank >= 0) {
    if (flags.nodes == 0)
      return absl::InvalidArgumentError("--node-rank is given without --nodes: of how many?");
    EnvironmentVariables kept = {{"RANK", absl::StrCat(flags.node_rank)},
                                 {"WORLD_SIZE", absl::StrCat(flags.nodes)}};
    for (const char* const name :
         {"MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT"}) {
      if (Has(variables, name)) kept[name] = variables[name];
    }
    variables = std::move(kept);
  } else if (flags.nodes > 0 && Has(variables, "JOB_COMPLETION_INDEX") &&
             !Has(variables, "WORLD_SIZE")) {
    variables["WORLD_SIZE"] = absl::StrCat(flags.nodes);
  }
  if (flags.master.empty()) return absl::OkStatus();
  // The colon of "host:29500", and not one inside "[::1]".
  const size_t colon = flags.master.rfind(':');
  if (colon == std::string::npos || flags.master.back() == ']') {
    variables["MASTER_ADDR"] = flags.master;
    return absl::OkStatus();
  }
  variables["MASTER_ADDR"] = flags.master.substr(0, colon);
  variables["MASTER_PORT"] = flags.master.substr(colon + 1);
  return absl::OkStatus();
}

// Kubeflow sets the number of processes per pod, which may also be a word ("auto", "gpu").
absl::Status TakeProcessesPerPod(int per_node, EnvironmentVariables& variables) {
  const auto found = variables.find("PET_NPROC_PER_NODE");
  if (found == variables.end()) return absl::OkStatus();
  int said = 0;
  if (absl::SimpleAtoi(found->second, &said) && said != per_node) {
    return absl::InvalidArgumentError(absl::StrCat("PET_NPROC_PER_NODE says ", said,
                                                   " ranks a node, --per-node ", per_node,
                                                   ": make them one number"));
  }
  variables.erase(found);
  return absl::OkStatus();
}

absl::Status CheckAlone(const EnvironmentVariables& variables, const comm::RankEnvironment& env) {
  if (env.local_world_size <= 1 && env.local_rank == 0) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(env.source, " started several processes on this host (",
                   Has(variables, "LOCAL_RANK") ? "LOCAL_RANK is set" : "more than one task a node",
                   "): start tandem ranks once a host, or the command without it"));
}

bool IsFree(int port) {
  const int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  const bool is_free =
      bind(listener, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0;
  close(listener);
  return is_free;
}

}  // namespace

absl::StatusOr<NodeRanks> ReadNodeRanks(EnvironmentVariables variables, const NodeFlags& flags) {
  TANDEM_RETURN_IF_ERROR(ApplyFlags(flags, variables));
  TANDEM_RETURN_IF_ERROR(TakeProcessesPerPod(flags.per_node, variables));
  TANDEM_ASSIGN_OR_RETURN(const comm::RankEnvironment env, comm::ReadRankEnvironment(variables));
  TANDEM_RETURN_IF_ERROR(CheckAlone(variables, env));
  if (flags.nodes > 0 && env.world_size != flags.nodes) {
    if (env.source == "none") {
      return absl::InvalidArgumentError(absl::StrCat(
          "--nodes ", flags.nodes, ", and nothing says which of them this is: give --node-rank"));
    }
    return absl::InvalidArgumentError(absl::StrCat("--nodes says ", flags.nodes, " nodes, ",
                                                   env.source, " says ", env.world_size));
  }
  NodeRanks node = {.source = flags.node_rank >= 0 ? "flags" : env.source,
                    .node = env.rank,
                    .num_nodes = env.world_size,
                    .per_node = flags.per_node,
                    .master_host = env.master_host,
                    .master_port = env.master_port,
                    .launch_id = env.launch_id,
                    .restart = env.restart};
  if (node.num_nodes == 1) {
    node.master_host = Has(variables, "MASTER_ADDR") ? variables["MASTER_ADDR"] : "127.0.0.1";
    node.master_port = 0;
    if (Has(variables, "MASTER_PORT") &&
        (!absl::SimpleAtoi(variables["MASTER_PORT"], &node.master_port) || node.master_port < 1 ||
         node.master_port > 65535)) {
      return absl::InvalidArgumentError(
          absl::StrCat("MASTER_PORT=", variables["MASTER_PORT"], ": want a port"));
    }
  }
  return node;
}

std::vector<std::string> RankVariables(const NodeRanks& node, int local_rank) {
  return {absl::StrCat("RANK=", node.rank(local_rank)),
          absl::StrCat("WORLD_SIZE=", node.world_size()),
          absl::StrCat("LOCAL_RANK=", local_rank),
          absl::StrCat("LOCAL_WORLD_SIZE=", node.per_node),
          absl::StrCat("MASTER_ADDR=", node.master_host),
          absl::StrCat("MASTER_PORT=", node.master_port),
          absl::StrCat("TORCHELASTIC_RUN_ID=", node.launch_id),
          absl::StrCat("TORCHELASTIC_RESTART_COUNT=", node.restart)};
}

int FreePort() {
  // By default, the kernel picks ports from 32768 on for connections. If the port were one of them,
  // a rank that connects before rank 0 listens could be given that port and connect to itself.
  constexpr int kFirst = 20000, kLast = 32000, kTries = 100;
  std::random_device random;
  for (int i = 0; i < kTries; ++i) {
    const int port = kFirst + static_cast<int>(random() % (kLast - kFirst));
    if (IsFree(port)) return port;
  }
  return comm::kDefaultMasterPort;
}

}  // namespace tandem::cli
