#include "common/base/metrics.h"
