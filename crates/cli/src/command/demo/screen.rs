//! Full-screen output on a terminal: the alternate screen, redrawn several times per second with
//! the present size. The former screen returns on every end of the demo, a panic included.

use std::io::{IsTerminal, stdout};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::task::JoinHandle;

use super::column::Column;
use super::render::{ColumnPicture, render};
use crate::print;

const REDRAW_INTERVAL: Duration = Duration::from_millis(100);
/// The alternate screen, without a cursor.
const ENTER: &str = "\x1b[?1049h\x1b[?25l\x1b[2J";
const LEAVE: &str = "\x1b[?25h\x1b[?1049l";
/// Where the size is not known.
const DEFAULT_SIZE: (usize, usize) = (80, 24);

/// Whether the demo can use the whole screen.
pub(super) fn is_available() -> bool {
    let is_dumb = std::env::var("TERM").is_ok_and(|term| term == "dumb");
    stdout().is_terminal() && !is_dumb
}

/// While it exists, the columns are drawn.
pub(super) struct FullScreen {
    drawing: JoinHandle<()>,
    /// Held while a frame is printed; false after the return to the former screen.
    active: Arc<Mutex<bool>>,
}

impl FullScreen {
    /// The texts are those above and below the columns.
    pub(super) fn enter(columns: Vec<Arc<Column>>, texts: [String; 2]) -> Self {
        leave_on_panic();
        print::out(ENTER);
        let active = Arc::new(Mutex::new(true));
        let is_active = active.clone();
        let drawing = tokio::spawn(async move {
            // https://no-color.org
            let colours = std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
            loop {
                let frame = frame(&columns, texts.each_ref(), size(), colours);
                // No frame is printed after the return.
                {
                    let active = is_active.lock().unwrap_or_else(PoisonError::into_inner);
                    if *active {
                        print::out(&frame);
                    }
                }
                tokio::time::sleep(REDRAW_INTERVAL).await;
            }
        });
        Self { drawing, active }
    }
}

impl Drop for FullScreen {
    fn drop(&mut self) {
        self.drawing.abort();
        *self.active.lock().unwrap_or_else(PoisonError::into_inner) = false;
        print::out(LEAVE);
    }
}

fn leave_on_panic() {
    let previous = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        print::out(LEAVE);
        previous(panic);
    }));
}

fn size() -> (usize, usize) {
    match rustix::termios::tcgetwinsize(stdout()) {
        Ok(size) if size.ws_col > 0 && size.ws_row > 0 => {
            (usize::from(size.ws_col), usize::from(size.ws_row))
        }
        _ => DEFAULT_SIZE,
    }
}

fn frame(
    columns: &[Arc<Column>],
    texts: [&String; 2],
    size: (usize, usize),
    colours: bool,
) -> String {
    let pictures: Vec<_> = columns
        .iter()
        .map(|column| ColumnPicture {
            title: format!("{} {}", column.name, column.version),
            state: column.state(),
        })
        .collect();
    let elapsed = columns.first().map(|column| column.elapsed()).unwrap_or_default();
    let lines = render(&pictures, texts.map(String::as_str), elapsed, size);
    // Each line overwrites the one before it without clearing first, which would flicker.
    let lines: Vec<_> = lines.iter().map(|line| format!("{}\x1b[K", line.text(colours))).collect();
    format!("\x1b[H{}\x1b[J", lines.join("\r\n"))
}

#[cfg(test)]
mod tests {
    use super::super::column::ColumnOutput;
    use super::*;

    #[test]
    fn a_frame_has_no_more_lines_than_the_terminal() {
        let column = Arc::new(Column::new("quorate", "0.1.0", ColumnOutput::Screen));
        (0..50).for_each(|number| column.log(&format!("event {number}")));
        let texts = ["above", "below"].map(str::to_owned);
        let text = frame(&[column], texts.each_ref(), (80, 24), false);
        assert_eq!(text.matches("\r\n").count(), 23);
        // A line end after the last line would scroll the screen.
        assert!(text.ends_with("\x1b[K\x1b[J"), "{text:?}");
        assert!(text.contains("event 49"), "{text:?}");
    }
}
