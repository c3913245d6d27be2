//! Heads and trailers of replies. Most are the same few: those are recognized by their bytes.

use std::sync::Arc;

use http::HeaderMap;
use http::header::{HeaderName, HeaderValue};

use crate::hpack::{BlockField, Field, HpackDecoder, HpackError};

/// The fields of a head or of trailers.
#[derive(Debug, Default)]
pub(super) struct ReplyFields {
    /// `:status`, which trailers do not have.
    pub(super) http_status: Option<u16>,
    /// Whether `grpc-status` is 0, the first if there are several.
    pub(super) is_ok: bool,
    pub(super) headers: HeaderMap,
}

/// Decodes the header blocks of one connection.
#[derive(Debug)]
pub(super) struct ReplyHeads {
    decoder: HpackDecoder,
    fields: Vec<BlockField>,
    known: Vec<KnownBlock>,
    next: usize,
}

/// A block that changed no table, and the version of the table.
#[derive(Debug)]
struct KnownBlock {
    block: Vec<u8>,
    version: u64,
    fields: Arc<ReplyFields>,
}

impl ReplyHeads {
    pub(super) fn new() -> Self {
        Self { decoder: HpackDecoder::new(), fields: Vec::new(), known: Vec::new(), next: 0 }
    }

    pub(super) fn decode(&mut self, block: &[u8]) -> Result<Arc<ReplyFields>, HpackError> {
        let version = self.decoder.version();
        let is_same = |known: &&KnownBlock| known.version == version && known.block == block;
        if let Some(known) = self.known.iter().find(is_same) {
            return Ok(Arc::clone(&known.fields));
        }
        self.fields.clear();
        self.decoder.decode(block, FIELD_BYTES_MAX, &mut self.fields)?;
        let mut found = ReplyFields::default();
        for field in &self.fields {
            match field {
                BlockField::Entry(id) => {
                    if let Some(field) = self.decoder.field(*id) {
                        found.add(&field);
                    }
                }
                BlockField::Literal(field) => found.add(field),
            }
        }
        self.decoder.end_block();
        found.is_ok = found.headers.get("grpc-status").is_some_and(|status| status == "0");
        let fields = Arc::new(found);
        if self.decoder.version() == version && block.len() <= KNOWN_BYTES_MAX {
            let known = KnownBlock { block: block.to_vec(), version, fields: Arc::clone(&fields) };
            match self.known.get_mut(self.next) {
                Some(oldest) => *oldest = known,
                None => self.known.push(known),
            }
            self.next = (self.next + 1) % KNOWN_MAX;
        }
        Ok(fields)
    }
}

impl ReplyFields {
    /// Fields that are not valid in HTTP are left out.
    fn add(&mut self, field: &Field) {
        if *field.name == *b":status" {
            let text = std::str::from_utf8(&field.value).unwrap_or_default();
            self.http_status = self.http_status.or_else(|| text.parse().ok());
            return;
        }
        let name = HeaderName::from_lowercase(&field.name);
        let value = HeaderValue::from_maybe_shared(field.value.clone());
        if let (Ok(name), Ok(value)) = (name, value)
            && self.headers.len() < FIELDS_MAX
        {
            self.headers.append(name, value);
        }
    }
}

/// Fields above these limits are left out.
const FIELD_BYTES_MAX: usize = 64 << 10;
const FIELDS_MAX: usize = 256;
/// Blocks that are remembered, and the longest of them.
const KNOWN_MAX: usize = 8;
const KNOWN_BYTES_MAX: usize = 512;
