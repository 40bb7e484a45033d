//! Text to ids and back through `tokenizers`, and training of a byte-level BPE.

use tokenizers::models::bpe::{BpeTrainerBuilder, BPE};
use tokenizers::models::TrainerWrapper;
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::pre_tokenizers::digits::Digits;
use tokenizers::pre_tokenizers::sequence::Sequence;
use tokenizers::{AddedToken, Tokenizer};

use crate::Failure;

pub struct Vocabulary {
    tokenizer: Tokenizer,
    size: i64,
}

impl Vocabulary {
    pub fn parse(json: &str) -> Result<Self, String> {
        let mut tokenizer: Tokenizer = json.parse().map_err(|e| format!("{e}"))?;
        // A saved tokenizer may have truncation and padding; here the ids are always those of the whole text.
        tokenizer.with_truncation(None).map_err(|e| e.to_string())?;
        tokenizer.with_padding(None);
        let size = tokenizer.get_vocab_size(true) as i64;
        Ok(Vocabulary { tokenizer, size })
    }

    pub fn size(&self) -> i64 {
        self.size
    }

    pub fn id_of(&self, token: &str) -> Option<i32> {
        self.tokenizer.token_to_id(token).and_then(|id| i32::try_from(id).ok())
    }

    /// `add_special_tokens`: with those that tokenizer.json puts around a text, such as a BOS.
    pub fn encode(&self, text: &str, add_special_tokens: bool) -> Result<Vec<i32>, Failure> {
        let encoding = self
            .tokenizer
            .encode_fast(text, add_special_tokens)
            .map_err(|e| Failure::Invalid(format!("the text cannot be tokenised: {e}")))?;
        Ok(encoding.get_ids().iter().map(|&id| id as i32).collect())
    }

    pub fn decode(&self, ids: &[i32], skip_special_tokens: bool) -> Result<String, Failure> {
        let mut known = Vec::with_capacity(ids.len());
        for (i, &id) in ids.iter().enumerate() {
            // The crate drops an unknown id without an error.
            match u32::try_from(id) {
                Ok(id) if self.tokenizer.id_to_token(id).is_some() => known.push(id),
                _ => {
                    return Err(Failure::Invalid(format!(
                        "id {id} at index {i} is not in the vocabulary of {} tokens",
                        self.size
                    )))
                }
            }
        }
        self.tokenizer
            .decode(&known, skip_special_tokens)
            .map_err(|e| Failure::Invalid(format!("the ids cannot be decoded: {e}")))
    }
}

const SPECIAL_TOKENS: [&str; 3] = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"];
const MIN_VOCAB_SIZE: i64 = SPECIAL_TOKENS.len() as i64 + 256;
const MAX_VOCAB_SIZE: i64 = 1 << 24;

pub fn train(text: &str, vocab_size: i64) -> Result<String, Failure> {
    if !(MIN_VOCAB_SIZE..=MAX_VOCAB_SIZE).contains(&vocab_size) {
        return Err(Failure::Invalid(format!(
            "vocab_size {vocab_size} is not in [{MIN_VOCAB_SIZE}, {MAX_VOCAB_SIZE}]: {} special \
             tokens and 256 bytes come first",
            SPECIAL_TOKENS.len()
        )));
    }
    if text.is_empty() {
        return Err(Failure::Invalid("the text to train on is empty".to_string()));
    }
    let trainer = BpeTrainerBuilder::new()
        .vocab_size(vocab_size as usize)
        .show_progress(false)
        .special_tokens(SPECIAL_TOKENS.iter().map(|token| AddedToken::from(*token, true)).collect())
        .initial_alphabet(ByteLevel::alphabet().into_iter().collect())
        .build();
    let mut tokenizer = Tokenizer::new(BPE::default());
    tokenizer.with_pre_tokenizer(Some(Sequence::new(vec![
        Digits::new(true).into(),
        ByteLevel::new(false, true, true).into(),
    ])));
    tokenizer.with_decoder(Some(ByteLevel::default()));
    tokenizer
        .train(&mut TrainerWrapper::from(trainer), std::iter::once(text))
        .and_then(|tokenizer| tokenizer.to_string(true))
        .map_err(|e| Failure::Invalid(format!("training failed: {e}")))
}
