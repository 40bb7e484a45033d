#include "common/base/stop_signal.h"
