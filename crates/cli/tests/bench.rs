//! Short loads of every kind, and what is told about them.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod common;

use common::member::{Member, asked, done, found_all, json};
use common::{Place, both, run_refused, wait_until};

const SMALL: [&str; 8] = ["--clients", "4", "--connections", "2", "--seconds", "1", "--keys", "20"];

#[test]
fn every_kind_of_load_is_measured() {
    let place = Place::new("bench");
    let [a, b, c] = Member::all(&place, ["a", "b", "c"]);
    let all = [&a, &b, &c];
    let running = found_all(&all);
    let pids: Vec<String> = running.iter().map(|one| one.0.id().to_string()).collect();
    let pids = pids.join(",");
    for operation in ["put", "get", "txn", "watch"] {
        let mut arguments = vec!["bench", operation, "--pids", &pids];
        arguments.extend(SMALL);
        if operation == "watch" {
            arguments.extend(["--watchers", "3"]);
        }
        let report = json(&all, &arguments);
        assert_eq!(report["operation"], operation, "{report}");
        assert_eq!(
            (&report["clients"], &report["connections"]),
            (&4.into(), &3.into()),
            "{report}"
        );
        for field in ["done", "perSecond", "p50Micros", "longestMicros", "longestGapMicros"] {
            assert!(report[field].as_f64().unwrap() > 0.0, "no {field} in {report}");
        }
        let [p50, p99, p999] =
            ["p50Micros", "p99Micros", "p999Micros"].map(|field| report[field].as_u64().unwrap());
        assert!(p50 <= p99 && p99 <= p999, "{report}");
        assert!(report["seconds"].as_f64().unwrap() >= 1.0, "{report}");
        assert_eq!(report["errors"], serde_json::json!({}), "{report}");
        assert_eq!(report["eventsLost"], 0, "{report}");
        let [all, each] = ["serverCpuSeconds", "serverCpuSecondsPer100k"]
            .map(|field| report[field].as_f64().unwrap());
        let done = report["done"].as_f64().unwrap();
        assert!((each - all * 100_000.0 / done).abs() < 1e-6 * each.max(1.0), "{report}");
    }
    let mut arguments = vec!["bench", "get", "--serializable"];
    arguments.extend(SMALL);
    let (text, _) = done(&all, &arguments);
    for words in ["get: 4 clients on 3 connections", "throughput", "p50", "p99.9", "errors       0"]
    {
        assert!(text.contains(words), "{text}");
    }
    assert!(!text.contains("CPU"), "it was not asked for\n{text}");
    assert!(json(&all, &arguments)["serverCpuSeconds"].is_null());
    let (code, text) =
        run_refused(&["bench", "get", "--pids", "4294967295", "--endpoints", &a.client]);
    assert_eq!(code, Some(1), "{text}");
    assert!(text.contains("cannot measure process 4294967295"), "{text}");
}

#[test]
fn what_fails_is_counted_and_named() {
    let place = Place::new("bench-errors");
    let [a, d] = Member::all(&place, ["a", "d"]);
    let _a = found_all(&[&a]);
    done(&[&a], &["member", "add", &d.pair(), "--learner"]);
    let _d = d.join(&[&a, &d]);
    let learns = || {
        asked(&[&d], &["status"]).status.code() == Some(1)
            && both(&asked(&[&d], &["status"])).contains("is a learner")
    };
    wait_until(learns, "d is a learner");
    let mut arguments = vec!["bench", "txn"];
    arguments.extend(SMALL);

    // A learner is left out.
    let (_, told) = done(&[&a, &d], &arguments);
    assert!(told.contains("left out: ") && told.contains("is a learner"), "{told}");
    // Asked all the same it refuses, and each refusal counts.
    arguments.push("--ask-learners");
    let report = json(&[&a, &d], &arguments);
    assert!(report["done"].as_u64().unwrap() > 0, "{report}");
    let errors = report["errors"].as_object().unwrap();
    assert_eq!(errors.len(), 1, "{report}");
    let (why, count) = errors.iter().next().unwrap();
    assert!(why.contains("not supported for learner") && count.as_u64().unwrap() > 0, "{report}");
    // If nothing succeeds that is a failure.
    let output = asked(&[&d], &arguments);
    assert_eq!(output.status.code(), Some(1));
    let text = both(&output);
    assert!(text.contains("nothing succeeded: ") && text.contains(" x etcdserver: "), "{text}");
}
