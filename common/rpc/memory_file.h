// MemoryFile: a file in memory without a name in any file system, which other code of this process
// reads by path(). Closed on exec. Thread-compatible.
#ifndef TANDEM_COMMON_RPC_MEMORY_FILE_H_
#define TANDEM_COMMON_RPC_MEMORY_FILE_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"

namespace tandem::rpc {

class MemoryFile {
 public:
  MemoryFile();
  ~MemoryFile();
  MemoryFile(const MemoryFile&) = delete;
  MemoryFile& operator=(const MemoryFile&) = delete;

  // Replaces the contents atomically: a reader sees the contents before or after. Each time, the
  // modification time is one second later, so that readers that compare times notice a change
  // during their reading.
  //   UNAVAILABLE  the system gives no memory file
  absl::Status Write(const std::string& contents);

  std::string path() const;

 private:
  const int fd_;
  int64_t generation_ = 0;
};

}  // namespace tandem::rpc

#endif  // TANDEM_COMMON_RPC_MEMORY_FILE_H_
