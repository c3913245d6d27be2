//! Output: tables as etcdctl draws them, JSON, and text to a pipe that may be closed.

use std::io::{self, Write};
use std::sync::OnceLock;

use serde_json::json;
use tokio::sync::Notify;

use crate::arguments::WriteOut;

/// Rows under headings, with a frame of `+`, `-` and `|`.
pub(crate) struct TextTable {
    headings: Vec<String>,
    rows: Vec<Vec<String>>,
}

impl TextTable {
    pub(crate) fn new(headings: &[&str]) -> Self {
        Self {
            headings: headings.iter().map(|text| (*text).to_string()).collect(),
            rows: Vec::new(),
        }
    }

    /// Adds a row. Missing cells stay empty.
    pub(crate) fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        let mut cells: Vec<String> =
            cells.into_iter().map(|cell| without_control_characters(&cell)).collect();
        cells.resize(self.headings.len(), String::new());
        self.rows.push(cells);
    }

    pub(crate) fn text(&self) -> String {
        let widths: Vec<usize> =
            (0..self.headings.len()).map(|column| self.width(column)).collect();
        let rule: String =
            widths.iter().map(|width| format!("+{}", "-".repeat(width + 2))).collect();
        let rule = format!("{rule}+\n");
        let mut text = rule.clone();
        // Headings are centred, cells are left-aligned.
        let headings = self.headings.iter().zip(&widths);
        text.extend(headings.map(|(cell, width)| format!("| {} ", centred(cell, *width))));
        text.push_str("|\n");
        text.push_str(&rule);
        for row in &self.rows {
            let cells = row.iter().zip(&widths);
            text.extend(
                cells.map(|(cell, width)| {
                    format!("| {cell}{} ", " ".repeat(width - characters(cell)))
                }),
            );
            text.push_str("|\n");
        }
        text + &rule
    }

    fn width(&self, column: usize) -> usize {
        let cells = self.rows.iter().map(|row| &row[column]);
        cells.chain([&self.headings[column]]).map(|cell| characters(cell)).max().unwrap_or(0)
    }
}

/// Writes to standard output. If the reader has closed the pipe, the program exits quietly,
/// unless the command has called [`pipe_closed`].
pub(crate) fn out(text: &str) {
    raw(text.as_bytes());
}

/// The same for bytes, which need not be text.
pub(crate) fn raw(bytes: &[u8]) {
    let mut stdout = io::stdout().lock();
    if stdout.write_all(bytes).and_then(|()| stdout.flush()).is_ok() {
        return;
    }
    match PIPE_CLOSED.get() {
        Some(closed) => closed.notify_one(),
        None => std::process::exit(0),
    }
}

/// For a command that has to clean up before it exits: notified when the reader of standard
/// output has closed the pipe.
pub(crate) fn pipe_closed() -> &'static Notify {
    PIPE_CLOSED.get_or_init(Notify::new)
}

static PIPE_CLOSED: OnceLock<Notify> = OnceLock::new();

pub(crate) fn line(text: &str) {
    out(&format!("{text}\n"));
}

pub(crate) fn json(value: &serde_json::Value) {
    line(&value.to_string());
}

/// What a command says besides its result, on standard error: progress, and what to do next.
pub(crate) fn note(write_out: WriteOut, text: &str) {
    match write_out {
        WriteOut::Table => eprintln!("{text}"),
        WriteOut::Json => eprintln!("{}", json!({ "note": text })),
    }
}

/// A number of bytes with a unit.
pub(crate) fn bytes(count: u64) -> String {
    let units = ["B", "kB", "MB", "GB", "TB"];
    let mut value = count as f64;
    let mut unit = 0;
    while value >= 1000.0 && unit + 1 < units.len() {
        value /= 1000.0;
        unit += 1;
    }
    if unit == 0 { format!("{count} B") } else { format!("{value:.1} {}", units[unit]) }
}

/// A number with its noun: `1 entry`, `2 entries`.
pub(crate) fn counted(count: u64, one: &str, many: &str) -> String {
    format!("{count} {}", if count == 1 { one } else { many })
}

fn characters(text: &str) -> usize {
    text.chars().count()
}

fn centred(text: &str, width: usize) -> String {
    let space = width - characters(text);
    let left = space / 2;
    format!("{}{text}{}", " ".repeat(left), " ".repeat(space - left))
}

/// A name from a server must not break the frame or send control codes to the terminal.
fn without_control_characters(text: &str) -> String {
    text.chars().map(|character| if character.is_control() { '?' } else { character }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_have_a_frame() {
        let mut table = TextTable::new(&["ID", "NAME"]);
        table.row(["1".to_string(), "first".to_string()]);
        table.row(["22".to_string()]);
        let expected = "+----+-------+\n\
                    | ID | NAME  |\n\
                    +----+-------+\n\
                    | 1  | first |\n\
                    | 22 |       |\n\
                    +----+-------+\n";
        assert_eq!(table.text(), expected);
    }

    #[test]
    fn control_characters_are_replaced() {
        let mut table = TextTable::new(&["NAME"]);
        table.row(["a\n\x1b[2Jb".to_string()]);
        assert!(table.text().contains("| a??[2Jb |"));
    }

    #[test]
    fn width_counts_characters_not_bytes() {
        let mut table = TextTable::new(&["N"]);
        table.row(["zürich".to_string()]);
        assert!(table.text().starts_with("+--------+\n"));
    }

    #[test]
    fn sizes_have_units_and_nouns_agree() {
        assert_eq!(bytes(999), "999 B");
        assert_eq!(bytes(20_480), "20.5 kB");
        assert_eq!(bytes(3_000_000_000), "3.0 GB");
        assert_eq!(counted(1, "entry", "entries"), "1 entry");
        assert_eq!(counted(0, "entry", "entries"), "0 entries");
    }
}
