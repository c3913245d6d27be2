//! `quorate bench`: short runs of every operation, and their reports.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod support;

use std::fs;
use std::sync::Mutex;
use std::time::Duration;

use quorate_server::tls::self_signed::CertificateAuthority;
use support::proxy::act_before;
use support::server::{TestServer, json, output_of, start_all, succeed};
use support::{TestDirectory, TestProcess, output_text, quorate, run, run_failing, wait_until};

const SMALL: [&str; 8] = ["--clients", "4", "--connections", "2", "--seconds", "1", "--keys", "20"];

#[test]
fn every_operation_is_measured() {
    let directory = TestDirectory::new("bench");
    let [a, b, c] = TestServer::all(&directory, ["a", "b", "c"]);
    let all = [&a, &b, &c];
    let processes = start_all(&all);
    let pids: Vec<String> = processes.iter().map(|one| one.0.id().to_string()).collect();
    let pids = pids.join(",");
    for operation in ["put", "get", "txn", "mixed", "watch", "lease"] {
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
        let [total, per_100k] = ["serverCpuSeconds", "serverCpuSecondsPer100k"]
            .map(|field| report[field].as_f64().unwrap());
        let done = report["done"].as_f64().unwrap();
        let expected = total * 100_000.0 / done;
        assert!((per_100k - expected).abs() < 1e-6 * per_100k.max(1.0), "{report}");
    }
    let mut arguments = vec!["bench", "get", "--serializable"];
    arguments.extend(SMALL);
    let (text, _) = succeed(&all, &arguments);
    for words in ["get: 4 clients on 3 connections", "throughput", "p50", "p99.9", "errors       0"]
    {
        assert!(text.contains(words), "{text}");
    }
    assert!(!text.contains("CPU"), "CPU time without --pids\n{text}");
    assert!(json(&all, &arguments)["serverCpuSeconds"].is_null());
    let (code, text) =
        run_failing(&["bench", "get", "--pids", "4294967295", "--endpoints", &a.client_url]);
    assert_eq!(code, Some(1), "{text}");
    assert!(text.contains("cannot measure process 4294967295"), "{text}");
}

#[test]
fn failures_are_counted_by_their_error() {
    let directory = TestDirectory::new("bench-errors");
    let [a, d] = TestServer::all(&directory, ["a", "d"]);
    let _a = start_all(&[&a]);
    succeed(&[&a], &["member", "add", &d.pair(), "--learner"]);
    let _d = d.start_joining(&[&a, &d]);
    let is_learner = || {
        output_of(&[&d], &["status"]).status.code() == Some(1)
            && output_text(&output_of(&[&d], &["status"])).contains("is a learner")
    };
    wait_until(is_learner, "d is a learner");
    let mut arguments = vec!["bench", "txn"];
    arguments.extend(SMALL);

    // A learner is skipped.
    let (_, stderr) = succeed(&[&a, &d], &arguments);
    assert!(stderr.contains("skipped endpoint: ") && stderr.contains("is a learner"), "{stderr}");
    // With --ask-learners it is used; it refuses, and each refusal is counted.
    arguments.push("--ask-learners");
    let report = json(&[&a, &d], &arguments);
    assert!(report["done"].as_u64().unwrap() > 0, "{report}");
    let errors = report["errors"].as_object().unwrap();
    assert_eq!(errors.len(), 1, "{report}");
    let (error, count) = errors.iter().next().unwrap();
    assert!(error.contains("not supported for learner"), "{report}");
    assert!(count.as_u64().unwrap() > 0, "{report}");
    // Without any success the command fails.
    let output = output_of(&[&d], &arguments);
    assert_eq!(output.status.code(), Some(1));
    let text = output_text(&output);
    assert!(text.contains("no request succeeded: ") && text.contains(" x etcdserver: "), "{text}");
}

#[test]
fn requests_to_a_killed_member_fail_and_others_go_on() {
    let directory = TestDirectory::new("bench-kill");
    let [a, b, c] = TestServer::all(&directory, ["a", "b", "c"]);
    let mut processes = start_all(&[&a, &b, &c]);
    let killed = Mutex::new(processes.pop());
    // The key of one of the first thousand requests or so.
    let proxy = act_before(&a.client_url, "bench/000000000500", move || {
        drop(killed.lock().unwrap().take());
    });
    let endpoints = [format!("http://{proxy}"), b.client_url.clone(), c.client_url.clone()];
    let arguments = ["bench", "put", "--seconds", "3", "--keys", "1000", "--clients", "12"];
    let more = ["--command-timeout", "300ms", "-w", "json", "--endpoints", &endpoints.join(",")];
    let report = run(&[&arguments[..], &more].concat());
    let report: serde_json::Value = serde_json::from_str(&report).unwrap();
    assert!(report["done"].as_u64().unwrap() > 0, "{report}");
    let errors = report["errors"].as_object().unwrap();
    let refused = errors.iter().find(|(error, _)| error.starts_with("tcp connect error: "));
    assert!(refused.is_some_and(|(_, count)| count.as_u64().unwrap() > 1), "{report}");
}

#[test]
fn clients_connect_again_to_a_member_that_was_restarted() {
    let directory = TestDirectory::new("bench-restart");
    let [a] = TestServer::all(&directory, ["a"]);
    let process = start_all(&[&a]);
    let bench =
        quorate().args(["bench", "put", "--seconds", "3600", "--endpoints", &a.client_url]).spawn();
    // Ends it when the test ends.
    let _bench = TestProcess(bench.unwrap());
    let revision = || json(&[&a], &["get", "x"])["header"]["revision"].as_u64().unwrap();
    wait_until(|| revision() > 100, "the load has begun");
    drop(process);
    let _a = a.start_new(&[&a]);
    a.wait_serving();
    let restarted = revision();
    wait_until(|| revision() > restarted + 100, "the load goes on");
}

#[test]
fn load_uses_tls_and_the_token_of_its_user() {
    let directory = TestDirectory::new("bench-tls");
    let [mut a] = TestServer::all(&directory, ["a"]);
    let authority = CertificateAuthority::new("ca", Duration::from_secs(3600)).unwrap();
    let server = authority.issue("a", &["127.0.0.1".to_owned()]).unwrap();
    let file = |name: &str, content: &str| {
        let path = directory.path.join(name);
        fs::write(&path, content).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let ca = file("ca.pem", &authority.certificate());
    let (cert, key) = (file("a.pem", &server.certificate), file("a.key", &server.key));
    let flags = ["--cert-file", &cert, "--key-file", &key, "--bcrypt-cost", "4"];
    a.extra_flags = flags.map(str::to_owned).to_vec();
    a.client_url = a.client_url.replace("http:", "https:");
    let _a = a.start_new(&[&a]);
    let output = |line: &str| {
        let words: Vec<&str> = line.split(' ').chain(["--cacert", &ca]).collect();
        output_of(&[&a], &words)
    };
    wait_until(|| output("status").status.success(), "a serves requests");
    for line in ["user add root:r", "user add u:u", "user grant-role root root", "auth enable"] {
        assert!(output(line).status.success(), "{line}");
    }
    let bench = |user: &str| output_text(&output(&format!("bench put --user {user} --seconds 1")));
    let text = bench("root:r");
    assert!(text.contains("errors       0"), "{text}");
    let text = bench("u:u");
    assert!(text.contains("no request succeeded: etcdserver: permission denied"), "{text}");
}
