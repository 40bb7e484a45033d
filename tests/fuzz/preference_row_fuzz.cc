// Any text as a row of preference data: refused with its place, or a row with something to learn.
#include <cstdint>
#include <string_view>

#include "common/base/check.h"
#include "trainer/preferences/preference_rows.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto row = tandem::trainer::ParsePreferenceRow(
      std::string_view(reinterpret_cast<const char*>(data), size), "p.jsonl:1");
  if (!row.ok()) {
    TANDEM_CHECK(row.status().message().find("p.jsonl:1: ") == 0);
    return 0;
  }
  TANDEM_CHECK(!row->prompt_text.empty() || !row->prompt_messages.empty());
  TANDEM_CHECK(row->is_pair() ? row->chosen != row->rejected : !row->completion.empty());
  return 0;
}
