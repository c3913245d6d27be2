//! Telling systemd how the service is, as `Type=notify` wants it.

use std::ffi::OsStr;
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

/// Says it where systemd listens, if it does. A service runs as well without being heard.
pub(crate) fn notify(state: &str) {
    let Some(socket) = std::env::var_os("NOTIFY_SOCKET") else { return };
    if let Err(why) = send(&socket, state) {
        tracing::warn!(%why, "cannot tell systemd how this service is");
    }
}

fn send(socket: &OsStr, state: &str) -> io::Result<()> {
    let address = match socket.as_bytes() {
        [b'@', name @ ..] => SocketAddr::from_abstract_name(name)?,
        _ => SocketAddr::from_pathname(socket)?,
    };
    UnixDatagram::unbound()?.send_to_addr(state.as_bytes(), &address).map(|_| ())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn heard(socket: &UnixDatagram) -> String {
        let mut bytes = [0; 64];
        let length = socket.recv(&mut bytes).unwrap();
        String::from_utf8_lossy(&bytes[..length]).into_owned()
    }

    #[test]
    fn it_is_heard_on_either_kind_of_socket() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("notify");
        let socket = UnixDatagram::bind(&path).unwrap();
        send(path.as_os_str(), "READY=1").unwrap();
        assert_eq!(heard(&socket), "READY=1");

        let name = format!("@quorate-notify-{}", std::process::id());
        let address = SocketAddr::from_abstract_name(&name[1..]).unwrap();
        let socket = UnixDatagram::bind_addr(&address).unwrap();
        send(OsStr::new(&name), "STOPPING=1").unwrap();
        assert_eq!(heard(&socket), "STOPPING=1");

        assert!(send(directory.path().join("nobody").as_os_str(), "READY=1").is_err());
    }
}
