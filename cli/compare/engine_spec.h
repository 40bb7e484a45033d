// EngineSpec: what --a and --b of `tandem drift compare` name: NAME[:DTYPE][:OPTION...], or the URL
// of a server. Pure, but for FindEnginePython.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace tandem::cli {

struct EngineSpec {
  std::string text;                  // as given
  std::string name;                  // "tandem", "transformers", "vllm", "llama_cpp", "openai_http"
  std::string dtype;                 // "" where none is given
  bool exact = false;                // tandem only: numerics exact
  std::string model;                 // directory of this side alone; "" where none is given
  std::vector<std::string> options;  // "NAME=VALUE", for the adapter
};

// "tandem", "tandem:bf16", "tandem:exact", "transformers:fp32:eager", "vllm:bf16",
// "llama_cpp:q8_0", "vllm:bf16:max_model_len=256", "vllm:model=DIR", "http://127.0.0.1:8000" (vLLM's
// form), "sglang+http://...".
//   INVALID_ARGUMENT  no such engine (the message lists them), a dtype that it does not have, a part
//                     that is no option
absl::StatusOr<EngineSpec> ParseEngineSpec(std::string_view text);

// Where an adapter runs: the interpreter, and the folder that goes before its PYTHONPATH (empty:
// none, the package is installed).
struct EnginePython {
  std::string interpreter, package_folder;
};

// `asked` (--python-a) if it is not empty, else .deps/engines/NAME of the checkout that this program
// was built in or that is the current directory; transformers and openai_http are also in
// .deps/venv.
//   NOT_FOUND  there is no interpreter; the message says how to install the engine
absl::StatusOr<EnginePython> FindEnginePython(const EngineSpec& spec, const std::string& asked);

}  // namespace tandem::cli
