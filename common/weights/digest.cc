#include "common/weights/digest.h"
