#include "cli/io/live_line.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "absl/strings/str_format.h"

namespace tandem::cli {
namespace {

bool IsTerminal(int fd) {
  const char* term = std::getenv("TERM");
  return isatty(fd) == 1 && (term == nullptr || std::strcmp(term, "dumb") != 0);
}

size_t TerminalWidth() {
  winsize size = {};
  if (ioctl(STDERR_FILENO, TIOCGWINSZ, &size) != 0 || size.ws_col == 0) return 80;
  return size.ws_col;
}

}  // namespace

LiveLine::LiveLine() : is_terminal_(IsTerminal(STDERR_FILENO)) {}

void LiveLine::Update(const std::string& text) {
  if (!is_terminal_) return;
  std::fprintf(stderr, "\r\033[K%s", text.substr(0, TerminalWidth() - 1).c_str());
  std::fflush(stderr);
  shown_ = true;
}

void LiveLine::Print(const std::string& text) {
  Clear();
  std::fprintf(stderr, "%s\n", text.c_str());
  std::fflush(stderr);
}

void LiveLine::Clear() {
  if (shown_) std::fputs("\r\033[K", stderr);
  shown_ = false;
}

bool ColourWantedOn(int fd) {
  const char* no_colour = std::getenv("NO_COLOR");
  return IsTerminal(fd) && (no_colour == nullptr || *no_colour == '\0');
}

std::string ProgressBar(int64_t done, int64_t total, int width) {
  const int64_t filled = total > 0 ? std::clamp<int64_t>(done * width / total, 0, width) : 0;
  std::string bar(static_cast<size_t>(filled), '#');
  bar.resize(static_cast<size_t>(width), '.');
  return "[" + bar + "] " + std::to_string(done) + "/" + std::to_string(total);
}

std::string ShortDuration(double seconds) {
  const int64_t whole = std::llround(std::max(0.0, seconds));
  if (whole < 60) return absl::StrFormat("%d s", whole);
  if (whole < 3600) return absl::StrFormat("%d:%02d min", whole / 60, whole % 60);
  return absl::StrFormat("%d:%02d h", whole / 3600, whole / 60 % 60);
}

}  // namespace tandem::cli
