//! Random bytes, and valid frames with damage: nothing panics. The short version of the fuzz target
//! `http2`.

use crate::frames::{
    CONTINUATION, DATA, END_HEADERS, END_STREAM, GOAWAY, HEADERS, PING, PRIORITY, RESET, SETTINGS,
    WINDOW, frame, head_of, headers,
};

/// A generator of fixed numbers.
struct Numbers(u64);

impl Numbers {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn below(&mut self, limit: usize) -> usize {
        (self.next() % limit.max(1) as u64) as usize
    }
}

fn frames() -> Vec<Vec<u8>> {
    let message = [&[0, 0, 0, 0, 3][..], b"abc"].concat();
    // The size of the table, a head, a new entry of the table, and that entry again.
    let new = [0x40, 1, b'n', 2, b'v', b'w', 0xbe];
    let indexed = [&[0x3f, 0xe1, 0x1f][..], &head_of("/echo"), &new].concat();
    vec![
        headers(1, "/message", 0),
        frame(DATA, 0, 1, &message),
        frame(DATA, END_STREAM, 1, &[]),
        headers(3, "/echo", END_STREAM),
        frame(HEADERS, END_HEADERS, 5, &indexed),
        frame(HEADERS, END_HEADERS | END_STREAM, 7, &[0x82, 0x86, 0x84, 0xbe]),
        frame(DATA, 8, 5, &[2, b'a', b'b', 0, 0]),
        frame(HEADERS, 0, 9, &head_of("/message")[..10]),
        frame(CONTINUATION, END_HEADERS, 9, &head_of("/message")[10..]),
        frame(DATA, END_STREAM, 9, &message),
        frame(WINDOW, 0, 0, &1_000u32.to_be_bytes()),
        frame(WINDOW, 0, 5, &1_000u32.to_be_bytes()),
        frame(PRIORITY, 0, 3, &[0; 5]),
        frame(RESET, 0, 5, &[0; 4]),
        frame(PING, 0, 0, &[7; 8]),
        frame(SETTINGS, 0, 0, &[0, 4, 0, 0, 1, 0]),
        frame(GOAWAY, 0, 0, &[0; 8]),
    ]
}

#[test]
fn damaged_frames_do_not_panic() {
    let mut numbers = Numbers(0x9e37_79b9_7f4a_7c15);
    let frames = frames();
    for _ in 0..20_000 {
        let mut bytes = frame(SETTINGS, 0, 0, &[]);
        for _ in 0..1 + numbers.below(20) {
            // Mostly in order, so that streams make progress.
            let mut next = frames[numbers.below(frames.len())].clone();
            if numbers.below(3) == 0 {
                let place = numbers.below(next.len());
                next[place] = numbers.next() as u8;
            }
            if numbers.below(20) == 0 {
                next.truncate(numbers.below(next.len()));
            }
            bytes.extend(next);
        }
        quorate_http2::fuzzing::receive(&bytes, 1 + numbers.below(bytes.len()));
    }
    for _ in 0..2_000 {
        let bytes: Vec<u8> = (0..numbers.below(200)).map(|_| numbers.next() as u8).collect();
        let all = [frame(SETTINGS, 0, 0, &[]), frame(HEADERS, END_HEADERS, 1, &bytes)].concat();
        quorate_http2::fuzzing::receive(&all, all.len());
        quorate_http2::fuzzing::receive(&bytes, bytes.len());
    }
}

/// All of them in order: what the damaged ones begin with is valid.
#[test]
fn the_frames_are_valid_without_damage() {
    let whole = [vec![frame(SETTINGS, 0, 0, &[])], frames()].concat().concat();
    for piece in [1, 7, whole.len()] {
        assert!(quorate_http2::fuzzing::receive(&whole, piece), "in pieces of {piece}");
    }
}
