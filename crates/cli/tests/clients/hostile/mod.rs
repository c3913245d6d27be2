//! Clients and peers that mean harm, or are broken. Each is told so where it can be told;
//! the server goes on, holds on to no memory and to no connection of theirs.

mod bytes;
mod calls;
mod floods;
mod peers;
mod server;
mod wire;

use server::Server;

/// Every kind of harm, one after the other, to the same server.
#[test]
fn whoever_connects_the_server_goes_on() {
    let server = Server::start("hostile", &[]);
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let mut surprises = Vec::new();
    let count = runtime.block_on(async {
        let slow = bytes::begin_slowly(&server).await;
        let mut count = bytes::send_all(&server, &mut surprises).await;
        count += calls::make_all(&server, &mut surprises).await;
        count += floods::cause_all(&server).await;
        count += peers::send_all(&server).await;
        count + bytes::wait_for_the_end(slow).await
    });
    assert!(surprises.is_empty(), "not as wanted:\n{}", surprises.join("\n"));
    println!("{count} hostile cases");
    assert_eq!(count, CASES, "a case was added or lost");
}

/// How many there are.
const CASES: usize = 97;

/// Clients may take all connections that there are: what the member needs stays its own, and
/// others come in as soon as some go.
#[test]
fn connections_run_out_before_files_do() {
    let server = Server::start("few-files", &["ulimit -n 256"]);
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(floods::take_all_connections(&server, 400));
}

/// Run by hand: `cargo test -p quorate-cli --test clients -- --ignored --nocapture`.
#[test]
#[ignore = "wants 10,000 files twice"]
fn ten_thousand_idle_connections() {
    let server = Server::start("ten-thousand", &[]);
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(floods::idle_connections(&server, 10_000));
}
