#include "common/observe/observation.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <system_error>

#include "common/base/log.h"
#include "common/base/status_macros.h"
#include "common/base/version.h"

namespace tandem {

absl::Status Observation::Serve(const std::string& address) {
  if (address.empty()) return absl::OkStatus();
  TANDEM_ASSIGN_OR_RETURN(server_, ObserveServer::Listen(address, &metrics_, &health_));
  log::Info("observe port",
            {{"address", address.substr(0, address.rfind(':'))}, {"port", server_->port()}});
  return absl::OkStatus();
}

namespace {

// Fields of /proc/self/stat, numbered as in proc(5) less the two before the state, because the name
// may contain spaces.
struct Stat {
  std::array<double, 53> field = {};
};

Stat ReadStat() {
  std::ifstream file("/proc/self/stat");
  std::string line;
  std::getline(file, line);
  const size_t name_end = line.rfind(')');
  Stat stat;
  if (name_end == std::string::npos) return stat;
  std::istringstream words(line.substr(name_end + 2));
  std::string state;
  words >> state;
  for (size_t i = 4; i < stat.field.size() && words >> stat.field[i]; ++i) {
  }
  return stat;
}

double BootTimeSeconds() {
  std::ifstream file("/proc/stat");
  for (std::string line; std::getline(file, line);) {
    if (line.rfind("btime ", 0) == 0) return std::stod(line.substr(6));
  }
  return 0;
}

double CountOpenFiles() {
  std::error_code ignored;
  double count = 0;
  for (auto it = std::filesystem::directory_iterator("/proc/self/fd", ignored);
       it != std::filesystem::directory_iterator(); it.increment(ignored)) {
    ++count;
  }
  return count;
}

}  // namespace

ProcessMetrics::ProcessMetrics(MetricsRegistry* registry, const std::string& role)
    : registry_(registry),
      cpu_seconds_(registry->GetCounter("process_cpu_seconds_total",
                                        "User and system CPU time of all threads.")),
      resident_bytes_(registry->GetGauge("process_resident_memory_bytes", "Resident memory.")),
      virtual_bytes_(registry->GetGauge("process_virtual_memory_bytes", "Virtual memory.")),
      threads_(registry->GetGauge("process_threads", "Threads.")),
      open_files_(registry->GetGauge("process_open_fds", "Open file descriptors.")),
      max_files_(registry->GetGauge("process_max_fds", "Most file descriptors it may open.")),
      start_time_(registry->GetGauge("process_start_time_seconds",
                                     "When the process started, in seconds since 1970.")) {
  registry
      ->GetGauge("tandem_build_info", "Always 1; what was built, and what this process is.",
                 {{"version", std::string(ProjectVersion())},
                  {"commit", std::string(GitCommit())},
                  {"role", role}})
      ->Set(1);
  rlimit files = {};
  if (getrlimit(RLIMIT_NOFILE, &files) == 0) max_files_->Set(static_cast<double>(files.rlim_cur));
  const auto ticks = static_cast<double>(sysconf(_SC_CLK_TCK));
  start_time_->Set(BootTimeSeconds() + ReadStat().field[22] / ticks);
  registry->BeforeRender(this, [this] { Update(); });
}

ProcessMetrics::~ProcessMetrics() { registry_->Forget(this); }

void ProcessMetrics::Update() {
  const Stat stat = ReadStat();
  const auto ticks = static_cast<double>(sysconf(_SC_CLK_TCK));
  const double cpu = (stat.field[14] + stat.field[15]) / ticks;
  cpu_seconds_->Add(std::max(0.0, cpu - cpu_seconds_->Value()));
  threads_->Set(stat.field[20]);
  virtual_bytes_->Set(stat.field[23]);
  resident_bytes_->Set(stat.field[24] * static_cast<double>(sysconf(_SC_PAGESIZE)));
  open_files_->Set(CountOpenFiles());
}

}  // namespace tandem
