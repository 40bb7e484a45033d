/* The C ABI of the crate's reader of Parquet files (src/parquet_rows.rs). Used by
 * common/tables only. The types and tandem_tokenizer_free_result are those of
 * tandem_tokenizer.h. */
#pragma once

#include "common/tokenizer/ffi/tandem_tokenizer.h"

#ifdef __cplusplus
extern "C" {
#endif

/* A file that is read a part at a time. */
typedef struct TandemParquet TandemParquet;

/* Opens the file at a path (UTF-8). On success `handle` is to be closed. */
TandemResult tandem_parquet_open(TandemBytes path, TandemParquet** handle);
void tandem_parquet_close(TandemParquet* handle);

/* The value of a key of the file's key-value metadata; an error if it has none. */
TandemResult tandem_parquet_metadata(const TandemParquet* handle, TandemBytes key);
int64_t tandem_parquet_num_rows(const TandemParquet* handle);

/* The next rows as JSON lines: at most `max_rows`, and none further once the text has a few megabytes.
 * Empty after the last row, and after an error. Floats that are not finite are the texts "NaN",
 * "Infinity" and "-Infinity". */
TandemResult tandem_parquet_next(TandemParquet* handle, int64_t max_rows);

#ifdef __cplusplus
}
#endif
