#include "common/observe/observation.h"

#include "common/base/log.h"
#include "common/base/status_macros.h"

namespace tandem {

absl::Status Observation::Serve(const std::string& address) {
  if (address.empty()) return absl::OkStatus();
  TANDEM_ASSIGN_OR_RETURN(server_, ObserveServer::Listen(address, &metrics_, &health_));
  log::Info("observe port",
            {{"address", address.substr(0, address.rfind(':'))}, {"port", server_->port()}});
  return absl::OkStatus();
}

}  // namespace tandem
