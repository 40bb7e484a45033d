// TensorboardWriter: scalars as a TensorBoard event file. The file is a row of TFRecords (length,
// masked CRC-32C, Event message, masked CRC-32C); the two messages it needs are encoded by hand, so
// no TensorFlow definitions come along. Used by run_directory.cc. Thread-compatible.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/files/file_system.h"

namespace tandem::trainer {

// CRC-32C (Castagnoli). "123456789" gives 0xe3069283.
uint32_t Crc32c(std::string_view bytes);

// One TFRecord around `data`.
std::string TfRecord(std::string_view data);

class TensorboardWriter {
 public:
  // Makes DIRECTORY/events.out.tfevents.<unix seconds>.tandem with its version record.
  static absl::StatusOr<std::unique_ptr<TensorboardWriter>> Create(const std::string& directory,
                                                                   double unix_seconds);

  // Non-finite values are left out.
  absl::Status Write(int64_t step, double unix_seconds,
                     std::span<const std::pair<std::string, double>> scalars);

 private:
  explicit TensorboardWriter(std::unique_ptr<AppendFile> file) : file_(std::move(file)) {}
  const std::unique_ptr<AppendFile> file_;
};

}  // namespace tandem::trainer
