//! What the demo prints at the end: the figures, the table of two clusters, and what to try.

use super::Contestant;
use super::cluster::DemoCluster;
use super::load::LoadSummary;
use super::procedure::{ProcedureResult, throttle_text};
use crate::command::bench::millis;
use crate::error::CliError;
use crate::print::{self, TextTable, line};

pub(super) fn print(contestants: &[Contestant], results: &[ProcedureResult]) {
    line("");
    if let [one] = results {
        return print_load(&one.load);
    }
    for (contestant, result) in contestants.iter().zip(results) {
        line(&format!("{} {}", contestant.column.name, contestant.column.version));
        print_load(&result.load);
        for (number, step) in result.operator_steps.iter().enumerate() {
            line(&format!("  step {}: {step}", number + 1));
        }
        line("");
    }
    let names: Vec<_> = contestants.iter().map(|one| one.column.name.as_str()).collect();
    print::out(&table(&names, results));
    line("");
    line(&format!("{}.", throttle_text(contestants[0].clients)));
    line("The table compares interruptions, not throughput; for that see 'quorate bench'.");
    if results.iter().any(|result| result.operator_steps.iter().any(|step| is_etcd(step))) {
        line(
            "With 'etcdctl move-leader' before the removal, one more step, etcd's gap is shorter.",
        );
    }
}

fn is_etcd(step: &str) -> bool {
    step.starts_with("etcdctl ")
}

fn print_load(load: &LoadSummary) {
    line(&format!(
        "{} writes, p50 {}, p99 {}",
        load.times.total(),
        millis(load.times.per_mille(500)),
        millis(load.times.per_mille(990))
    ));
    line(&format!("longest write gap: {}", millis(load.gap)));
    line(&format!("failed requests: {}", load.failed()));
    for (error, count) in &load.errors {
        line(&format!("  {count} x {error}"));
    }
    line(&format!(
        "acknowledged writes read back: {} of {}",
        load.checked - load.lost,
        load.checked
    ));
}

fn table(names: &[&str], results: &[ProcedureResult]) -> String {
    let mut table = TextTable::new(&[&["REPLACEMENT OF A MEMBER"], names].concat());
    let mut row = |title: &str, cell: &dyn Fn(&ProcedureResult) -> String| {
        table.row([title.to_owned()].into_iter().chain(results.iter().map(cell)));
    };
    row("longest write gap", &|result| millis(result.load.gap));
    row("failed requests", &|result| result.load.failed().to_string());
    row("time until done", &|result| format!("{:.1} s", result.replacement_took.as_secs_f64()));
    row("steps for the operator", &|result| result.operator_steps.len().to_string());
    row("acknowledged writes lost", &|result| result.load.lost.to_string());
    table.text()
}

/// Fails if a cluster has lost a write.
pub(super) fn check(results: &[ProcedureResult]) -> Result<(), CliError> {
    match results.iter().map(|result| result.load.lost).sum::<u64>() {
        0 => Ok(()),
        lost => Err(CliError::failed(format!("{lost} acknowledged writes are lost"))),
    }
}

pub(super) fn print_next_steps(cluster: &DemoCluster, members: [usize; 3]) {
    let endpoints = cluster.endpoints(&members).join(",");
    // As it was started: it may not be in $PATH.
    let program = std::env::args().next().unwrap_or_else(|| "quorate".to_string());
    line("");
    line("the cluster runs until you press Ctrl-C; try in another terminal:");
    line(&format!("  export ETCDCTL_API=3 ETCDCTL_ENDPOINTS={endpoints}"));
    if let Some([cacert, cert, key]) = cluster.client_files() {
        let [cacert, cert, key] = [cacert.display(), cert.display(), key.display()];
        line(&format!("  export ETCDCTL_CACERT={cacert} ETCDCTL_CERT={cert} ETCDCTL_KEY={key}"));
    }
    for command in ["put hello world", "get hello", "status", "member list"] {
        line(&format!("  {program} {command}"));
    }
    line("etcdctl works as well, with the same variables:");
    line("  etcdctl get hello");
    line("  etcdctl endpoint status -w table");
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::time::Duration;

    use super::*;
    use crate::histogram::LatencyHistogram;

    fn result(gap: u64, steps: &[&str]) -> ProcedureResult {
        ProcedureResult {
            load: LoadSummary {
                times: LatencyHistogram::new(),
                gap: Duration::from_millis(gap),
                errors: BTreeMap::from([("unavailable".to_owned(), gap / 500)]),
                checked: 400,
                lost: 0,
            },
            replacement_took: Duration::from_millis(1500),
            operator_steps: steps.iter().map(|step| (*step).to_owned()).collect(),
            members: [2, 3, 4],
        }
    }

    #[test]
    fn two_clusters_are_compared_in_a_table() {
        let results = [result(12, &["replace", "start"]), result(1300, &["a", "b", "c", "d"])];
        let text = table(&["quorate", "etcd"], &results);
        for row in [
            "| longest write gap        | 12.00 ms | 1300.00 ms |",
            "| failed requests          | 0        | 2          |",
            "| time until done          | 1.5 s    | 1.5 s      |",
            "| steps for the operator   | 2        | 4          |",
        ] {
            assert!(text.contains(row), "no '{row}' in\n{text}");
        }
        assert!(check(&results).is_ok());
    }

    #[test]
    fn a_lost_write_is_an_error() {
        let mut lost = result(1, &[]);
        lost.load.lost = 2;
        assert!(check(&[lost]).unwrap_err().to_string().contains("2 acknowledged writes"));
    }
}
