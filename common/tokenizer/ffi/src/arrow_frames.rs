//! Checks the frame of an Arrow stream before it is read: every message and buffer is as long as it says, and lies
//! inside the file. The `arrow` crates allocate what a message says it has, and a failed allocation ends the process.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};

use arrow_ipc::{root_as_message, Message, RecordBatch};

/// The most bytes of one buffer after decompression. Compression can hide any size in a small file.
const MAX_BUFFER_BYTES: i64 = 1 << 30;
const CONTINUATION: [u8; 4] = [0xff; 4];

/// Reads the frame of the stream from byte `start` on, and leaves `file` there.
pub fn check(file: &mut File, start: u64) -> Result<(), String> {
    let size = file.metadata().map_err(|error| error.to_string())?.len();
    let mut frame = Frame { file, size };
    let mut at = start;
    while let Some(end) = frame.check_message(at)? {
        at = end;
    }
    frame.file.seek(SeekFrom::Start(start)).map_err(|error| error.to_string())?;
    Ok(())
}

struct Frame<'a> {
    file: &'a mut File,
    size: u64,
}

impl Frame<'_> {
    fn bytes<const N: usize>(&mut self, at: u64) -> Result<[u8; N], String> {
        let mut bytes = [0; N];
        self.file.seek(SeekFrom::Start(at)).map_err(|error| error.to_string())?;
        self.file.read_exact(&mut bytes).map_err(|error| error.to_string())?;
        Ok(bytes)
    }

    /// `count` bytes from `at` on are to be inside of the file.
    fn check_inside(&self, at: u64, count: i64) -> Result<u64, String> {
        let end = u64::try_from(count).ok().and_then(|count| at.checked_add(count));
        end.filter(|end| *end <= self.size).ok_or_else(|| {
            format!(
                "a message at byte {at} says that it has {count} bytes: the file is damaged or cut"
            )
        })
    }

    /// The end of the message at a byte; none at the end of the stream.
    fn check_message(&mut self, at: u64) -> Result<Option<u64>, String> {
        if at == self.size {
            return Ok(None);
        }
        let (mut length, mut start) = (self.bytes(at)?, at + 4);
        if length == CONTINUATION {
            (length, start) = (self.bytes(start)?, start + 4);
        }
        let length = i32::from_le_bytes(length);
        if length == 0 {
            return Ok(None);
        }
        let body = self.check_inside(start, length.into())?;
        let mut metadata = vec![0; (body - start) as usize];
        self.file.seek(SeekFrom::Start(start)).map_err(|error| error.to_string())?;
        self.file.read_exact(&mut metadata).map_err(|error| error.to_string())?;
        let message = root_as_message(&metadata).map_err(|error| error.to_string())?;
        let end = self.check_inside(body, message.bodyLength())?;
        if let Some(batch) = batch_of(&message) {
            self.check_buffers(&batch, body)?;
        }
        Ok(Some(end))
    }

    fn check_buffers(&mut self, batch: &RecordBatch, body: u64) -> Result<(), String> {
        if batch.compression().is_none() {
            return Ok(());
        }
        for buffer in batch.buffers().into_iter().flatten().filter(|buffer| buffer.length() > 0) {
            let start = self.check_inside(body, buffer.offset())?;
            self.check_inside(start, buffer.length())?;
            let bytes = i64::from_le_bytes(self.bytes(start)?);
            if bytes > MAX_BUFFER_BYTES || bytes < -1 {
                return Err(format!(
                    "a buffer of {bytes} bytes, at most {MAX_BUFFER_BYTES} are read"
                ));
            }
        }
        Ok(())
    }
}

fn batch_of<'a>(message: &Message<'a>) -> Option<RecordBatch<'a>> {
    let dictionary = message.header_as_dictionary_batch().and_then(|dictionary| dictionary.data());
    message.header_as_record_batch().or(dictionary)
}
