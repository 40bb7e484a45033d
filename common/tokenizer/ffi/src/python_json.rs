//! The `tojson` filter as transformers defines it: Python's json.dumps, without HTML escaping.

use std::io::{self, Write};

use minijinja::value::{Kwargs, Value};
use minijinja::{Error, ErrorKind};
use serde::Serialize;
use serde_json::ser::Formatter;

/// Python's separators: ", " and ": " on one line, "," and a new line when indented.
struct PythonFormatter {
    item_separator: String,
    key_separator: String,
    indent: Option<usize>,
    depth: usize,
    has_value: bool,
}

impl PythonFormatter {
    fn new_line<W: ?Sized + Write>(&self, out: &mut W) -> io::Result<()> {
        match self.indent {
            Some(width) => write!(out, "\n{}", " ".repeat(width * self.depth)),
            None => Ok(()),
        }
    }

    fn begin<W: ?Sized + Write>(&mut self, out: &mut W, bracket: &[u8]) -> io::Result<()> {
        self.depth += 1;
        self.has_value = false;
        out.write_all(bracket)
    }

    fn end<W: ?Sized + Write>(&mut self, out: &mut W, bracket: &[u8]) -> io::Result<()> {
        self.depth -= 1;
        if self.has_value {
            self.new_line(out)?;
        }
        out.write_all(bracket)
    }

    fn item<W: ?Sized + Write>(&mut self, out: &mut W, first: bool) -> io::Result<()> {
        if !first {
            out.write_all(self.item_separator.as_bytes())?;
        }
        self.new_line(out)
    }
}

impl Formatter for PythonFormatter {
    fn begin_array<W: ?Sized + Write>(&mut self, out: &mut W) -> io::Result<()> {
        self.begin(out, b"[")
    }
    fn end_array<W: ?Sized + Write>(&mut self, out: &mut W) -> io::Result<()> {
        self.end(out, b"]")
    }
    fn begin_array_value<W: ?Sized + Write>(&mut self, out: &mut W, first: bool) -> io::Result<()> {
        self.item(out, first)
    }
    fn end_array_value<W: ?Sized + Write>(&mut self, _: &mut W) -> io::Result<()> {
        self.has_value = true;
        Ok(())
    }
    fn begin_object<W: ?Sized + Write>(&mut self, out: &mut W) -> io::Result<()> {
        self.begin(out, b"{")
    }
    fn end_object<W: ?Sized + Write>(&mut self, out: &mut W) -> io::Result<()> {
        self.end(out, b"}")
    }
    fn begin_object_key<W: ?Sized + Write>(&mut self, out: &mut W, first: bool) -> io::Result<()> {
        self.item(out, first)
    }
    fn begin_object_value<W: ?Sized + Write>(&mut self, out: &mut W) -> io::Result<()> {
        out.write_all(self.key_separator.as_bytes())
    }
    fn end_object_value<W: ?Sized + Write>(&mut self, _: &mut W) -> io::Result<()> {
        self.has_value = true;
        Ok(())
    }
}

fn escape_non_ascii(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        if c.is_ascii() {
            out.push(c);
        } else {
            for unit in c.encode_utf16(&mut [0; 2]) {
                out.push_str(&format!("\\u{unit:04x}"));
            }
        }
    }
    out
}

fn sort_keys(value: &mut serde_json::Value) {
    match value {
        serde_json::Value::Array(items) => items.iter_mut().for_each(sort_keys),
        serde_json::Value::Object(map) => {
            map.sort_keys();
            map.values_mut().for_each(sort_keys);
        }
        _ => {}
    }
}

/// `tojson(ensure_ascii=False, indent=None, separators=None, sort_keys=False)`.
pub fn tojson(value: Value, kwargs: Kwargs) -> Result<Value, Error> {
    let fail = |what: String| Error::new(ErrorKind::InvalidOperation, what);
    let ensure_ascii = kwargs.get::<Option<bool>>("ensure_ascii")?.unwrap_or(false);
    let indent = kwargs.get::<Option<usize>>("indent")?;
    let separators = kwargs.get::<Option<Vec<String>>>("separators")?;
    let sorted = kwargs.get::<Option<bool>>("sort_keys")?.unwrap_or(false);
    kwargs.assert_all_used()?;
    if indent.is_some_and(|width| width > 64) {
        return Err(fail("tojson: an indent above 64".to_string()));
    }
    let (item_separator, key_separator) = match separators.as_deref() {
        Some([item, key]) => (item.clone(), key.clone()),
        Some(_) => return Err(fail("tojson: separators must be a pair".to_string())),
        None => ((if indent.is_some() { "," } else { ", " }).to_string(), ": ".to_string()),
    };
    let mut json = serde_json::to_value(&value).map_err(|e| fail(format!("tojson: {e}")))?;
    if sorted {
        sort_keys(&mut json);
    }
    let formatter =
        PythonFormatter { item_separator, key_separator, indent, depth: 0, has_value: false };
    let mut bytes = Vec::new();
    json.serialize(&mut serde_json::Serializer::with_formatter(&mut bytes, formatter))
        .map_err(|e| fail(format!("tojson: {e}")))?;
    let text = String::from_utf8(bytes).map_err(|e| fail(format!("tojson: {e}")))?;
    Ok(Value::from(if ensure_ascii { escape_non_ascii(&text) } else { text }))
}
