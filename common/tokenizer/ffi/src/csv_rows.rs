//! Records of CSV and TSV files, whose first line is the header. Every cell is a text, as it is written: a reader
//! that guesses types would make 7 of "007". An empty cell is null.

use csv::{ErrorKind, Reader, ReaderBuilder, StringRecord};

use crate::table_rows::{check_columns, TableRows, Text, PART_BYTES};

pub struct Records {
    reader: Reader<Text>,
    columns: Vec<String>,
}

fn describe(error: csv::Error) -> String {
    match error.kind() {
        ErrorKind::UnequalLengths { pos: Some(pos), expected_len, len } => format!(
            "line {}: the record has {len} cells and the header has {expected_len}; a cell with a \
             separator, a quote or a line break is to be quoted",
            pos.line()
        ),
        ErrorKind::Utf8 { pos: Some(pos), err } => {
            format!("line {}: cell {} is not UTF-8", pos.line(), err.field() + 1)
        }
        _ => error.to_string(),
    }
}

impl Records {
    pub fn open(text: Text, delimiter: u8) -> Result<Self, String> {
        let mut reader = ReaderBuilder::new().delimiter(delimiter).from_reader(text);
        let header = reader.headers().map_err(describe)?;
        let columns: Vec<String> = header.iter().map(str::to_string).collect();
        if columns.is_empty() {
            return Err("no header line with the names of the columns".to_string());
        }
        check_columns(&columns)?;
        Ok(Records { reader, columns })
    }
}

impl TableRows for Records {
    fn columns(&self) -> Option<Vec<String>> {
        Some(self.columns.clone())
    }

    fn next(&mut self) -> Result<Vec<u8>, String> {
        let mut part = Vec::new();
        let mut record = StringRecord::new();
        while part.len() < PART_BYTES && self.reader.read_record(&mut record).map_err(describe)? {
            let mut before = b'{';
            for (name, cell) in self.columns.iter().zip(record.iter()) {
                part.push(before);
                before = b',';
                let value = if cell.is_empty() { None } else { Some(cell) };
                for text in [Some(name.as_str()), value] {
                    serde_json::to_writer(&mut part, &text).map_err(|error| error.to_string())?;
                    part.push(b':');
                }
                part.pop();
            }
            part.extend(b"}\n");
        }
        Ok(part)
    }
}
