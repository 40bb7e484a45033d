// EngineOptions: how an engine calls the options behind a cause that the referee named, so that the
// advice can be followed without a search through the engine's manual. Used by referee_report.cc. Pure.
#pragma once

#include <string>

namespace tandem::drift {

// For example "--kv-cache-dtype" for ("vllm", "quantised_kv"). `engine` is the name in a records
// header, `cause` that of a RefereeCause: causes joined by "+" are looked up one by one. Empty where
// nothing is known.
//
// The names are those of vLLM 0.32, transformers 5.23, and SGLang and the server of llama.cpp in
// autumn 2026.
std::string EngineOptions(const std::string& engine, const std::string& cause);

}  // namespace tandem::drift
