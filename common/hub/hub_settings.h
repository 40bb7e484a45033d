// HubSettings: what the environment says about the Hugging Face Hub: where its cache is on this
// machine, where its server is, and the token for it. The variables, their order and their defaults
// are those of huggingface_hub (its constants.py and utils/_auth.py), so that both programs share
// one cache. Used by the functions of resolve.h and by the Hub's client.
#pragma once

#include <functional>
#include <string>

namespace tandem::hub {

struct HubSettings {
  // HF_HUB_CACHE, else HUGGINGFACE_HUB_CACHE, else HF_HOME/hub, where HF_HOME is by default
  // XDG_CACHE_HOME/huggingface, and XDG_CACHE_HOME is ~/.cache. ~ and $NAME are expanded.
  std::string cache;
  std::string endpoint;  // HF_ENDPOINT without slashes at its end; https://huggingface.co
  // HF_TOKEN, else HUGGING_FACE_HUB_TOKEN, else the file HF_TOKEN_PATH (HF_HOME/token). Empty: none
  // is there, or HF_HUB_DISABLE_IMPLICIT_TOKEN is set, or the token would travel in plaintext to
  // another machine.
  std::string token;
  // "of HF_TOKEN", "of the file /root/.cache/huggingface/token"; or why there is none.
  std::string token_origin;
  bool offline = false;       // HF_HUB_OFFLINE or TRANSFORMERS_OFFLINE: ask no server
  bool symlinks = true;       // off with HF_HUB_DISABLE_SYMLINKS: snapshots hold the files
  double stall_seconds = 10;  // HF_HUB_DOWNLOAD_TIMEOUT: a transfer without a byte for so long ends
};

// The value of an environment variable; null without it. std::getenv is one.
using Environment = std::function<const char*(const char*)>;

HubSettings ReadHubSettings(const Environment& environment);
HubSettings ReadHubSettings();  // of this process

}  // namespace tandem::hub
