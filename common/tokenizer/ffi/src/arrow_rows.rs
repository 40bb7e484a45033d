//! Rows of Parquet and Arrow files, whose columns Arrow's own writer turns into JSON: nested columns become arrays
//! and objects, times ISO 8601, bytes hexadecimal, and dictionaries the values they stand for.

use std::fs::File;
use std::io::{BufReader, Read, Seek, SeekFrom};

use arrow_array::cast::AsArray;
use arrow_array::types::{Float32Type, Float64Type};
use arrow_array::{Array, RecordBatch};
use arrow_ipc::reader::StreamReader;
use arrow_json::writer::NullableEncoder;
use arrow_json::writer::{LineDelimited, Writer};
use arrow_json::{Encoder, EncoderFactory, EncoderOptions, WriterBuilder};
use arrow_schema::{ArrowError, DataType, FieldRef, SchemaRef};
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;

use crate::arrow_frames;
use crate::table_rows::{check_columns, TableRows};

/// Rows that become text at once.
const MAX_ROWS: usize = 256;

/// The first and the last bytes of an Arrow file with an index.
const MAGIC: [u8; 6] = *b"ARROW1";

type BatchIterator = Box<dyn Iterator<Item = Result<RecordBatch, ArrowError>>>;

pub struct Batches {
    columns: Vec<String>,
    batches: BatchIterator,
    batch: Option<RecordBatch>,
    done: usize, // rows of `batch`
}

impl Batches {
    fn new(schema: SchemaRef, batches: BatchIterator) -> Result<Self, String> {
        let columns: Vec<String> =
            schema.fields().iter().map(|field| field.name().clone()).collect();
        check_columns(&columns)?;
        Ok(Batches { columns, batches, batch: None, done: 0 })
    }

    pub fn of_parquet(file: File) -> Result<Self, String> {
        let text = |error: parquet::errors::ParquetError| error.to_string();
        let builder = ParquetRecordBatchReaderBuilder::try_new(file).map_err(text)?;
        let schema = builder.schema().clone();
        let batches = builder.with_batch_size(MAX_ROWS).build().map_err(text)?;
        Self::new(schema, Box::new(batches))
    }

    /// A stream, as the library `datasets` writes it, or a file with an index, as Feather is: that is a stream too,
    /// between its first eight bytes and the index.
    pub fn of_arrow(mut file: File) -> Result<Self, String> {
        let mut start = Vec::new();
        (&mut file).take(6).read_to_end(&mut start).map_err(|error| error.to_string())?;
        let has_index = start == MAGIC;
        if has_index {
            check_index(&mut file)?;
        }
        arrow_frames::check(&mut file, if has_index { 8 } else { 0 })?;
        let text = |error: ArrowError| error.to_string();
        let reader = StreamReader::try_new(BufReader::new(file), None).map_err(text)?;
        Self::new(reader.schema(), Box::new(reader))
    }
}

/// A file with an index ends as it begins. One that was cut at the end of a batch would else be a shorter stream.
fn check_index(file: &mut File) -> Result<(), String> {
    let mut end = [0; 6];
    let found = file.seek(SeekFrom::End(-6)).and_then(|_| file.read_exact(&mut end));
    if found.is_err() || end != MAGIC {
        return Err("the file does not end with the index of an Arrow file: it is damaged or cut".into());
    }
    Ok(())
}

impl TableRows for Batches {
    fn columns(&self) -> Option<Vec<String>> {
        Some(self.columns.clone())
    }

    fn next(&mut self) -> Result<Vec<u8>, String> {
        loop {
            if let Some(batch) = self.batch.take_if(|batch| self.done < batch.num_rows()) {
                let count = MAX_ROWS.min(batch.num_rows() - self.done);
                let part = json_lines(&batch.slice(self.done, count)).map_err(|e| e.to_string())?;
                self.done += count;
                self.batch = Some(batch);
                return Ok(part);
            }
            match self.batches.next() {
                None => return Ok(Vec::new()),
                Some(batch) => self.batch = Some(batch.map_err(|error| error.to_string())?),
            }
            self.done = 0;
        }
    }
}

fn json_lines(batch: &RecordBatch) -> Result<Vec<u8>, ArrowError> {
    let builder = WriterBuilder::new()
        .with_explicit_nulls(true)
        .with_encoder_factory(std::sync::Arc::new(FloatsAsText));
    let mut writer: Writer<Vec<u8>, LineDelimited> = builder.build(Vec::new());
    writer.write(batch)?;
    writer.finish()?;
    Ok(writer.into_inner())
}

/// Numbers that JSON does not have become texts ("NaN"), so that nobody takes them for a missing value.
#[derive(Debug)]
struct FloatsAsText;

struct Floats<'a, T: Array> {
    values: &'a T,
}

macro_rules! encode_floats {
    ($kind:ty) => {
        impl Encoder for Floats<'_, arrow_array::PrimitiveArray<$kind>> {
            fn encode(&mut self, index: usize, out: &mut Vec<u8>) {
                let number = self.values.value(index);
                let text = if number.is_finite() {
                    serde_json::to_vec(&number)
                } else if number.is_nan() {
                    serde_json::to_vec("NaN")
                } else {
                    serde_json::to_vec(if number > 0.0 { "Infinity" } else { "-Infinity" })
                };
                out.extend(text.unwrap_or_default());
            }
        }
    };
}
encode_floats!(Float32Type);
encode_floats!(Float64Type);

impl EncoderFactory for FloatsAsText {
    fn make_default_encoder<'a>(
        &self,
        _field: &'a FieldRef,
        array: &'a dyn Array,
        _options: &'a EncoderOptions,
    ) -> Result<Option<NullableEncoder<'a>>, ArrowError> {
        let encoder: Box<dyn Encoder + 'a> = match array.data_type() {
            DataType::Float32 => Box::new(Floats { values: array.as_primitive::<Float32Type>() }),
            DataType::Float64 => Box::new(Floats { values: array.as_primitive::<Float64Type>() }),
            _ => return Ok(None),
        };
        Ok(Some(NullableEncoder::new(encoder, array.nulls().cloned())))
    }
}
