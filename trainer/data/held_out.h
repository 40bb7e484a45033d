// Which prompts are held out by trainer.data.eval_share. Pure.
#pragma once

#include <string_view>

namespace tandem::trainer {

// Whether a prompt (PromptRow::identity) is held out: where the hash of its text, XXH3 of 64 bits, lies
// in the lowest `share` of all hashes. So equal prompts are on the same side, a prompt is on the same
// side in every run and on every machine, and rows that are added to a file move no other row. The
// share of the rows is that only about: with n different prompts its standard deviation is
// sqrt(share (1 - share) / n).
bool IsHeldOut(std::string_view identity, double share);

}  // namespace tandem::trainer
