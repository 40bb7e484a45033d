#include "common/base/options.h"
