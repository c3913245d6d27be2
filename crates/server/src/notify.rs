//! Telling systemd how the service is, as `Type=notify` wants it.

use std::os::unix::net::UnixDatagram;

/// Says it where systemd listens, if it does. A service runs as well without being heard.
pub(crate) fn notify(state: &str) {
    let Some(socket) = std::env::var_os("NOTIFY_SOCKET") else { return };
    let sent = UnixDatagram::unbound().and_then(|from| match socket.to_str() {
        Some(name) if name.starts_with('@') => send_abstract(&from, &name[1..], state),
        _ => from.send_to(state.as_bytes(), &socket),
    });
    if let Err(why) = sent {
        tracing::warn!(%why, "cannot tell systemd how this service is");
    }
}

fn send_abstract(from: &UnixDatagram, name: &str, state: &str) -> std::io::Result<usize> {
    use std::os::linux::net::SocketAddrExt;
    let address = std::os::unix::net::SocketAddr::from_abstract_name(name)?;
    from.send_to_addr(state.as_bytes(), &address)
}
