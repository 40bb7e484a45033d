//! The rows of a Parquet file as JSON lines, through the `parquet` crate of Apache Arrow.

use std::fs::File;

use parquet::file::reader::{FileReader, SerializedFileReader};
use parquet::record::reader::RowIter;
use parquet::record::{Field, Row};
use serde::Serialize;

/// A file that is read a part at a time.
pub struct RowStream {
    metadata: Vec<(String, String)>,
    num_rows: i64,
    rows: Option<RowIter<'static>>,
}

/// A call of `next` stops after this many bytes of text, so that long rows need little memory.
const MOST_TEXT: usize = 4 << 20;

impl RowStream {
    pub fn open(path: &str) -> Result<Self, String> {
        let file = File::open(path).map_err(|error| error.to_string())?;
        let reader = SerializedFileReader::new(file).map_err(|error| error.to_string())?;
        let facts = reader.metadata().file_metadata();
        let pairs = facts.key_value_metadata().into_iter().flatten();
        let metadata =
            pairs.map(|pair| (pair.key.clone(), pair.value.clone().unwrap_or_default())).collect();
        let num_rows = facts.num_rows();
        let rows = RowIter::from_file_into(Box::new(reader));
        Ok(RowStream { metadata, num_rows, rows: Some(rows) })
    }

    pub fn metadata(&self, key: &str) -> Option<&str> {
        self.metadata.iter().find(|(name, _)| name == key).map(|(_, value)| value.as_str())
    }

    pub fn num_rows(&self) -> i64 {
        self.num_rows
    }

    /// No rows come after this.
    pub fn end(&mut self) {
        self.rows = None;
    }

    pub fn next(&mut self, max_rows: i64) -> Result<Vec<u8>, String> {
        let mut lines = Vec::new();
        let Some(rows) = &mut self.rows else { return Ok(lines) };
        for _ in 0..max_rows {
            let Some(row) = rows.next() else { break };
            write_row(&row.map_err(|error| error.to_string())?, &mut lines)?;
            lines.push(b'\n');
            if lines.len() > MOST_TEXT {
                break;
            }
        }
        Ok(lines)
    }
}

fn write_row(row: &Row, out: &mut Vec<u8>) -> Result<(), String> {
    let members = row.get_column_iter().map(|(name, field)| (name.as_str(), field));
    write_object(members, out)
}

fn write_object<'a>(
    members: impl Iterator<Item = (&'a str, &'a Field)>,
    out: &mut Vec<u8>,
) -> Result<(), String> {
    let mut before = b'{';
    for (name, field) in members {
        out.push(before);
        before = b',';
        write_json(name, out)?;
        out.push(b':');
        write_field(field, out)?;
    }
    if before == b'{' {
        out.push(b'{');
    }
    out.push(b'}');
    Ok(())
}

/// Writes the text at once, because a tree of JSON values takes many times the memory of a long list.
fn write_field(field: &Field, out: &mut Vec<u8>) -> Result<(), String> {
    match field {
        Field::Float16(x) => write_float(x.to_f32(), x.to_f32() as f64, out),
        Field::Float(x) => write_float(*x, *x as f64, out),
        Field::Double(x) => write_float(*x, *x, out),
        Field::Int(x) => write_json(x, out),
        Field::Long(x) => write_json(x, out),
        Field::Group(row) => write_row(row, out),
        Field::ListInternal(list) => {
            let mut before = b'[';
            for element in list.elements() {
                out.push(before);
                before = b',';
                write_field(element, out)?;
            }
            if before == b'[' {
                out.push(b'[');
            }
            out.push(b']');
            Ok(())
        }
        _ => write_json(&field.to_json_value(), out),
    }
}

/// A float in as many digits as its own type needs; `wide` is the same number.
fn write_float<T: Serialize>(number: T, wide: f64, out: &mut Vec<u8>) -> Result<(), String> {
    if wide.is_finite() {
        return write_json(&number, out);
    }
    let sign = if wide == f64::NEG_INFINITY { "-" } else { "" };
    write_json(&format!("{sign}{}", if wide.is_nan() { "NaN" } else { "Infinity" }), out)
}

fn write_json<T: Serialize + ?Sized>(value: &T, out: &mut Vec<u8>) -> Result<(), String> {
    serde_json::to_writer(out, value).map_err(|error| error.to_string())
}
