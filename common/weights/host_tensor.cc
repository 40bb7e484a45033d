#include "common/weights/host_tensor.h"
