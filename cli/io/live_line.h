// LiveLine: shows progress on one line that is redrawn on a terminal, and as plain lines elsewhere.
// Thread-compatible.
#pragma once

#include <cstdint>
#include <string>

namespace tandem::cli {

class LiveLine {
 public:
  // Writes to standard error. TERM=dumb counts as no terminal.
  LiveLine();
  ~LiveLine() { Clear(); }

  // Replaces the line, cut to the width of the terminal. Does nothing without a terminal.
  void Update(const std::string& text);

  // Prints a line that stays, above the live line.
  void Print(const std::string& text);

  void Clear();

  bool is_terminal() const { return is_terminal_; }

 private:
  const bool is_terminal_;
  bool shown_ = false;
};

// True if `fd` is a terminal (TERM=dumb counts as none) and NO_COLOR is not set.
bool ColourWantedOn(int fd);

// "[######........] 6/14" with `width` cells.
std::string ProgressBar(int64_t done, int64_t total, int width);

// "45 s", "3:07 min", "2:05 h".
std::string ShortDuration(double seconds);

}  // namespace tandem::cli
