//! The result of an instrument: a table, JSON, and a chart.

use std::fmt::Write as _;

use serde_json::{Map, Value, json};

use crate::table::BenchTable;

/// Rows by case and system.
pub(super) struct Report {
    title: &'static str,
    columns: &'static [ReportColumn],
    rows: Vec<ReportRow>,
}

/// A number of each row.
pub(super) struct ReportColumn {
    pub(super) name: &'static str,
    /// Its name in JSON, with the unit.
    pub(super) field: &'static str,
    pub(super) decimals: usize,
    /// The column that the chart shows, the less the better.
    pub(super) is_charted: bool,
}

impl ReportColumn {
    pub(super) const fn new(name: &'static str, field: &'static str, decimals: usize) -> Self {
        Self { name, field, decimals, is_charted: false }
    }

    pub(super) const fn charted(self) -> Self {
        Self { is_charted: true, ..self }
    }
}

struct ReportRow {
    case: String,
    system: String,
    /// None where it was not or could not be measured.
    values: Vec<Option<f64>>,
}

impl Report {
    pub(super) fn new(title: &'static str) -> Self {
        Self { title, columns: &[], rows: Vec::new() }
    }

    pub(super) fn set_columns(&mut self, columns: &'static [ReportColumn]) {
        self.columns = columns;
    }

    /// Adds a row with the median of each column over these runs.
    pub(super) fn row(&mut self, case: &str, system: &str, runs: &[Vec<Option<f64>>]) {
        let value = |column| median(runs.iter().filter_map(|run| *run.get(column)?).collect());
        let values = (0..self.columns.len()).map(value).collect();
        self.rows.push(ReportRow { case: case.into(), system: system.into(), values });
    }

    /// One run on a line, for those who follow it.
    pub(super) fn line(&self, run: &[Option<f64>]) -> String {
        let columns = self.columns.iter().zip(run).filter_map(|(column, value)| {
            value.map(|value| format!("{} {value:.*}", column.name, column.decimals))
        });
        columns.collect::<Vec<_>>().join(", ")
    }

    pub(super) fn table(&self) -> BenchTable {
        let mut heads = vec!["case", "system"];
        heads.extend(self.columns.iter().map(|column| column.name));
        let mut table = BenchTable::new(&heads);
        for row in &self.rows {
            let mut cells = vec![row.case.clone(), row.system.clone()];
            let values = row.values.iter().zip(self.columns);
            cells.extend(values.map(|(value, column)| {
                value.map_or("-".into(), |value| format!("{value:.*}", column.decimals))
            }));
            table.row(&cells);
        }
        table
    }

    pub(super) fn json(&self) -> String {
        let rows = self.rows.iter().map(|row| {
            let mut object = Map::new();
            object.insert("case".into(), json!(row.case));
            object.insert("system".into(), json!(row.system));
            for (value, column) in row.values.iter().zip(self.columns) {
                object.insert(column.field.into(), json!(value));
            }
            Value::Object(object)
        });
        let all = json!({"task": self.title, "rows": rows.collect::<Vec<_>>()});
        format!("{all:#}\n")
    }

    /// Bars of the charted column, each case in units of its longest bar.
    pub(super) fn svg(&self) -> String {
        let charted = self.columns.iter().position(|column| column.is_charted);
        let Some(at) = charted else { return String::new() };
        let value = |row: &ReportRow| row.values.get(at).copied().flatten();
        let height = TOP + self.rows.len() as u32 * BAR_STEP + 10;
        let name = self.columns[at].name;
        let mut svg = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDTH}\" height=\"{height}\" \
             font-family=\"sans-serif\" font-size=\"12\">\n\
             <rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n\
             <text x=\"10\" y=\"20\" font-size=\"14\">{} ({name}, less is better)</text>\n",
            escaped(self.title)
        );
        let mut y = TOP;
        for row in &self.rows {
            let same_case = self.rows.iter().filter(|other| other.case == row.case);
            let longest = same_case.filter_map(value).fold(0.0, f64::max);
            let Some(own) = value(row) else { continue };
            let width = if longest > 0.0 { own / longest * f64::from(BAR_WIDTH) } else { 0.0 };
            let color = if row.system == "quorate" { "#2b6cb0" } else { "#a0aec0" };
            let label = escaped(&format!("{} {}", row.case, row.system));
            let text_y = y + 12;
            let number_x = f64::from(LABEL_WIDTH) + width + 6.0;
            let decimals = self.columns[at].decimals;
            let _ = writeln!(
                svg,
                "<text x=\"10\" y=\"{text_y}\">{label}</text>\
                 <rect x=\"{LABEL_WIDTH}\" y=\"{y}\" width=\"{width:.1}\" height=\"14\" fill=\"{color}\"/>\
                 <text x=\"{number_x:.1}\" y=\"{text_y}\">{own:.decimals$}</text>"
            );
            y += BAR_STEP;
        }
        svg.push_str("</svg>\n");
        svg
    }
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

fn median(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied()
}

const WIDTH: u32 = 820;
const LABEL_WIDTH: u32 = 220;
const BAR_WIDTH: u32 = 480;
const BAR_STEP: u32 = 20;
const TOP: u32 = 36;

#[cfg(test)]
mod tests {
    use super::*;

    const COLUMNS: &[ReportColumn] = &[
        ReportColumn::new("ops/s", "perSecond", 0),
        ReportColumn::new("CPU", "cpuSeconds", 1).charted(),
    ];

    fn report() -> Report {
        let mut report = Report::new("server");
        report.set_columns(COLUMNS);
        let runs = [3.0, 1.0, 2.0].map(|cpu| vec![Some(cpu * 1_000.0), Some(cpu)]);
        report.row("put-1", "quorate", &runs);
        report.row("put-1", "e<tcd", &[vec![None, Some(4.0)]]);
        report
    }

    #[test]
    fn rows_hold_the_median_and_dashes_for_what_is_unknown() {
        let table = report().table().to_string();
        assert!(table.contains("put-1  quorate   2000  2.0"), "{table}");
        assert!(table.contains("put-1  e<tcd        -  4.0"), "{table}");
    }

    #[test]
    fn a_line_leaves_out_what_is_unknown() {
        assert_eq!(report().line(&[None, Some(1.25)]), "CPU 1.2");
    }

    #[test]
    fn json_and_chart_hold_every_row() {
        let json: Value = serde_json::from_str(&report().json()).unwrap();
        assert_eq!(json["rows"][0]["cpuSeconds"], 2.0);
        assert!(json["rows"][1]["perSecond"].is_null());
        let svg = report().svg();
        assert!(svg.contains("e&lt;tcd") && svg.contains("width=\"240.0\""), "{svg}");
        assert_eq!(median(Vec::new()), None);
    }
}
