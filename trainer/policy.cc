#include "trainer/policy.h"
