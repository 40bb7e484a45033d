#include "common/process/process_group.h"

#include <unistd.h>

#include <cctype>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <system_error>

namespace tandem {
namespace {

namespace fs = std::filesystem;

// The process group in /proc/PID/stat; -1 where the process has ended. The name, the second field,
// is in parentheses and may hold anything: state, parent and group follow the last of them.
pid_t GroupOf(const fs::path& process) {
  std::ifstream file(process / "stat");
  std::string text;
  std::getline(file, text);
  const size_t end_of_name = text.rfind(')');
  if (end_of_name == std::string::npos) return -1;
  std::istringstream fields(text.substr(end_of_name + 1));
  char state = 0;
  pid_t parent = 0, group = -1;
  fields >> state >> parent >> group;
  return fields ? group : -1;
}

// Resident pages less those of files.
int64_t AnonymousPages(const fs::path& process) {
  std::ifstream file(process / "statm");
  int64_t size = 0, resident = 0, of_files = 0;
  file >> size >> resident >> of_files;
  return file ? resident - of_files : 0;
}

}  // namespace

int64_t GroupMemoryBytes(pid_t group) {
  static const int64_t page_bytes = sysconf(_SC_PAGE_SIZE);
  int64_t pages = 0;
  std::error_code ended;
  for (fs::directory_iterator entry("/proc", ended), last; !ended && entry != last;
       entry.increment(ended)) {
    const std::string name = entry->path().filename().string();
    if (std::isdigit(static_cast<unsigned char>(name[0])) == 0) continue;
    if (GroupOf(entry->path()) == group) pages += AnonymousPages(entry->path());
  }
  return pages * page_bytes;
}

}  // namespace tandem
