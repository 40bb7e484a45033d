//! Chat templates through `minijinja`, in an environment like the one transformers gives them.

use std::io::Write;

use minijinja::machinery::WhitespaceConfig;
use minijinja::value::Value;
use minijinja::{Environment, Error, ErrorKind, Output, State};

use crate::{bounded, python_json, Failure};

const WHITESPACE: WhitespaceConfig =
    WhitespaceConfig { keep_trailing_newline: false, trim_blocks: true, lstrip_blocks: true };
const MAX_STEPS: u64 = 2_000_000;
const MAX_OUTPUT_BYTES: usize = 4 << 20;

/// The tokens a template may name, as transformers passes them.
const SPECIAL_TOKENS: [&str; 7] =
    ["bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"];

pub struct ChatTemplate {
    environment: Environment<'static>,
    source: String,
    tokens: Vec<(String, Value)>,
}

/// A token of tokenizer_config.json: a string, or an object with its "content".
pub fn special_token(config: &serde_json::Value, name: &str) -> Option<String> {
    let token = config.get(name)?;
    let text = token.as_str().or_else(|| token.get("content").and_then(|c| c.as_str()));
    text.map(str::to_string)
}

/// "chat_template" of tokenizer_config.json: a string, or a list of named ones with a "default".
fn template_of(config: &serde_json::Value) -> Result<Option<String>, Failure> {
    let bad = |what: &str| Failure::Invalid(format!("tokenizer_config.json: chat_template {what}"));
    match config.get("chat_template") {
        None | Some(serde_json::Value::Null) => Ok(None),
        Some(serde_json::Value::String(text)) => Ok(Some(text.clone())),
        Some(serde_json::Value::Array(named)) => named
            .iter()
            .find(|entry| entry.get("name").and_then(|n| n.as_str()) == Some("default"))
            .and_then(|entry| entry.get("template").and_then(|t| t.as_str()))
            .map(|text| Some(text.to_string()))
            .ok_or_else(|| bad("is a list without a template named 'default'")),
        Some(_) => Err(bad("is neither a string nor a list of named templates")),
    }
}

/// transformers' {% generation %} block only marks its text; here it is a block that always runs.
fn plain_generation_blocks(source: &str) -> String {
    let mut out = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(start) = rest.find("{%") {
        let Some(length) = rest[start..].find("%}") else { break };
        let (tag, after) = (&rest[start + 2..start + length], &rest[start + length..]);
        let word = tag.trim_start_matches(['-', '+']).trim_end_matches(['-', '+']).trim();
        out.push_str(&rest[..start + 2]);
        match word {
            "generation" => out.push_str(&tag.replacen("generation", "if true", 1)),
            "endgeneration" => out.push_str(&tag.replacen("endgeneration", "endif", 1)),
            _ => out.push_str(tag),
        }
        rest = after;
    }
    out.push_str(rest);
    out
}

fn raise_exception(message: String) -> Result<Value, Error> {
    Err(Error::new(ErrorKind::InvalidOperation, message))
}

fn strftime_now(format: String) -> Result<String, Error> {
    use std::fmt::Write;
    let mut text = String::new();
    write!(text, "{}", chrono::Local::now().format(&format)).map_err(|_| {
        Error::new(ErrorKind::InvalidOperation, format!("bad time format {format}"))
    })?;
    Ok(text)
}

/// Python prints True, False and None with a capital.
fn python_formatter(out: &mut Output, state: &State, value: &Value) -> Result<(), Error> {
    if value.is_none() {
        out.write_str("None").map_err(Error::from)
    } else if let (minijinja::value::ValueKind::Bool, flag) = (value.kind(), value.is_true()) {
        out.write_str(if flag { "True" } else { "False" }).map_err(Error::from)
    } else {
        minijinja::escape_formatter(out, state, value)
    }
}

fn environment() -> Environment<'static> {
    let mut environment = Environment::new();
    environment.set_trim_blocks(WHITESPACE.trim_blocks);
    environment.set_lstrip_blocks(WHITESPACE.lstrip_blocks);
    environment.set_fuel(Some(MAX_STEPS));
    environment.set_auto_escape_callback(|_| minijinja::AutoEscape::None);
    environment.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
    environment.set_formatter(python_formatter);
    environment.add_filter("tojson", python_json::tojson);
    environment.add_filter(bounded::FILTER, bounded::bounded);
    environment.add_function("raise_exception", raise_exception);
    environment.add_function("strftime_now", strftime_now);
    environment
}

/// Collects output up to the limit.
struct Limited {
    bytes: Vec<u8>,
    full: bool,
}

