//! From the bytes of a message to JSON, piece by piece as they arrive: neither the message nor
//! the text is ever in memory as a whole.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;

use super::schema::{FieldKind, FieldSchema, MessageId, SCHEMA};

/// Writes one message of this server. Its fields arrive in order, those of a list together.
pub(super) struct JsonWriter {
    /// The message, the message in it that arrives now, and so on.
    open: Vec<OpenMessage>,
    state: WriterState,
    /// Bytes that have arrived.
    position: u64,
}

struct OpenMessage {
    message: MessageId,
    /// The position of its end; that of the whole message is not known.
    end: u64,
    is_empty: bool,
    /// The number of the list that is open.
    list: Option<u32>,
}

enum WriterState {
    /// Before or within the key of a field.
    Key(Varint),
    Number(&'static FieldSchema, Varint),
    Length(&'static FieldSchema, Varint),
    /// The numbers of a list, up to this position.
    Packed(&'static FieldSchema, u64, Varint),
    Bytes {
        left: u64,
        /// What is left of a group of three bytes.
        rest: Vec<u8>,
    },
    Text {
        left: u64,
        text: Vec<u8>,
    },
    SkipNumber(Varint),
    SkipLength(Varint),
    Skip(u64),
}

#[derive(Clone, Copy, Default)]
struct Varint {
    value: u64,
    shift: u32,
}

impl Varint {
    /// The number, when its last byte has arrived.
    fn push(&mut self, byte: u8) -> Result<Option<u64>, NotAMessage> {
        if self.shift > 63 {
            return Err(NotAMessage);
        }
        self.value |= u64::from(byte & 0x7f) << self.shift;
        self.shift += 7;
        Ok((byte < 0x80).then_some(self.value))
    }
}

/// The bytes are not a message of the expected type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct NotAMessage;

impl JsonWriter {
    pub(super) fn new(message: MessageId, json: &mut Vec<u8>) -> Self {
        json.push(b'{');
        let whole = OpenMessage { message, end: u64::MAX, is_empty: true, list: None };
        Self { open: vec![whole], state: WriterState::Key(Varint::default()), position: 0 }
    }

    /// Writes the next bytes of the message.
    pub(super) fn write(
        &mut self,
        mut bytes: &[u8],
        json: &mut Vec<u8>,
    ) -> Result<(), NotAMessage> {
        while let Some((byte, rest)) = bytes.split_first() {
            match &mut self.state {
                WriterState::Bytes { left, rest } => {
                    let taken = take(&mut bytes, left);
                    self.position += taken.len() as u64;
                    write_base64(taken, *left == 0, rest, json);
                    if *left == 0 {
                        json.push(b'"');
                        self.end_value(json);
                    }
                }
                WriterState::Text { left, text } => {
                    let taken = take(&mut bytes, left);
                    self.position += taken.len() as u64;
                    text.extend_from_slice(taken);
                    if *left == 0 {
                        write_text(text, json)?;
                        self.end_value(json);
                    }
                }
                WriterState::Skip(left) => {
                    self.position += take(&mut bytes, left).len() as u64;
                    if *left == 0 {
                        self.end_value(json);
                    }
                }
                _ => {
                    bytes = rest;
                    self.position += 1;
                    self.push_byte(*byte, json)?;
                }
            }
        }
        Ok(())
    }

    /// Writes the end of the message.
    pub(super) fn finish(mut self, json: &mut Vec<u8>) -> Result<(), NotAMessage> {
        let is_between_fields = matches!(self.state, WriterState::Key(Varint { shift: 0, .. }));
        if self.open.len() != 1 || !is_between_fields {
            return Err(NotAMessage);
        }
        self.close(json);
        Ok(())
    }

    fn push_byte(&mut self, byte: u8, json: &mut Vec<u8>) -> Result<(), NotAMessage> {
        match &mut self.state {
            WriterState::Key(varint) => {
                if let Some(key) = varint.push(byte)? {
                    self.begin_field(key)?;
                }
            }
            WriterState::Number(field, varint) => {
                let field = *field;
                if let Some(bits) = varint.push(byte)? {
                    self.write_name(field, json);
                    write_number(field, bits, json)?;
                    self.end_value(json);
                }
            }
            WriterState::Length(field, varint) => {
                let field = *field;
                if let Some(length) = varint.push(byte)? {
                    self.begin_value(field, length, json)?;
                }
            }
            WriterState::Packed(field, end, varint) => {
                let (field, end) = (*field, *end);
                match varint.push(byte)? {
                    Some(bits) => {
                        *varint = Varint::default();
                        self.write_name(field, json);
                        write_number(field, bits, json)?;
                        if self.position == end {
                            self.end_value(json);
                        }
                    }
                    None if self.position == end => return Err(NotAMessage),
                    None => {}
                }
            }
            WriterState::SkipNumber(varint) => {
                if varint.push(byte)?.is_some() {
                    self.end_value(json);
                }
            }
            WriterState::SkipLength(varint) => {
                if let Some(length) = varint.push(byte)? {
                    self.state = WriterState::Skip(length);
                    if length == 0 {
                        self.end_value(json);
                    }
                }
            }
            // `write` handles these.
            WriterState::Bytes { .. } | WriterState::Text { .. } | WriterState::Skip(_) => {}
        }
        Ok(())
    }

    fn begin_field(&mut self, key: u64) -> Result<(), NotAMessage> {
        let number = u32::try_from(key >> 3).map_err(|_| NotAMessage)?;
        let message = self.open.last().ok_or(NotAMessage)?.message;
        let field = SCHEMA.message(message).by_number(number);
        self.state = match (key & 7, field) {
            (VARINT, Some(field)) => WriterState::Number(field, Varint::default()),
            (LENGTH_DELIMITED, Some(field)) => WriterState::Length(field, Varint::default()),
            (VARINT, None) => WriterState::SkipNumber(Varint::default()),
            (LENGTH_DELIMITED, None) => WriterState::SkipLength(Varint::default()),
            _ => return Err(NotAMessage),
        };
        Ok(())
    }

    /// Begins a value of this length.
    fn begin_value(
        &mut self,
        field: &'static FieldSchema,
        length: u64,
        json: &mut Vec<u8>,
    ) -> Result<(), NotAMessage> {
        let end = self.position.checked_add(length).ok_or(NotAMessage)?;
        if self.open.last().is_none_or(|message| end > message.end) {
            return Err(NotAMessage);
        }
        let is_number = !matches!(
            field.kind,
            FieldKind::Message(_) | FieldKind::Bytes | FieldKind::String | FieldKind::Unsupported
        );
        if field.is_repeated && is_number {
            self.state = WriterState::Packed(field, end, Varint::default());
            if length == 0 {
                self.end_value(json);
            }
            return Ok(());
        }
        self.write_name(field, json);
        match field.kind {
            FieldKind::Message(message) => {
                json.push(b'{');
                self.open.push(OpenMessage { message, end, is_empty: true, list: None });
                self.end_value(json);
            }
            FieldKind::Bytes => {
                json.push(b'"');
                self.state = WriterState::Bytes { left: length, rest: Vec::new() };
                if length == 0 {
                    json.push(b'"');
                    self.end_value(json);
                }
            }
            FieldKind::String => {
                self.state = WriterState::Text { left: length, text: Vec::new() };
                if length == 0 {
                    json.extend_from_slice(b"\"\"");
                    self.end_value(json);
                }
            }
            _ => return Err(NotAMessage),
        }
        Ok(())
    }

    /// Writes what separates a field from the one before, and its name.
    fn write_name(&mut self, field: &FieldSchema, json: &mut Vec<u8>) {
        let Some(message) = self.open.last_mut() else { return };
        if message.list == Some(field.number) {
            json.push(b',');
            return;
        }
        if message.list.take().is_some() {
            json.push(b']');
        }
        if !message.is_empty {
            json.push(b',');
        }
        message.is_empty = false;
        json.push(b'"');
        json.extend_from_slice(field.name.as_bytes());
        json.extend_from_slice(b"\":");
        if field.is_repeated {
            json.push(b'[');
            message.list = Some(field.number);
        }
    }

    /// Ends a value, and all messages that end with it.
    fn end_value(&mut self, json: &mut Vec<u8>) {
        self.state = WriterState::Key(Varint::default());
        while self.open.last().is_some_and(|message| message.end == self.position) {
            self.close(json);
        }
    }

    fn close(&mut self, json: &mut Vec<u8>) {
        if self.open.pop().is_some_and(|message| message.list.is_some()) {
            json.push(b']');
        }
        json.push(b'}');
    }
}

/// Takes as much of the bytes as is left of the value.
fn take<'a>(bytes: &mut &'a [u8], left: &mut u64) -> &'a [u8] {
    let count = usize::try_from(*left).unwrap_or(usize::MAX).min(bytes.len());
    let (taken, rest) = bytes.split_at(count);
    *bytes = rest;
    *left -= count as u64;
    taken
}

fn write_base64(mut bytes: &[u8], is_last: bool, rest: &mut Vec<u8>, json: &mut Vec<u8>) {
    if !rest.is_empty() {
        let missing = (3 - rest.len()).min(bytes.len());
        rest.extend_from_slice(&bytes[..missing]);
        bytes = &bytes[missing..];
        if rest.len() == 3 {
            push_base64(rest, json);
            rest.clear();
        }
    }
    if rest.is_empty() {
        let whole = bytes.len() - bytes.len() % 3;
        push_base64(&bytes[..whole], json);
        rest.extend_from_slice(&bytes[whole..]);
    }
    if is_last {
        push_base64(rest, json);
        rest.clear();
    }
}

fn push_base64(bytes: &[u8], json: &mut Vec<u8>) {
    let start = json.len();
    json.resize(start + bytes.len().div_ceil(3) * 4, 0);
    let written = STANDARD.encode_slice(bytes, &mut json[start..]);
    debug_assert_eq!(written, Ok(json.len() - start));
}

fn write_text(text: &[u8], json: &mut Vec<u8>) -> Result<(), NotAMessage> {
    let text = std::str::from_utf8(text).map_err(|_| NotAMessage)?;
    serde_json::to_writer(json, text).map_err(|_| NotAMessage)
}

fn write_number(field: &FieldSchema, bits: u64, json: &mut Vec<u8>) -> Result<(), NotAMessage> {
    let text = match field.kind {
        FieldKind::Bool => (bits != 0).to_string(),
        FieldKind::Int32 => (bits as i32).to_string(),
        FieldKind::Uint32 => (bits as u32).to_string(),
        // JavaScript has no integers of 64 bits.
        FieldKind::Int64 => format!("\"{}\"", bits as i64),
        FieldKind::Uint64 => format!("\"{bits}\""),
        FieldKind::Enum(id) => match SCHEMA.enumeration(id).name(bits as i32) {
            Some(name) => format!("\"{name}\""),
            None => (bits as i32).to_string(),
        },
        _ => return Err(NotAMessage),
    };
    json.extend_from_slice(text.as_bytes());
    Ok(())
}

const VARINT: u64 = 0;
const LENGTH_DELIMITED: u64 = 2;

#[cfg(test)]
mod tests;
