#include "common/base/file_system.h"
