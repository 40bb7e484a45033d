// Reads JSON from left to right without building a tree, because a row of a records file is mostly
// long lists of numbers. Used by json_rows.cc. Beside JSON it takes the bare NaN, Infinity and
// -Infinity that Python's json.dumps writes. Text of any content is safe input: nothing recurses.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace tandem::drift {

// A place in a text. Every Take function skips space first, moves past what it takes and returns
// true, or returns false and stays before what is there instead. Thread-compatible.
class JsonCursor {
 public:
  // `text` must outlive the cursor.
  explicit JsonCursor(std::string_view text) : text_(text) {}

  bool AtEnd();
  bool Take(char c);
  // null, true or false, and not a longer word that begins so.
  bool TakeWord(std::string_view word);
  bool TakeText(std::string& text);
  // A whole number, also one written as 3.0.
  bool TakeInt(int64_t& value);
  bool TakeInt(int32_t& value);
  // A number, NaN or an infinity, bare or as a text. Numbers beyond a float become infinities.
  bool TakeFloat(float& value);
  bool TakeFloat(double& value);
  // An object of any content, nested at most `kMostNested` deep.
  bool TakeObject();
  static constexpr int kMostNested = 100;

  // The byte that comes next, counted from 1.
  size_t byte();
  // What comes next, cut to a length that fits into a message: `"abc"`, `[1, 2...`, "the end".
  std::string Found();

 private:
  void SkipSpace();
  std::string_view rest() const { return text_.substr(at_); }
  bool TakeExact(std::string_view word);
  // Where the string or nested value that begins here ends; npos if it does not end.
  size_t EndOfString() const;
  size_t EndOfObject() const;
  template <typename T>
  bool TakeWhole(T& value);
  template <typename T>
  bool TakeNumber(T& value);
  template <typename T>
  bool TakeNonFinite(T& value);

  const std::string_view text_;
  size_t at_ = 0;
};

}  // namespace tandem::drift