impl Write for Limited {
    fn write(&mut self, part: &[u8]) -> std::io::Result<usize> {
        if self.bytes.len() + part.len() > MAX_OUTPUT_BYTES {
            self.full = true;
            return Err(std::io::ErrorKind::OutOfMemory.into());
        }
        self.bytes.extend_from_slice(part);
        Ok(part.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

fn describe(error: &Error) -> String {
    match (error.kind(), error.line()) {
        (ErrorKind::OutOfFuel, _) => {
            format!("the chat template used more than {MAX_STEPS} steps")
        }
        (_, Some(line)) => format!("the chat template failed at line {line}: {error}"),
        _ => format!("the chat template failed: {error}"),
    }
}

impl ChatTemplate {
    /// `file`, the text of chat_template.jinja, wins over tokenizer_config.json's when not empty.
    pub fn parse(file: &str, config: &serde_json::Value) -> Result<Option<Self>, Failure> {
        let (origin, source) = match file {
            "" => ("tokenizer_config.json", template_of(config)?),
            text => ("chat_template.jinja", Some(text.to_string())),
        };
        let Some(source) = source else { return Ok(None) };
        let refused = |e: Error| Failure::Invalid(format!("{origin}: {}", describe(&e)));
        let source = plain_generation_blocks(&source);
        let environment = environment();
        environment.template_from_str(&source).map_err(refused)?;
        let source = bounded::with_bounded_sets(&source, WHITESPACE).map_err(refused)?;
        environment.template_from_str(&source).map_err(refused)?;
        let tokens = SPECIAL_TOKENS
            .iter()
            .filter_map(|name| Some((name.to_string(), special_token(config, name)?.into())))
            .collect();
        Ok(Some(ChatTemplate { environment, source, tokens }))
    }

    /// `tools` is a JSON array of tools, or empty for none; `more` a JSON object of further
    /// variables, which win over the others, or empty for none.
    pub fn render(
        &self,
        messages: &str,
        tools: &str,
        more: &str,
        add_generation_prompt: bool,
    ) -> Result<Vec<u8>, Failure> {
        let messages: serde_json::Value = serde_json::from_str(messages)
            .map_err(|e| Failure::Invalid(format!("the messages are not JSON: {e}")))?;
        check_messages(&messages)?;
        let tools = parse_tools(tools)?;
        let mut variables: Vec<(String, Value)> = self.tokens.clone();
        variables.push(("messages".to_string(), Value::from_serialize(&messages)));
        variables.push(("add_generation_prompt".to_string(), add_generation_prompt.into()));
        variables.push(("tools".to_string(), Value::from_serialize(&tools)));
        variables.push(("documents".to_string(), Value::from(())));
        variables.extend(parse_variables(more)?);

        let mut out = Limited { bytes: Vec::new(), full: false };
        let result = self.environment.template_from_str(&self.source).and_then(|template| {
            template.render_captured_to(Value::from_iter(variables), &mut out).map(|_| ())
        });
        match result {
            Ok(()) => Ok(out.bytes),
            Err(_) if out.full => Err(Failure::Invalid(format!(
                "the chat template wrote more than {} MiB",
                MAX_OUTPUT_BYTES >> 20
            ))),
            Err(error) => Err(Failure::Invalid(describe(&error))),
        }
    }
}

/// None without tools, as transformers passes it.
fn parse_tools(text: &str) -> Result<Option<Vec<serde_json::Value>>, Failure> {
    if text.is_empty() {
        return Ok(None);
    }
    let tools: serde_json::Value = serde_json::from_str(text)
        .map_err(|e| Failure::Invalid(format!("the tools are not JSON: {e}")))?;
    match tools {
        serde_json::Value::Array(list) if list.iter().all(serde_json::Value::is_object) => {
            Ok(Some(list))
        }
        _ => Err(Failure::Invalid("the tools are not a JSON array of objects".to_string())),
    }
}

fn parse_variables(text: &str) -> Result<Vec<(String, Value)>, Failure> {
    if text.is_empty() {
        return Ok(Vec::new());
    }
    let variables: serde_json::Map<String, serde_json::Value> = serde_json::from_str(text)
        .map_err(|e| Failure::Invalid(format!("the template's variables are no object: {e}")))?;
    Ok(variables.into_iter().map(|(name, value)| (name, Value::from_serialize(&value))).collect())
}

fn check_messages(messages: &serde_json::Value) -> Result<(), Failure> {
    let list = messages
        .as_array()
        .ok_or_else(|| Failure::Invalid("the messages are not a JSON array".to_string()))?;
    if list.is_empty() {
        return Err(Failure::Invalid("the list of messages is empty".to_string()));
    }
    match list.iter().position(|m| !m.get("role").is_some_and(|role| role.is_string())) {
        Some(i) => {
            Err(Failure::Invalid(format!("message {i} is no object with a \"role\" string")))
        }
        None => Ok(()),
    }
}
