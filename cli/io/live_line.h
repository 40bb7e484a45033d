// LiveLine: progress on one line that redraws itself on a terminal; plain lines, fewer of them,
// anywhere else. Used by run, demo, sft and eval. Thread-compatible.
#pragma once

#include <cstdint>
#include <string>

namespace tandem::cli {

class LiveLine {
 public:
  // To standard error. A terminal is one if isatty says so; TERM=dumb counts as none. Colour needs
  // a terminal and no NO_COLOR in the environment.
  LiveLine();
  LiveLine(bool is_terminal, bool colour) : is_terminal_(is_terminal), colour_(colour) {}
  ~LiveLine() { Clear(); }

  // Replaces the line (terminal only; cut to its width).
  void Update(const std::string& text);

  // A line that stays, above the live one.
  void Print(const std::string& text);

  void Clear();

  bool is_terminal() const { return is_terminal_; }
  std::string Bold(const std::string& text) const;

 private:
  const bool is_terminal_;
  const bool colour_;
  bool shown_ = false;
};

// True for a descriptor that is a terminal (TERM=dumb counts as none) without NO_COLOR.
bool ColourWantedOn(int fd);

// "[######........]  6/14" of `width` cells.
std::string ProgressBar(int64_t done, int64_t total, int width);

// "45 s", "3:07 min", "2:05 h".
std::string ShortDuration(double seconds);

}  // namespace tandem::cli
