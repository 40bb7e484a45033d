#include "rollout_server/engine/engine.h"
