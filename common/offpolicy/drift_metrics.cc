#include "common/offpolicy/drift_metrics.h"
