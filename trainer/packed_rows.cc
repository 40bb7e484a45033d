#include "trainer/packed_rows.h"
