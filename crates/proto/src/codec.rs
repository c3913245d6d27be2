//! How messages become bytes: as in `tonic_prost`, with smaller buffers.
//!
//! Every call has two buffers for as long as it lasts. Those of a watch last for hours, and a
//! server has many thousands of them.

use std::fmt;
use std::marker::PhantomData;

use prost::Message;
use tonic::codec::{BufferSettings, Codec};
use tonic_prost::{ProstCodec, ProstDecoder, ProstEncoder};

/// Encodes messages of type `E` and decodes those of type `D`.
pub(crate) struct MessageCodec<E, D>(PhantomData<(E, D)>);

/// The first size of a buffer; it grows with its messages. A smaller one would start over with nothing
/// after each message.
const BUFFER_BYTES: usize = 1 << 10;
/// A stream with many messages writes them in pieces of this size, as is tonic's default.
const PIECE_BYTES: usize = 32 << 10;

impl<E, D> Default for MessageCodec<E, D> {
    fn default() -> Self {
        Self(PhantomData)
    }
}

impl<E, D> fmt::Debug for MessageCodec<E, D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("MessageCodec")
    }
}

impl<E, D> Codec for MessageCodec<E, D>
where
    E: Message + Send + 'static,
    D: Message + Default + Send + 'static,
{
    type Encode = E;
    type Decode = D;
    type Encoder = ProstEncoder<E>;
    type Decoder = ProstDecoder<D>;

    fn encoder(&mut self) -> Self::Encoder {
        ProstCodec::<E, D>::raw_encoder(BufferSettings::new(BUFFER_BYTES, PIECE_BYTES))
    }

    fn decoder(&mut self) -> Self::Decoder {
        ProstCodec::<E, D>::raw_decoder(BufferSettings::new(BUFFER_BYTES, PIECE_BYTES))
    }
}
