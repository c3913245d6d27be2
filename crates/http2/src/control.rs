//! Frames about the connection itself, or about windows: settings, pings, priorities, and its end.

use crate::application::Application;
use crate::connection::{Http2Connection, depends_on};
use crate::frame::{
    ConnectionError, FRAME_BYTES_MAX, FrameHead, ID_MASK, Reason, WINDOW_MAX, flag, kind,
    put_goaway, put_head, put_ping, setting,
};

impl<A: Application> Http2Connection<A> {
    pub(crate) fn on_priority(
        &mut self,
        head: FrameHead,
        payload: &[u8],
    ) -> Result<(), ConnectionError> {
        if head.stream == 0 {
            return Err(ConnectionError::protocol("PRIORITY of the connection"));
        }
        self.flood.count()?;
        let error = match <&[u8; 5]>::try_from(payload) {
            Ok(priority) if depends_on(priority) == head.stream => {
                ConnectionError::protocol("a stream depends on itself")
            }
            Ok(_) => return Ok(()),
            Err(_) => ConnectionError::size("PRIORITY has five bytes"),
        };
        // No stream can be reset before it is open.
        match self.ids.get(&head.stream).copied() {
            Some(slot) => self.reset(slot, error.reason),
            None => Err(error),
        }
    }

    pub(crate) fn on_settings(
        &mut self,
        head: FrameHead,
        payload: &[u8],
    ) -> Result<(), ConnectionError> {
        if head.stream != 0 {
            return Err(ConnectionError::protocol("SETTINGS of a stream"));
        }
        if head.has(flag::ACK) {
            return match payload {
                [] => self.flood.count(),
                _ => Err(ConnectionError::size("an acknowledgement of SETTINGS is empty")),
            };
        }
        let (settings, []) = payload.as_chunks::<6>() else {
            return Err(ConnectionError::size("SETTINGS have six bytes each"));
        };
        let mut window = self.stream_send_window;
        for [id0, id1, value @ ..] in settings {
            self.flood.count()?;
            let (id, value) = (u16::from_be_bytes([*id0, *id1]), u32::from_be_bytes(*value));
            match id {
                setting::INITIAL_WINDOW_SIZE => window = checked_window(value)?,
                _ => self.set(id, value)?,
            }
        }
        // Once for all of them: it visits every stream.
        self.set_stream_windows(window)?;
        self.flood.count()?;
        self.has_settings = true;
        put_head(&mut self.output, 0, kind::SETTINGS, flag::ACK, 0);
        Ok(())
    }

    fn set(&mut self, id: u16, value: u32) -> Result<(), ConnectionError> {
        match id {
            setting::ENABLE_PUSH if value > 1 => {
                Err(ConnectionError::protocol("ENABLE_PUSH is 0 or 1"))
            }
            setting::MAX_FRAME_SIZE => {
                let value = value as usize;
                if !(FRAME_BYTES_MAX..1 << 24).contains(&value) {
                    return Err(ConnectionError::protocol("MAX_FRAME_SIZE is out of range"));
                }
                // Longer frames would let one response hold up the others.
                self.frame_bytes_max = value.min(FRAME_SENT_MAX);
                Ok(())
            }
            _ => Ok(()),
        }
    }

    fn set_stream_windows(&mut self, window: i64) -> Result<(), ConnectionError> {
        let more = window - self.stream_send_window;
        if more == 0 {
            return Ok(());
        }
        self.stream_send_window = window;
        for slot in &mut self.slots {
            if let Some(stream) = &mut slot.stream {
                stream.send_window += more;
                if stream.send_window > WINDOW_MAX {
                    return Err(WINDOW_TOO_LARGE);
                }
                if more > 0 {
                    slot.waker.queue();
                }
            }
        }
        Ok(())
    }

