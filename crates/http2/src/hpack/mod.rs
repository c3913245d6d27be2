//! Header compression (RFC 7541): decodes what the other side sends, and encodes responses without a
//! dynamic table. `client/request_head.rs` encodes requests.

mod decode;
mod encode;
mod huffman;
mod table;

pub(crate) use decode::{BlockField, HpackDecoder};
pub(crate) use encode::{encode_field, encode_status, put_integer, put_string};
pub(crate) use table::Field;

/// A header block that cannot be decoded. The connection ends, because the tables of both sides
/// differ from now on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HpackError {
    Truncated,
    IntegerTooLarge,
    BadHuffman,
    BadIndex,
    TableTooLarge,
    /// A change of the table's size that is not at the start of a block.
    LateResize,
}

impl HpackError {
    /// What the client is told.
    pub(crate) fn text(self) -> &'static str {
        match self {
            Self::Truncated => "truncated header block",
            Self::IntegerTooLarge => "a number in a header block is too large",
            Self::BadHuffman => "invalid Huffman code in a header block",
            Self::BadIndex => "unknown index in a header block",
            Self::TableTooLarge | Self::LateResize => "invalid size of the header table",
        }
    }
}
