//! The C ABI declared in tandem_tokenizer.h, tandem_parquet.h and tandem_table.h (table_rows.rs). Everything behind
//! it is safe Rust: `vocabulary` (text and ids), `chat` (templates), `parquet_rows` and the rows of tables. Panics
//! are caught here.

mod arrow_frames;
mod arrow_rows;
mod bounded;
mod chat;
mod csv_rows;
mod json_rows;
mod parquet_rows;
mod python_json;
mod table_rows;
mod vocabulary;

use std::panic::{catch_unwind, set_hook, AssertUnwindSafe};
use std::sync::Once;

use chat::ChatTemplate;
use parquet_rows::RowStream;
use vocabulary::Vocabulary;

pub struct TandemTokenizer {
    vocabulary: Vocabulary,
    chat: Option<ChatTemplate>,
    eos_token_id: i32,
}

/// Why a call failed; the numbers are the header's.
pub enum Failure {
    Invalid(String),
    NoTemplate,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct TandemBytes {
    data: *const u8,
    size: usize,
}

#[repr(C)]
pub struct TandemResult {
    status: i32,
    data: *mut u8,
    size: usize,
    capacity: usize,
}

const OK: i32 = 0;
const INVALID: i32 = 1;
const NO_TEMPLATE: i32 = 2;
const INTERNAL: i32 = 3;

impl TandemResult {
    fn new(status: i32, bytes: Vec<u8>) -> Self {
        let mut bytes = std::mem::ManuallyDrop::new(bytes);
        TandemResult {
            status,
            data: bytes.as_mut_ptr(),
            size: bytes.len(),
            capacity: bytes.capacity(),
        }
    }
}

impl TandemBytes {
    /// # Safety
    /// `data` points to `size` readable bytes that outlive the call, or `size` is 0.
    unsafe fn bytes<'a>(self) -> &'a [u8] {
        if self.size == 0 {
            return &[];
        }
        std::slice::from_raw_parts(self.data, self.size)
    }

