//! The crate `etcd-client`, which was written for etcd, against three members.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

#[path = "../common/mod.rs"]
mod common;
mod keys;
mod leases;
mod members;
mod upkeep;
mod watches;

use std::fs;
use std::future::Future;

use common::cluster::Cluster;
use common::{PATIENCE, Place};
use etcd_client::{Client, Error};
use tonic::{Code, Status};

/// Runs a talk with a cluster of three, through one client that knows all of them.
fn with_cluster<F: Future<Output = ()>>(name: &str, talk: impl FnOnce(Client, Vec<String>) -> F) {
    let place = Place::new(&format!("second-client-{name}"));
    fs::create_dir_all(&place.path).unwrap();
    let cluster = Cluster::new(&place, "second", 3);
    let _running = cluster.start();
    let endpoints: Vec<String> = (0..3).map(|number| cluster.client(number)).collect();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let client = Client::connect(&endpoints, None).await.unwrap();
        tokio::time::timeout(PATIENCE, talk(client, endpoints)).await.unwrap();
    });
}

/// What the server refused with.
fn status(why: Error) -> Status {
    match why {
        Error::GRpcStatus(status) => status,
        other => panic!("not from the server: {other}"),
    }
}

fn assert_refused<T>(result: Result<T, Error>, code: Code, text: &str) {
    let status = status(result.err().unwrap());
    assert_eq!((status.code(), status.message()), (code, text));
}
