/* The C ABI of the crate's reader of tables (src/table_rows.rs). Used by common/tables only. The types
 * and tandem_tokenizer_free_result are those of tandem_tokenizer.h. */
#pragma once

#include "common/tokenizer/ffi/tandem_tokenizer.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct TandemTable TandemTable;

enum {
  TANDEM_TABLE_JSON_LINES = 0,
  TANDEM_TABLE_JSON = 1, /* one array, or JSON lines if the text does not start with one */
  TANDEM_TABLE_CSV = 2,
  TANDEM_TABLE_TSV = 3,
  TANDEM_TABLE_PARQUET = 4,
  TANDEM_TABLE_ARROW = 5, /* a stream or a file */
};

/* Opens the file at a path (UTF-8). The first four formats may be compressed with gzip or Zstandard. On
 * success `handle` is to be closed. */
TandemResult tandem_table_open(TandemBytes path, int32_t format, TandemTable** handle);
void tandem_table_close(TandemTable* handle);

/* The names of the columns as a JSON array; null for the JSON formats, which do not state them. */
TandemResult tandem_table_columns(const TandemTable* handle);

/* Whether the rows are the lines of the file, blank ones included. */
int32_t tandem_table_are_lines(const TandemTable* handle);

/* The next rows as JSON lines, about a megabyte of them; JSON lines come as they stand in the file.
 * Empty after the last row, and after an error. */
TandemResult tandem_table_next(TandemTable* handle);

#ifdef __cplusplus
}
#endif
