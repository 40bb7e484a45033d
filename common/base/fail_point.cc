#include "common/base/fail_point.h"

#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <string>

#include "absl/strings/numbers.h"

namespace tandem {

void FailPoint(std::string_view name) {
  static std::atomic<int64_t> passed{0};
  const char* const text = std::getenv("TANDEM_FAIL_POINT");
  if (text == nullptr) return;
  const std::string setting(text);
  const size_t colon = setting.rfind(':');
  int64_t at = 0;
  if (colon == std::string::npos || !absl::SimpleAtoi(setting.substr(colon + 1), &at)) return;
  if (name.find(setting.substr(0, colon)) == std::string_view::npos) return;
  if (++passed == at) kill(getpid(), SIGKILL);
}

}  // namespace tandem
