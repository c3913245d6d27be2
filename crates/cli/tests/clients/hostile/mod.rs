//! Hostile or broken clients and peers. Where possible they get an error; the server keeps
//! serving others, and keeps neither memory nor connections of theirs.

mod bytes;
mod calls;
mod floods;
mod peers;
mod server;
mod wire;

use server::HostileTarget;

/// All hostile cases, one after the other, against the same server.
#[test]
fn the_server_survives_hostile_clients() {
    let server = HostileTarget::start("hostile", &[]);
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let mut unexpected = Vec::new();
    let count = runtime.block_on(async {
        let slow = bytes::begin_slowly(&server).await;
        let mut count = bytes::send_all(&server, &mut unexpected).await;
        count += calls::make_all(&server, &mut unexpected).await;
        count += floods::make_all(&server).await;
        count += peers::send_all(&server).await;
        count + bytes::wait_closed(slow).await
    });
    assert!(unexpected.is_empty(), "unexpected replies:\n{}", unexpected.join("\n"));
    println!("{count} hostile cases");
    assert_eq!(count, CASES, "the number of cases changed");
}

/// The number of cases.
const CASES: usize = 99;

/// Clients may use all connections: the files that the member needs stay reserved, and new
/// connections are accepted as soon as others are closed.
#[test]
fn connections_are_limited_before_files_run_out() {
    let server = HostileTarget::start("few-files", &["ulimit -n 256"]);
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(floods::take_all_connections(&server, 400));
}

/// Run by hand: `cargo test -p quorate-cli --test clients -- --ignored --nocapture`.
#[test]
#[ignore = "needs 10,000 open files twice"]
fn ten_thousand_idle_connections_are_served() {
    let server = HostileTarget::start("ten-thousand", &[]);
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(floods::idle_connections(&server, 10_000));
}
