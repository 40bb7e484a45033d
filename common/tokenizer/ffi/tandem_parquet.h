/* The C ABI of the crate's reader of Parquet files (src/parquet_rows.rs). Used by
 * common/parquet/parquet_rows.cc only. The types and tandem_tokenizer_free_result are those of
 * tandem_tokenizer.h. */
#pragma once

#include "common/tokenizer/ffi/tandem_tokenizer.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The rows of a Parquet file, given as its bytes, as JSON lines. */
TandemResult tandem_parquet_json_lines(TandemBytes file);

#ifdef __cplusplus
}
#endif
