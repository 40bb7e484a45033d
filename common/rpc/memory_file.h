// MemoryFile: a file of this process in memory, without a name in any file system; other code reads
// it by path(). Closed on exec. Thread-compatible.
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

  // All at once: who opens it has the contents before or these. Its time of modification is one
  // second later each time: readers that compare times see that it changed while they read.
  //   UNAVAILABLE  the system gives no memory file
  absl::Status Write(const std::string& contents);

  std::string path() const;

 private:
  const int fd_;
  int64_t generation_ = 0;
};

}  // namespace tandem::rpc

#endif  // TANDEM_COMMON_RPC_MEMORY_FILE_H_
