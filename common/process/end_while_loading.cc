#include "common/process/end_while_loading.h"

#include <chrono>
#include <cstdlib>
#include <optional>

#include "common/base/log.h"

namespace tandem {
namespace {

void EndAtStop(const StopSignal& stop, std::optional<ExitCode> code,
               const std::atomic<bool>& loaded) {
  while (!loaded.load()) {
    if (!stop.WaitFor(std::chrono::milliseconds(20))) continue;
    log::Info("stopped while the model was being loaded", {{"signal", stop.signal()}});
    std::_Exit(ToInt(code.value_or(ExitCodeOfSignal(stop.signal()))));
  }
}

}  // namespace

EndWhileLoading::EndWhileLoading(const StopSignal& stop)
    : thread_([this, &stop] { EndAtStop(stop, std::nullopt, loaded_); }) {}

EndWhileLoading::EndWhileLoading(const StopSignal& stop, ExitCode code)
    : thread_([this, &stop, code] { EndAtStop(stop, code, loaded_); }) {}

EndWhileLoading::~EndWhileLoading() {
  loaded_.store(true);
  thread_.join();
}

}  // namespace tandem
