//! Tables as etcdctl draws them, and writing to a pipe that may be gone.

use std::io::{self, Write};
use std::sync::OnceLock;

use tokio::sync::Notify;

/// Rows under headings, with a frame of `+`, `-` and `|`.
pub(crate) struct Table {
    headings: Vec<String>,
    rows: Vec<Vec<String>>,
}

impl Table {
    pub(crate) fn new(headings: &[&str]) -> Self {
        Self {
            headings: headings.iter().map(|text| (*text).to_string()).collect(),
            rows: Vec::new(),
        }
    }

    /// A row that is too short is filled with nothing.
    pub(crate) fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        let mut cells: Vec<String> = cells.into_iter().map(|cell| on_one_line(&cell)).collect();
        cells.resize(self.headings.len(), String::new());
        self.rows.push(cells);
    }

    pub(crate) fn text(&self) -> String {
        let widths: Vec<usize> = (0..self.headings.len()).map(|at| self.width(at)).collect();
        let rule: String =
            widths.iter().map(|width| format!("+{}", "-".repeat(width + 2))).collect();
        let rule = format!("{rule}+\n");
        let mut text = rule.clone();
        // Headings stand in the middle, cells where numbers and names begin alike.
        let headings = self.headings.iter().zip(&widths);
        text.extend(headings.map(|(cell, width)| format!("| {} ", centred(cell, *width))));
        text.push_str("|\n");
        text.push_str(&rule);
        for row in &self.rows {
            let cells = row.iter().zip(&widths);
            text.extend(
                cells
                    .map(|(cell, width)| format!("| {cell}{} ", " ".repeat(width - letters(cell)))),
            );
            text.push_str("|\n");
        }
        text + &rule
    }

    fn width(&self, at: usize) -> usize {
        let cells = self.rows.iter().map(|row| &row[at]);
        cells.chain([&self.headings[at]]).map(|cell| letters(cell)).max().unwrap_or(0)
    }
}

/// Writes to standard output. Who reads it may have gone: that ends the program quietly,
/// unless somebody has asked to be told.
pub(crate) fn out(text: &str) {
    let mut stdout = io::stdout().lock();
    if stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()).is_ok() {
        return;
    }
    match READER_GONE.get() {
        Some(told) => told.notify_one(),
        None => std::process::exit(0),
    }
}

/// For a command that has to tidy up before it ends: from now on this tells when nobody
/// reads any more.
pub(crate) fn reader_gone() -> &'static Notify {
    READER_GONE.get_or_init(Notify::new)
}

static READER_GONE: OnceLock<Notify> = OnceLock::new();

pub(crate) fn line(text: &str) {
    out(&format!("{text}\n"));
}

pub(crate) fn json(value: &serde_json::Value) {
    line(&value.to_string());
}

/// Bytes as people read them.
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

/// `1 entry`, `2 entries`: a number with its word.
pub(crate) fn counted(count: u64, one: &str, many: &str) -> String {
    format!("{count} {}", if count == 1 { one } else { many })
}

fn letters(text: &str) -> usize {
    text.chars().count()
}

fn centred(text: &str, width: usize) -> String {
    let space = width - letters(text);
    let left = space / 2;
    format!("{}{text}{}", " ".repeat(left), " ".repeat(space - left))
}

/// A name from a server must not break the frame or steer the terminal.
fn on_one_line(text: &str) -> String {
    text.chars().map(|letter| if letter.is_control() { '?' } else { letter }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_is_framed() {
        let mut table = Table::new(&["ID", "NAME"]);
        table.row(["1".to_string(), "first".to_string()]);
        table.row(["22".to_string()]);
        let want = "+----+-------+\n\
                    | ID | NAME  |\n\
                    +----+-------+\n\
                    | 1  | first |\n\
                    | 22 |       |\n\
                    +----+-------+\n";
        assert_eq!(table.text(), want);
    }

    #[test]
    fn what_servers_say_stays_in_its_cell() {
        let mut table = Table::new(&["NAME"]);
        table.row(["a\n\x1b[2Jb".to_string()]);
        assert!(table.text().contains("| a??[2Jb |"));
    }

    #[test]
    fn wide_letters_are_counted_once() {
        let mut table = Table::new(&["N"]);
        table.row(["zürich".to_string()]);
        assert!(table.text().starts_with("+--------+\n"));
    }

    #[test]
    fn sizes_are_readable() {
        assert_eq!(bytes(999), "999 B");
        assert_eq!(bytes(20_480), "20.5 kB");
        assert_eq!(bytes(3_000_000_000), "3.0 GB");
        assert_eq!(counted(1, "entry", "entries"), "1 entry");
        assert_eq!(counted(0, "entry", "entries"), "0 entries");
    }
}
