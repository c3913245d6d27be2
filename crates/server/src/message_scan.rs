//! Finds the ends of gRPC messages in the bytes of a body: each has a flag, its length in four
//! bytes, and its content.

/// Where the body is, after the bytes so far.
#[derive(Clone, Debug)]
pub(crate) struct MessageScan {
    bytes_max: usize,
    prefix: [u8; PREFIX_BYTES],
    prefix_bytes: usize,
    /// How much of the content is missing, once the prefix is complete.
    missing: usize,
    ended: usize,
    is_refused: bool,
}

const PREFIX_BYTES: usize = 5;

impl MessageScan {
    pub(crate) fn new(bytes_max: usize) -> Self {
        let prefix = [0; PREFIX_BYTES];
        Self { bytes_max, prefix, prefix_bytes: 0, missing: 0, ended: 0, is_refused: false }
    }

    /// How many messages have ended.
    pub(crate) fn ended(&self) -> usize {
        self.ended
    }

    /// Whether a service refuses the message that has begun, whatever follows.
    pub(crate) fn is_refused(&self) -> bool {
        self.is_refused
    }

    /// Whether the next byte begins a message.
    pub(crate) fn is_between_messages(&self) -> bool {
        self.prefix_bytes == 0
    }

    /// Continues with these bytes.
    pub(crate) fn advance(&mut self, mut bytes: &[u8]) {
        while !self.is_refused && !bytes.is_empty() {
            if self.prefix_bytes < PREFIX_BYTES {
                let count = bytes.len().min(PREFIX_BYTES - self.prefix_bytes);
                let (part, rest) = bytes.split_at(count);
                self.prefix[self.prefix_bytes..][..count].copy_from_slice(part);
                self.prefix_bytes += count;
                bytes = rest;
                if self.prefix_bytes < PREFIX_BYTES {
                    break;
                }
                let [flag, length @ ..] = self.prefix;
                self.missing = u32::from_be_bytes(length) as usize;
                self.is_refused = flag > 1 || self.missing > self.bytes_max;
                if self.is_refused {
                    break;
                }
            }
            let count = bytes.len().min(self.missing);
            bytes = &bytes[count..];
            self.missing -= count;
            if self.missing == 0 {
                self.prefix_bytes = 0;
                self.ended += 1;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(length: usize) -> Vec<u8> {
        [&[0][..], &(length as u32).to_be_bytes(), &vec![7; length]].concat()
    }

    /// However the bytes are divided, the same messages end at the same places.
    #[test]
    fn the_ends_of_messages_are_found_in_any_division() {
        let bytes = [message(3), message(0), message(10), message(1)].concat();
        for step in 1..=bytes.len() {
            let mut scan = MessageScan::new(10);
            bytes.chunks(step).for_each(|part| scan.advance(part));
            assert_eq!(scan.ended(), 4, "{step}");
            assert!(scan.is_between_messages() && !scan.is_refused());
        }
        let mut scan = MessageScan::new(10);
        scan.advance(&bytes[..7]);
        assert_eq!((scan.ended(), scan.is_between_messages()), (0, false));
        scan.advance(&bytes[7..9]);
        assert_eq!((scan.ended(), scan.is_between_messages()), (1, false));
    }

    #[test]
    fn messages_that_no_service_accepts_are_known_by_their_prefix() {
        for prefix in [[0, 0, 0, 0, 11], [0, 255, 255, 255, 255], [2, 0, 0, 0, 1]] {
            let mut scan = MessageScan::new(10);
            scan.advance(&prefix);
            assert!(scan.is_refused());
            scan.advance(&[0; 100]);
            assert_eq!(scan.ended(), 0);
        }
    }
}
