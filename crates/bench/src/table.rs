//! Tables with fixed columns: text left-aligned, numbers right-aligned.

use std::fmt;

pub(crate) struct BenchTable {
    rows: Vec<Vec<String>>,
}

impl BenchTable {
    pub(crate) fn new(heads: &[&str]) -> Self {
        Self { rows: vec![heads.iter().map(ToString::to_string).collect()] }
    }

    pub(crate) fn row(&mut self, cells: &[String]) {
        self.rows.push(cells.to_vec());
    }

    fn width(&self, column: usize) -> usize {
        let cells = self.rows.iter().filter_map(|row| row.get(column));
        cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
    }
}

impl fmt::Display for BenchTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, row) in self.rows.iter().enumerate() {
            let mut line = String::new();
            for (column, cell) in row.iter().enumerate() {
                let width = self.width(column);
                // The first two columns are text.
                let cell =
                    if column < 2 { format!("{cell:<width$}") } else { format!("{cell:>width$}") };
                line.push_str(if column > 0 { "  " } else { "" });
                line.push_str(&cell);
            }
            writeln!(f, "{}", line.trim_end())?;
            if at == 0 {
                writeln!(f, "{}", "-".repeat(line.chars().count()))?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_as_wide_as_their_widest_cell() {
        let mut table = BenchTable::new(&["what", "library", "ns"]);
        table.row(&["a".into(), "ours".into(), "1234.5".into()]);
        table.row(&["longer".into(), "x".into(), "7".into()]);
        let want = "\
what    library      ns
-----------------------
a       ours     1234.5
longer  x             7
";
        assert_eq!(table.to_string(), want);
    }
}
