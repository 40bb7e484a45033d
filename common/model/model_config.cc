#include "common/model/model_config.h"
