//! HPACK's Huffman code (RFC 7541, appendix B). The code is canonical: the lengths of the codes
//! define it.

use super::HpackError;

/// The lengths of the codes of all bytes, and of the end-of-string symbol.
const LENGTHS: [u8; SYMBOLS] = [
    13, 23, 28, 28, 28, 28, 28, 28, 28, 24, 30, 28, 28, 30, 28, 28, //
    28, 28, 28, 28, 28, 28, 30, 28, 28, 28, 28, 28, 28, 28, 28, 28, //
    6, 10, 10, 12, 13, 6, 8, 11, 10, 10, 8, 11, 8, 6, 6, 6, //
    5, 5, 5, 6, 6, 6, 6, 6, 6, 6, 7, 8, 15, 6, 12, 10, //
    13, 6, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, //
    7, 7, 7, 7, 7, 7, 7, 7, 8, 7, 8, 13, 19, 13, 14, 6, //
    15, 5, 6, 5, 6, 5, 6, 6, 6, 5, 7, 7, 6, 6, 6, 5, //
    6, 7, 6, 5, 5, 6, 7, 7, 7, 7, 7, 15, 11, 14, 13, 28, //
    20, 22, 20, 20, 22, 22, 22, 23, 22, 23, 23, 23, 23, 23, 24, 23, //
    24, 24, 22, 23, 24, 23, 23, 23, 23, 21, 22, 23, 22, 23, 23, 24, //
    22, 21, 20, 22, 22, 23, 23, 21, 23, 22, 22, 24, 21, 22, 23, 23, //
    21, 21, 22, 21, 23, 22, 23, 23, 20, 22, 22, 22, 23, 22, 22, 23, //
    26, 26, 20, 19, 22, 23, 22, 25, 26, 26, 26, 27, 27, 26, 24, 25, //
    19, 21, 26, 27, 27, 26, 27, 24, 21, 21, 26, 26, 28, 27, 27, 27, //
    20, 24, 20, 21, 22, 21, 21, 23, 22, 22, 25, 25, 24, 24, 26, 23, //
    26, 27, 26, 26, 27, 27, 27, 27, 27, 28, 27, 27, 27, 27, 27, 26, //
    30,
];

const SYMBOLS: usize = 257;
const END_OF_STRING: u16 = 256;
const LENGTH_MAX: usize = 30;

struct CodeTable {
    /// By the next eight bits: the symbol and the length of its code; 0 for a longer code.
    short: [(u8, u8); 256],
    /// All symbols by length and value.
    symbols: [u16; SYMBOLS],
    /// By length: the first code, the number of codes, and the position of the first in `symbols`.
    lengths: [CodeLength; LENGTH_MAX + 1],
}

#[derive(Clone, Copy)]
struct CodeLength {
    first: u32,
    count: u32,
    position: usize,
}

static TABLE: CodeTable = code_table();

const fn code_table() -> CodeTable {
    let none = CodeLength { first: 0, count: 0, position: 0 };
    let mut table =
        CodeTable { short: [(0, 0); 256], symbols: [0; SYMBOLS], lengths: [none; LENGTH_MAX + 1] };
    let (mut code, mut position, mut length) = (0u32, 0, 1);
    while length <= LENGTH_MAX {
        code <<= 1;
        table.lengths[length] = CodeLength { first: code, count: 0, position };
        let mut symbol = 0;
        while symbol < SYMBOLS {
            if LENGTHS[symbol] as usize == length {
                if length <= 8 {
                    let mut fill = 0;
                    while fill < 1 << (8 - length) {
                        let next = ((code << (8 - length)) | fill) as usize;
                        table.short[next] = (symbol as u8, length as u8);
                        fill += 1;
                    }
                }
                table.symbols[position] = symbol as u16;
                table.lengths[length].count += 1;
                position += 1;
                code += 1;
            }
            symbol += 1;
        }
        length += 1;
    }
    table
}

