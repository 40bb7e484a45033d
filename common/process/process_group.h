// What a group of processes, a program and what it started, takes together. Used by whoever starts
// programs of users and limits them.
#pragma once

#include <sys/types.h>

#include <cstdint>

namespace tandem {

// Bytes of memory that the processes of group `group` hold, summed. Pages of files, such as shared
// libraries, do not count, and pages that a fork shares with its parent count twice. 0 where there
// is no such group. Reads /proc: a few milliseconds. Thread-safe.
int64_t GroupMemoryBytes(pid_t group);

}  // namespace tandem
