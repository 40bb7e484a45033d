#include "trainer/run/tensorboard_writer.h"

#include <array>
#include <bit>
#include <cmath>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"

namespace tandem::trainer {
namespace {

// Field numbers and wire types of tensorflow.Event and tensorflow.Summary.
constexpr char kEventWallTime = 1 << 3 | 1;     // double
constexpr char kEventStep = 2 << 3 | 0;         // int64
constexpr char kEventFileVersion = 3 << 3 | 2;  // string
constexpr char kEventSummary = 5 << 3 | 2;      // Summary
constexpr char kSummaryValue = 1 << 3 | 2;      // Summary.Value
constexpr char kValueTag = 1 << 3 | 2;          // string
constexpr char kValueSimple = 2 << 3 | 5;       // float

template <typename T>
std::string LittleEndian(T value) {
  static_assert(std::endian::native == std::endian::little);
  std::string bytes(sizeof(value), '\0');
  std::memcpy(bytes.data(), &value, sizeof(value));
  return bytes;
}

std::string Varint(uint64_t value) {
  std::string bytes;
  for (; value >= 0x80; value >>= 7) bytes.push_back(static_cast<char>(value | 0x80));
  bytes.push_back(static_cast<char>(value));
  return bytes;
}

std::string Delimited(char key, const std::string& bytes) {
  return key + Varint(bytes.size()) + bytes;
}

constexpr std::array<uint32_t, 256> MakeTable() {
  std::array<uint32_t, 256> table{};
  for (uint32_t i = 0; i < 256; ++i) {
    uint32_t crc = i;
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ (crc & 1 ? 0x82f63b78u : 0);
    table[i] = crc;
  }
  return table;
}

// As TFRecord files store it: a CRC over bytes that hold CRCs is weak unless masked.
std::string MaskedCrc(std::string_view bytes) {
  const uint32_t crc = Crc32c(bytes);
  return LittleEndian(((crc >> 15) | (crc << 17)) + 0xa282ead8u);
}

}  // namespace

uint32_t Crc32c(std::string_view bytes) {
  static constexpr std::array<uint32_t, 256> kTable = MakeTable();
  uint32_t crc = ~0u;
  for (const char c : bytes) crc = (crc >> 8) ^ kTable[(crc ^ static_cast<uint8_t>(c)) & 0xff];
  return ~crc;
}

std::string TfRecord(std::string_view data) {
  const std::string length = LittleEndian(static_cast<uint64_t>(data.size()));
  return length + MaskedCrc(length) + std::string(data) + MaskedCrc(data);
}

absl::StatusOr<std::unique_ptr<TensorboardWriter>> TensorboardWriter::Create(
    const std::string& directory, double unix_seconds) {
  TANDEM_RETURN_IF_ERROR(MakeDirectories(directory));
  TANDEM_ASSIGN_OR_RETURN(
      std::unique_ptr<AppendFile> file,
      AppendFile::Open(absl::StrCat(directory, "/events.out.tfevents.",
                                    static_cast<int64_t>(unix_seconds), ".tandem")));
  TANDEM_RETURN_IF_ERROR(file->Append(TfRecord(kEventWallTime + LittleEndian(unix_seconds) +
                                               Delimited(kEventFileVersion, "brain.Event:2"))));
  return std::unique_ptr<TensorboardWriter>(new TensorboardWriter(std::move(file)));
}

absl::Status TensorboardWriter::Write(int64_t step, double unix_seconds,
                                      std::span<const std::pair<std::string, double>> scalars) {
  std::string summary;
  for (const auto& [name, value] : scalars) {
    if (!std::isfinite(value)) continue;
    summary += Delimited(kSummaryValue, Delimited(kValueTag, name) + kValueSimple +
                                            LittleEndian(static_cast<float>(value)));
  }
  return file_->Append(TfRecord(kEventWallTime + LittleEndian(unix_seconds) + kEventStep +
                                Varint(static_cast<uint64_t>(step)) +
                                Delimited(kEventSummary, summary)));
}

}  // namespace tandem::trainer
