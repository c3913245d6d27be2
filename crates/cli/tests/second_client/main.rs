//! The crate `etcd-client`, a client of etcd, against three members.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod auth;
mod concurrency;
mod keys;
mod leases;
mod members;
#[path = "../support/mod.rs"]
mod support;
mod upkeep;
mod watches;

use std::future::Future;

use etcd_client::{Client, Error};
use support::cluster::TestCluster;
use support::{TEST_TIMEOUT, TestDirectory};
use tonic::{Code, Status};

/// Runs a test against a cluster of three, with one client that knows all of them.
fn with_cluster<F: Future<Output = ()>>(name: &str, test: impl FnOnce(Client, Vec<String>) -> F) {
    let directory = TestDirectory::new(&format!("second-client-{name}"));
    let cluster = TestCluster::new::<3>(&directory, "second");
    let _processes = cluster.start();
    let endpoints = cluster.client_urls();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let client = Client::connect(&endpoints, None).await.unwrap();
        tokio::time::timeout(TEST_TIMEOUT, test(client, endpoints)).await.unwrap();
    });
}

/// The gRPC status of the server's refusal.
fn status(error: Error) -> Status {
    match error {
        Error::GRpcStatus(status) => status,
        other => panic!("not from the server: {other}"),
    }
}

fn assert_refused<T>(result: Result<T, Error>, code: Code, text: &str) {
    let status = status(result.err().unwrap());
    assert_eq!((status.code(), status.message()), (code, text));
}
