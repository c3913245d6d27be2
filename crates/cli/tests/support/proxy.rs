//! A proxy in front of a server that holds a request until the test has done something else:
//! the moment between a command's reading and its writing.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::thread;

/// Forwards connections to `server`. Before bytes of a client that contain `marker` are
/// forwarded for the first time, `action` runs. Returns the address of the proxy.
pub(crate) fn act_before(
    server: &str,
    marker: &str,
    action: impl FnOnce() + Send + 'static,
) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let (server, marker) = (server.trim_start_matches("http://").to_string(), marker.to_string());
    let action = std::sync::Arc::new(std::sync::Mutex::new(Some(action)));
    thread::spawn(move || {
        for client in listener.incoming().map_while(Result::ok) {
            let Ok(server) = TcpStream::connect(&server) else { continue };
            let (from_server, to_client) =
                (server.try_clone().unwrap(), client.try_clone().unwrap());
            thread::spawn(move || forward(from_server, to_client, |_| {}));
            let (marker, action) = (marker.clone(), std::sync::Arc::clone(&action));
            let before = move |bytes: &[u8]| {
                let found = bytes.windows(marker.len()).any(|part| part == marker.as_bytes());
                if found && let Some(action) = action.lock().unwrap().take() {
                    action();
                }
            };
            thread::spawn(move || forward(client, server, before));
        }
    });
    address
}

fn forward(mut from: TcpStream, mut to: TcpStream, before: impl Fn(&[u8])) {
    let mut bytes = [0; 16 << 10];
    while let Ok(count @ 1..) = from.read(&mut bytes) {
        before(&bytes[..count]);
        if to.write_all(&bytes[..count]).is_err() {
            break;
        }
    }
    let _ = to.shutdown(Shutdown::Write);
}
