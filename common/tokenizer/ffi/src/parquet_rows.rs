//! The rows of a Parquet file as JSON lines, through the `parquet` crate of Apache Arrow.

use bytes::Bytes;
use parquet::file::reader::{FileReader, SerializedFileReader};
use parquet::record::Field;
use serde_json::{Map, Value};

/// One line for each row, with a member for each column.
pub fn json_lines(file: &[u8]) -> Result<Vec<u8>, String> {
    let text = |error: parquet::errors::ParquetError| error.to_string();
    let reader = SerializedFileReader::new(Bytes::copy_from_slice(file)).map_err(text)?;
    let mut lines = Vec::new();
    for row in reader.get_row_iter(None).map_err(text)? {
        let row = row.map_err(text)?;
        let object: Map<String, Value> =
            row.get_column_iter().map(|(name, field)| (name.clone(), value_of(field))).collect();
        serde_json::to_writer(&mut lines, &object).map_err(|error| error.to_string())?;
        lines.push(b'\n');
    }
    Ok(lines)
}

/// Numbers that JSON does not have become texts, so that nobody takes them for a missing value.
fn value_of(field: &Field) -> Value {
    match field {
        Field::Float(x) if !x.is_finite() => Value::String(x.to_string()),
        Field::Double(x) if !x.is_finite() => Value::String(x.to_string()),
        _ => field.to_json_value(),
    }
}
