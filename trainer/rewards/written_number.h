// WrittenNumber: a number as people and language models write it, and whether two are the same
// number. Pure. Used by the rewards that compare answers (rewards.h).
//
// The English convention is read, and no other. One number is
//   sign       -5, +5, a typographic minus or an en dash; -$5 and $-5; minus 5, negative 5;
//              "7-3" is 7 and 3
//   thousands  1,234,567, with a comma, a LaTeX {,} or \, or a no-break or thin space
//   decimals   3.14, .5; a period that ends a sentence is none
//   exponent   1.5e3, 6.02 x 10^23, 6.02 \times 10^{23}, 10^3
//   fraction   3/4, 3 / 4, \frac{-3}{4}, \frac34, 1 1/2, 2\frac{1}{2}, 2½;
//              "12/05/2024" is three numbers
//   percent    50%, 50 %, 50\%
//   digits     ASCII, or full-width
// What looks like one number and is none of these is not read at all, and no part of it is: 0,5
// and 1.234,5 and 1'234 and 1 234 of other conventions, 12,34,567, 1.2.3, 0x10, 1/0, 3.5/2, 2^10.
// "1,2,3" is a list. Currency and units are not part of a number, and the exponent of a unit is
// none: 14 cm^2, 14 m2, 9.8 m/s^2.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace tandem::trainer {

struct WrittenNumber {
  double value = 0;     // of "50%": 50; NaN: looks like a number and is not read
  std::string decimal;  // the exact value, "-314e-2"; empty: a fraction, which may have none
  bool is_integer = false;
  bool percent = false;
};

// The numbers in `text`, in order, and those that are not read (NaN), which are the same as
// nothing.
std::vector<WrittenNumber> NumbersIn(std::string_view text);

// Integers of any length are the same when every digit is. Others are compared as values, to 1e-9
// relative, or to 1e-6 where one is a fraction (1/3 is 0.3333333). 50% is the same as 50, as a unit
// left out would have it, and as 0.5.
bool SameNumber(const WrittenNumber& a, const WrittenNumber& b);

}  // namespace tandem::trainer
