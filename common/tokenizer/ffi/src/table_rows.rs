//! Rows of tables in the file formats that data sets have, as JSON lines, a part at a time: JSON lines, a JSON
//! array, CSV, Parquet and Arrow. Every format comes out as one text, so that whoever reads rows reads one form.

use std::fs::File;
use std::io::{BufRead, BufReader, Read};

use crate::{arrow_rows, csv_rows, guard, json_rows, Failure, TandemBytes, TandemResult};

/// A part has about this many bytes of text, so that long rows need little memory.
pub const PART_BYTES: usize = 1 << 20;

/// Rows of one file.
pub trait TableRows {
    /// The names of the columns, where the file states them ahead of its rows.
    fn columns(&self) -> Option<Vec<String>> {
        None
    }
    /// Whether a part is lines of the file, blank ones included.
    fn are_lines(&self) -> bool {
        false
    }
    /// The next rows, one JSON object a line; empty after the last one.
    fn next(&mut self) -> Result<Vec<u8>, String>;
}

const JSON_LINES: i32 = 0;
const JSON: i32 = 1;

/// The formats, numbered as in tandem_table.h.
fn open(path: &str, format: i32) -> Result<Box<dyn TableRows>, String> {
    let file = File::open(path).map_err(|error| error.to_string())?;
    match format {
        JSON_LINES => Ok(Box::new(json_rows::Lines::new(plain(file)?))),
        JSON => json_rows::open(plain(file)?),
        2 => Ok(Box::new(csv_rows::Records::open(plain(file)?, b',')?)),
        3 => Ok(Box::new(csv_rows::Records::open(plain(file)?, b'\t')?)),
        4 => Ok(Box::new(arrow_rows::Batches::of_parquet(file)?)),
        5 => Ok(Box::new(arrow_rows::Batches::of_arrow(file)?)),
        other => Err(format!("there is no table format {other}")),
    }
}

pub type Text = Box<dyn BufRead>;

/// The text of a file, decompressed if its first bytes are those of gzip or Zstandard.
fn plain(file: File) -> Result<Text, String> {
    let mut reader = BufReader::with_capacity(1 << 16, file);
    let start = reader.fill_buf().map_err(|error| error.to_string())?;
    let is_gzip = start.starts_with(&[0x1f, 0x8b]);
    let is_zstandard = start.starts_with(&[0x28, 0xb5, 0x2f, 0xfd]);
    let decoder: Box<dyn Read> = if is_gzip {
        Box::new(flate2::bufread::MultiGzDecoder::new(reader))
    } else if is_zstandard {
        let decoder = zstd::stream::read::Decoder::with_buffer(reader);
        Box::new(decoder.map_err(|error| error.to_string())?)
    } else {
        return Ok(Box::new(reader));
    };
    Ok(Box::new(BufReader::with_capacity(1 << 16, decoder)))
}

/// Two columns of one name cannot both be members of a JSON object.
pub fn check_columns(names: &[String]) -> Result<(), String> {
    let mut sorted: Vec<&String> = names.iter().collect();
    sorted.sort();
    match sorted.windows(2).find(|pair| pair[0] == pair[1]) {
        None => Ok(()),
        Some(pair) => Err(format!("two columns have the name \"{}\": rename one", pair[0])),
    }
}

/// What C++ holds: the rows until their end or first error.
pub struct TandemTable {
    rows: Option<Box<dyn TableRows>>,
    columns: Option<Vec<String>>,
    are_lines: bool,
}

impl TandemTable {
    fn next(&mut self) -> Result<Vec<u8>, Failure> {
        // Put back on success only: an error ends the rows, and a panic does.
        let Some(mut rows) = self.rows.take() else { return Ok(Vec::new()) };
        let part = rows.next().map_err(Failure::Invalid)?;
        self.rows = Some(rows);
        Ok(part)
    }
}

/// # Safety
/// `path` is readable, `handle` is writable.
#[no_mangle]
pub unsafe extern "C" fn tandem_table_open(
    path: TandemBytes,
    format: i32,
    handle: *mut *mut TandemTable,
) -> TandemResult {
    guard(|| {
        let rows = open(path.text("the path")?, format).map_err(Failure::Invalid)?;
        let (columns, are_lines) = (rows.columns(), rows.are_lines());
        *handle = Box::into_raw(Box::new(TandemTable { rows: Some(rows), columns, are_lines }));
        Ok(Vec::new())
    })
}

/// # Safety
/// `handle` came from tandem_table_open and is used no more.
#[no_mangle]
pub unsafe extern "C" fn tandem_table_close(handle: *mut TandemTable) {
    let _ = crate::caught(|| drop(Box::from_raw(handle)));
}

/// # Safety
/// `handle` is live.
#[no_mangle]
pub unsafe extern "C" fn tandem_table_columns(handle: *const TandemTable) -> TandemResult {
    guard(|| {
        let text = serde_json::to_vec(&(*handle).columns);
        text.map_err(|error| Failure::Invalid(error.to_string()))
    })
}

/// # Safety
/// `handle` is live.
#[no_mangle]
pub unsafe extern "C" fn tandem_table_are_lines(handle: *const TandemTable) -> i32 {
    (*handle).are_lines as i32
}

/// # Safety
/// `handle` is live.
#[no_mangle]
pub unsafe extern "C" fn tandem_table_next(handle: *mut TandemTable) -> TandemResult {
    guard(|| (*handle).next())
}
