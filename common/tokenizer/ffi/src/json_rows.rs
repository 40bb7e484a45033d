//! JSON lines, as they stand in the file, and the elements of a JSON array.

use std::io::Read;

use serde_json::value::RawValue;

use crate::table_rows::{TableRows, Text, PART_BYTES};

/// Whole lines, unread: whoever takes them counts them, so that errors name the line.
pub struct Lines {
    text: Text,
}

impl Lines {
    pub fn new(text: Text) -> Self {
        Lines { text }
    }
}

impl TableRows for Lines {
    fn are_lines(&self) -> bool {
        true
    }

    fn next(&mut self) -> Result<Vec<u8>, String> {
        let mut part = Vec::new();
        while part.len() < PART_BYTES {
            let count =
                self.text.read_until(b'\n', &mut part).map_err(|error| error.to_string())?;
            if count == 0 {
                break;
            }
        }
        Ok(part)
    }
}

/// A file that is named .json: an array, or JSON lines, which many are.
pub fn open(mut text: Text) -> Result<Box<dyn TableRows>, String> {
    let start = text.fill_buf().map_err(|error| error.to_string())?;
    let start = start.strip_prefix(MARK).unwrap_or(start);
    if start.trim_ascii_start().starts_with(b"[") {
        return Ok(Box::new(Elements::parse(text)?));
    }
    Ok(Box::new(Lines::new(text)))
}

/// The byte order mark of UTF-8.
const MARK: &[u8] = &[0xef, 0xbb, 0xbf];

/// The elements of an array. The file and its elements are held in memory at once.
pub struct Elements {
    rows: std::vec::IntoIter<Box<RawValue>>,
}

impl Elements {
    pub fn parse(mut text: Text) -> Result<Self, String> {
        let mut whole = Vec::new();
        text.read_to_end(&mut whole).map_err(|error| error.to_string())?;
        let start = whole.strip_prefix(MARK).unwrap_or(&whole);
        let rows: Vec<Box<RawValue>> = serde_json::from_slice(start)
            .map_err(|error| format!("no JSON array of rows: {error}"))?;
        Ok(Elements { rows: rows.into_iter() })
    }
}

impl TableRows for Elements {
    fn next(&mut self) -> Result<Vec<u8>, String> {
        let mut part = Vec::new();
        while part.len() < PART_BYTES {
            let Some(row) = self.rows.next() else { break };
            // A line break stands between tokens only: inside of a string JSON escapes it.
            let flat = |byte: u8| if byte == b'\n' || byte == b'\r' { b' ' } else { byte };
            part.extend(row.get().bytes().map(flat));
            part.push(b'\n');
        }
        Ok(part)
    }
}