    /// # Safety
    /// As `bytes`.
    unsafe fn text<'a>(self, what: &str) -> Result<&'a str, Failure> {
        std::str::from_utf8(self.bytes()).map_err(|e| {
            Failure::Invalid(format!("{what} is not UTF-8: invalid byte at {}", e.valid_up_to()))
        })
    }
}

/// Runs `body`; a panic is an error with its message, and nothing is printed.
fn caught<T>(body: impl FnOnce() -> T) -> Result<T, String> {
    static SILENT: Once = Once::new();
    SILENT.call_once(|| set_hook(Box::new(|_| {})));
    catch_unwind(AssertUnwindSafe(body)).map_err(|panic| {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or_default().to_string()
    })
}

fn guard(body: impl FnOnce() -> Result<Vec<u8>, Failure>) -> TandemResult {
    match caught(body) {
        Ok(Ok(bytes)) => TandemResult::new(OK, bytes),
        Ok(Err(Failure::Invalid(message))) => TandemResult::new(INVALID, message.into_bytes()),
        Ok(Err(Failure::NoTemplate)) => TandemResult::new(NO_TEMPLATE, Vec::new()),
        Err(message) => TandemResult::new(INTERNAL, message.into_bytes()),
    }
}

fn load(tokenizer: &str, config: &str, template: &str) -> Result<TandemTokenizer, Failure> {
    // The crate panics on some malformed files.
    let vocabulary = caught(|| Vocabulary::parse(tokenizer).map_err(|e| e.to_string()))
        .unwrap_or_else(Err)
        .map_err(|e| Failure::Invalid(format!("tokenizer.json: {e}")))?;
    let config: serde_json::Value = match config {
        "" => serde_json::Value::Null,
        text => serde_json::from_str(text)
            .map_err(|e| Failure::Invalid(format!("tokenizer_config.json: {e}")))?,
    };
    let chat = ChatTemplate::parse(template, &config)?;
    let eos_token_id = chat::special_token(&config, "eos_token")
        .and_then(|token| vocabulary.id_of(&token))
        .unwrap_or(-1);
    Ok(TandemTokenizer { vocabulary, chat, eos_token_id })
}

/// # Safety
/// As the header says: the texts are readable, `handle` is writable.
#[no_mangle]
pub unsafe extern "C" fn tandem_tokenizer_new(
    tokenizer_json: TandemBytes,
    config_json: TandemBytes,
    chat_template: TandemBytes,
    handle: *mut *mut TandemTokenizer,
) -> TandemResult {
    guard(|| {
        let made = load(
            tokenizer_json.text("tokenizer.json")?,
            config_json.text("tokenizer_config.json")?,
            chat_template.text("chat_template.jinja")?,
        )?;
        *handle = Box::into_raw(Box::new(made));
        Ok(Vec::new())
    })
}

/// # Safety
/// `handle` came from tandem_tokenizer_new and is used no more.
#[no_mangle]
pub unsafe extern "C" fn tandem_tokenizer_delete(handle: *mut TandemTokenizer) {
    let _ = catch_unwind(AssertUnwindSafe(|| drop(Box::from_raw(handle))));
}

/// # Safety
/// `result` came from this crate and is used no more.
#[no_mangle]
pub unsafe extern "C" fn tandem_tokenizer_free_result(result: TandemResult) {
    drop(Vec::from_raw_parts(result.data, result.size, result.capacity));
}

/// # Safety
/// `handle` is live and `text` readable.
#[no_mangle]
pub unsafe extern "C" fn tandem_tokenizer_encode(
    handle: *const TandemTokenizer,
    text: TandemBytes,
    add_special_tokens: i32,
) -> TandemResult {
    guard(|| {
        let ids = (*handle).vocabulary.encode(text.text("the text")?, add_special_tokens != 0)?;
        Ok(ids.iter().flat_map(|id| id.to_ne_bytes()).collect())
    })
}

/// # Safety
/// `handle` is live and `ids` points to `count` readable ids.
#[no_mangle]
pub unsafe extern "C" fn tandem_tokenizer_decode(
    handle: *const TandemTokenizer,
    ids: *const i32,
    count: usize,
    skip_special_tokens: i32,
) -> TandemResult {
    guard(|| {
        let ids = if count == 0 { &[] } else { std::slice::from_raw_parts(ids, count) };
        let text = (*handle).vocabulary.decode(ids, skip_special_tokens != 0)?;
        Ok(text.into_bytes())
    })
}

/// # Safety
/// `handle` is live; `messages_json`, `tools_json` and `variables_json` are readable.
#[no_mangle]
pub unsafe extern "C" fn tandem_tokenizer_render_chat(
    handle: *const TandemTokenizer,
    messages_json: TandemBytes,
    tools_json: TandemBytes,
    variables_json: TandemBytes,
    add_generation_prompt: i32,
) -> TandemResult {
    guard(|| {
        let chat = (*handle).chat.as_ref().ok_or(Failure::NoTemplate)?;
        chat.render(
            messages_json.text("the list of messages")?,
            tools_json.text("the list of tools")?,
            variables_json.text("the template's variables")?,
            add_generation_prompt != 0,
        )
    })
}

/// # Safety
/// `handle` is live.
#[no_mangle]
pub unsafe extern "C" fn tandem_tokenizer_has_chat_template(handle: *const TandemTokenizer) -> i32 {
    (*handle).chat.is_some() as i32
}

/// # Safety
/// `handle` is live.
#[no_mangle]
pub unsafe extern "C" fn tandem_tokenizer_vocab_size(handle: *const TandemTokenizer) -> i64 {
    (*handle).vocabulary.size()
}

/// # Safety
/// `handle` is live.
#[no_mangle]
pub unsafe extern "C" fn tandem_tokenizer_eos_token_id(handle: *const TandemTokenizer) -> i32 {
    (*handle).eos_token_id
}

/// # Safety
/// `text` is readable.
#[no_mangle]
pub unsafe extern "C" fn tandem_tokenizer_train(
    text: TandemBytes,
    vocab_size: i64,
) -> TandemResult {
    guard(|| Ok(vocabulary::train(text.text("the text")?, vocab_size)?.into_bytes()))
}

/// # Safety
/// `path` is readable, `handle` is writable.
#[no_mangle]
pub unsafe extern "C" fn tandem_parquet_open(
    path: TandemBytes,
    handle: *mut *mut RowStream,
) -> TandemResult {
    guard(|| {
        let stream = RowStream::open(path.text("the path")?).map_err(Failure::Invalid)?;
        *handle = Box::into_raw(Box::new(stream));
        Ok(Vec::new())
    })
}

/// # Safety
/// `handle` came from tandem_parquet_open and is used no more.
#[no_mangle]
pub unsafe extern "C" fn tandem_parquet_close(handle: *mut RowStream) {
    let _ = catch_unwind(AssertUnwindSafe(|| drop(Box::from_raw(handle))));
}

/// # Safety
/// `handle` is live and `key` readable.
#[no_mangle]
pub unsafe extern "C" fn tandem_parquet_metadata(
    handle: *const RowStream,
    key: TandemBytes,
) -> TandemResult {
    guard(|| {
        let value = (*handle).metadata(key.text("the key")?);
        let none = || Failure::Invalid("the metadata has no such key".to_string());
        value.map(|text| text.as_bytes().to_vec()).ok_or_else(none)
    })
}

/// # Safety
/// `handle` is live.
#[no_mangle]
pub unsafe extern "C" fn tandem_parquet_num_rows(handle: *const RowStream) -> i64 {
    (*handle).num_rows()
}

/// # Safety
/// `handle` is live.
#[no_mangle]
pub unsafe extern "C" fn tandem_parquet_next(
    handle: *mut RowStream,
    max_rows: i64,
) -> TandemResult {
    let result = guard(|| (*handle).next(max_rows).map_err(Failure::Invalid));
    if result.status != OK {
        (*handle).end();
    }
    result
}
