#include "rollout_server/engine/group.h"
