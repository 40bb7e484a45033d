//! Bounds the values that a template keeps from one round of a loop to the next (`{% set ns.x = ... %}`), so
//! that no loop can exhaust memory, or nest values so deep that printing or dropping them overflows the stack.
//!
//! minijinja accepts any value there, even a namespace inside itself. Here every such assignment goes through
//! a filter.

use minijinja::machinery::{tokenize, Token, WhitespaceConfig};
use minijinja::value::{Value, ValueKind};
use minijinja::{Error, ErrorKind};

const MAX_DEPTH: usize = 16;
const MAX_SIZE: usize = 1 << 20;

pub const FILTER: &str = "tandem_bounded";

/// `source` with `{% set a.b = VALUE %}` turned into `{% set a.b = (VALUE)|tandem_bounded %}`.
pub fn with_bounded_sets(
    source: &str,
    whitespace: WhitespaceConfig,
) -> Result<String, Error> {
    let mut out = String::with_capacity(source.len());
    let mut copied = 0;
    let mut insert = |at: u32, text: &str| {
        out.push_str(&source[copied..at as usize]);
        out.push_str(text);
        copied = at as usize;
    };
    let mut target = Target::Elsewhere;
    for token in tokenize(source, false, Default::default(), whitespace) {
        let (token, span) = token?;
        target = match (target, token) {
            (_, Token::BlockStart) => Target::Block,
            (Target::Block, Token::Ident("set")) => Target::Name { dotted: false },
            (Target::Name { .. }, Token::Dot) => Target::Name { dotted: true },
            (Target::Name { dotted: true }, Token::Assign) => {
                insert(span.end_offset, "(");
                Target::Value
            }
            (Target::Name { dotted }, Token::Ident(_) | Token::Comma)
            | (Target::Name { dotted }, Token::ParenOpen | Token::ParenClose) => {
                Target::Name { dotted }
            }
            (Target::Value, Token::BlockEnd) => {
                insert(span.start_offset, &format!(")|{FILTER} "));
                Target::Elsewhere
            }
            (Target::Value, _) => Target::Value,
            _ => Target::Elsewhere,
        };
    }
    out.push_str(&source[copied..]);
    Ok(out)
}

/// The state of the scan.
enum Target {
    Elsewhere,
    Block,
    Name { dotted: bool },
    Value,
}

/// The filter. Returns `value`, with lazily computed parts evaluated.
pub fn bounded(value: Value) -> Result<Value, Error> {
    let mut size = 0;
    plain(value, 0, &mut size)
}

fn plain(value: Value, depth: usize, size: &mut usize) -> Result<Value, Error> {
    *size += 1 + value.as_str().map_or(0, str::len);
    if depth > MAX_DEPTH || *size > MAX_SIZE {
        return Err(Error::new(
            ErrorKind::InvalidOperation,
            format!("a value set on a namespace nests deeper than {MAX_DEPTH} or is larger than 1 MiB"),
        ));
    }
    match value.kind() {
        ValueKind::Seq | ValueKind::Iterable => {
            let mut items = Vec::new();
            for item in value.try_iter()? {
                items.push(plain(item, depth + 1, size)?);
            }
            Ok(items.into())
        }
        ValueKind::Map => {
            if value.as_object().is_some_and(|o| o.type_name().ends_with("Namespace")) {
                return Err(Error::new(
                    ErrorKind::InvalidOperation,
                    "a namespace cannot be set on a namespace",
                ));
            }
            let mut items = Vec::new();
            for key in value.try_iter()? {
                let item = value.get_item(&key)?;
                items.push((key, plain(item, depth + 1, size)?));
            }
            Ok(Value::from_iter(items))
        }
        _ => Ok(value),
    }
}