    pub(crate) fn on_ping(
        &mut self,
        head: FrameHead,
        payload: &[u8],
    ) -> Result<(), ConnectionError> {
        if head.stream != 0 {
            return Err(ConnectionError::protocol("PING of a stream"));
        }
        let Ok(content) = <[u8; 8]>::try_from(payload) else {
            return Err(ConnectionError::size("PING has eight bytes"));
        };
        self.flood.count()?;
        if head.has(flag::ACK) {
            self.ping_replied |= content == PING_CONTENT;
        } else {
            put_ping(&mut self.output, flag::ACK, content);
        }
        Ok(())
    }

    /// Asks the client for a sign of life.
    pub(crate) fn ping(&mut self) {
        self.ping_replied = false;
        put_ping(&mut self.output, 0, PING_CONTENT);
    }

    pub(crate) fn on_goaway(
        &mut self,
        head: FrameHead,
        payload: &[u8],
    ) -> Result<(), ConnectionError> {
        if head.stream != 0 {
            return Err(ConnectionError::protocol("GOAWAY of a stream"));
        }
        if payload.len() < 8 {
            return Err(ConnectionError::size("GOAWAY has eight bytes"));
        }
        self.client_is_leaving = true;
        self.flood.count()
    }

    pub(crate) fn on_window_update(
        &mut self,
        head: FrameHead,
        payload: &[u8],
    ) -> Result<(), ConnectionError> {
        let Ok(increment) = <[u8; 4]>::try_from(payload) else {
            return Err(ConnectionError::size("WINDOW_UPDATE has four bytes"));
        };
        let increment = i64::from(u32::from_be_bytes(increment) & ID_MASK);
        if head.stream == 0 {
            self.send_window += increment;
            if increment == 0 {
                return Err(ConnectionError::protocol("a window does not change"));
            }
            if self.send_window > WINDOW_MAX {
                let text = "the window of the connection is too large";
                return Err(ConnectionError::new(Reason::FLOW_CONTROL_ERROR, text));
            }
            self.unblock();
            return Ok(());
        }
        self.check_not_idle(head.stream)?;
        let Some(slot) = self.ids.get(&head.stream).copied() else { return Ok(()) };
        let Some(stream) = &mut self.slots[slot].stream else { return Ok(()) };
        stream.send_window += increment;
        if increment == 0 {
            return self.reset(slot, Reason::PROTOCOL_ERROR);
        }
        if stream.send_window > WINDOW_MAX {
            return self.reset(slot, Reason::FLOW_CONTROL_ERROR);
        }
        self.slots[slot].waker.queue();
        Ok(())
    }

    /// Tells the client to use another connection for what it sends after it has read this. A ping
    /// tells when that is.
    pub(crate) fn begin_closing(&mut self) {
        put_goaway(&mut self.output, ID_MASK, Reason::NO_ERROR, "");
        self.ping();
    }

    /// Serves no further streams.
    pub(crate) fn finish_closing(&mut self) {
        if self.last_served == ID_MASK {
            self.last_served = self.highest;
            put_goaway(&mut self.output, self.highest, Reason::NO_ERROR, "");
        }
    }

    /// Whether the client knows that no further streams are served.
    pub(crate) fn is_closed(&self) -> bool {
        self.last_served != ID_MASK
    }

    /// The last frame before the connection ends with an error.
    pub(crate) fn fail(&mut self, error: ConnectionError) {
        // Never more than was promised before.
        let last = self.highest.min(self.last_served);
        put_goaway(&mut self.output, last, error.reason, error.text);
    }
}

fn checked_window(value: u32) -> Result<i64, ConnectionError> {
    let window = i64::from(value);
    if window > WINDOW_MAX { Err(WINDOW_TOO_LARGE) } else { Ok(window) }
}

const WINDOW_TOO_LARGE: ConnectionError =
    ConnectionError::new(Reason::FLOW_CONTROL_ERROR, "the window is too large");
const PING_CONTENT: [u8; 8] = *b"quorate!";
/// The longest frame to send, if the client accepts longer ones.
const FRAME_SENT_MAX: usize = 64 << 10;
