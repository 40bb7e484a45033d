#include "common/tokenizer/tokenizer.h"