/// Appends the decoded text to `out`.
pub(super) fn decode(text: &[u8], out: &mut Vec<u8>) -> Result<(), HpackError> {
    let mut input = text.iter();
    // The lowest `count` bits of `bits` are not decoded yet.
    let (mut bits, mut count) = (0u64, 0u32);
    loop {
        while count <= 48
            && let Some(byte) = input.next()
        {
            bits = bits << 8 | u64::from(*byte);
            count += 8;
        }
        if count == 0 {
            return Ok(());
        }
        let next = match count {
            // The end is filled with ones.
            0..8 => (bits << (8 - count)) as u8 | (0xff_u8 >> count),
            _ => (bits >> (count - 8)) as u8,
        };
        let (symbol, length) = TABLE.short[usize::from(next)];
        if length != 0 && u32::from(length) <= count {
            out.push(symbol);
            count -= u32::from(length);
        } else if count < 8 {
            let is_padding = bits == (1 << count) - 1;
            return if is_padding { Ok(()) } else { Err(HpackError::BadHuffman) };
        } else {
            let (symbol, length) = long_code(bits, count).ok_or(HpackError::BadHuffman)?;
            out.push(symbol);
            count -= length;
        }
        bits &= (1 << count) - 1;
    }
}

/// The symbol with a code of more than eight bits at the start of these bits, and its length.
fn long_code(bits: u64, count: u32) -> Option<(u8, u32)> {
    for length in 9..=count.min(LENGTH_MAX as u32) {
        let code = (bits >> (count - length)) as u32;
        let CodeLength { first, count, position } = TABLE.lengths[length as usize];
        let offset = code.wrapping_sub(first);
        if offset < count {
            let symbol = TABLE.symbols[position + offset as usize];
            return (symbol != END_OF_STRING).then_some((symbol as u8, length));
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The code of a symbol, and its length.
    fn code_of(symbol: usize) -> (u32, u32) {
        let length = LENGTHS[symbol];
        let CodeLength { first, position, .. } = TABLE.lengths[usize::from(length)];
        let place = TABLE.symbols.iter().position(|it| usize::from(*it) == symbol).unwrap();
        (first + (place - position) as u32, u32::from(length))
    }

    fn encode(text: &[u8]) -> Vec<u8> {
        let (mut out, mut bits, mut count) = (Vec::new(), 0u64, 0);
        for byte in text {
            let (code, length) = code_of(usize::from(*byte));
            bits = bits << length | u64::from(code);
            count += length;
            while count >= 8 {
                count -= 8;
                out.push((bits >> count) as u8);
            }
        }
        if count > 0 {
            out.push((bits << (8 - count)) as u8 | (0xff_u8 >> count));
        }
        out
    }

    fn decoded(text: &[u8]) -> Result<Vec<u8>, HpackError> {
        let mut out = Vec::new();
        decode(text, &mut out).map(|()| out)
    }

    #[test]
    fn every_byte_at_every_position_is_decoded() {
        for byte in 0..=255 {
            for before in 0..8 {
                let mut text = b"a1".repeat(before);
                text.push(byte);
                assert_eq!(decoded(&encode(&text)).unwrap(), text);
            }
        }
        let all: Vec<u8> = (0..=255).collect();
        assert_eq!(decoded(&encode(&all)).unwrap(), all);
    }

    #[test]
    fn the_examples_of_the_standard_are_decoded() {
        let example = [0xf1, 0xe3, 0xc2, 0xe5, 0xf2, 0x3a, 0x6b, 0xa0, 0xab, 0x90, 0xf4, 0xff];
        assert_eq!(decoded(&example).unwrap(), b"www.example.com");
        assert_eq!(
            decoded(&[0x25, 0xa8, 0x49, 0xe9, 0x5b, 0xa9, 0x7d, 0x7f]).unwrap(),
            b"custom-key"
        );
        assert_eq!(decoded(&[]).unwrap(), b"");
    }

    #[test]
    fn wrong_ends_are_refused() {
        // Eight bits of padding, padding with zeros, and the end-of-string symbol.
        for text in
            [&[0xff][..], &[0x00, 0x00], &[0xff, 0xff, 0xff, 0xff], &[0xff, 0xff, 0xff, 0xfc]]
        {
            assert!(decoded(text).is_err(), "{text:?}");
        }
    }
}
