//! Sockets as this server wants them, made before a ring takes them.
//!
//! Invariant: every socket made here is in blocking mode (the ring waits for it, nobody blocks on it), closes on exec,
//! and sends small frames at once (TCP_NODELAY). Accepted connections inherit their listener's options, so
//! accepting costs no further call. Deliberately absent: name resolution.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use socket2::{Domain, Protocol, SockRef, Socket, TcpKeepalive, Type};

/// Options of TCP sockets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SocketOptions {
    /// Idle time before the first keep-alive probe, and between probes; `None` for no probing.
    pub keepalive_interval: Option<Duration>,
    /// Unanswered probes after which the connection is dead.
    pub keepalive_probes: u32,
    /// How long sent data may stay unacknowledged before the connection is dead; `None` for the kernel's default.
    pub user_timeout: Option<Duration>,
}

impl Default for SocketOptions {
    fn default() -> Self {
        Self { keepalive_interval: Some(Duration::from_secs(10)), keepalive_probes: 3, user_timeout: None }
    }
}

/// How long an address in use is asked for again: the kernel takes down the ring of a killed process, and the
/// listeners in it, a moment after the process is gone.
const BIND_WAIT: Duration = Duration::from_millis(1000);
const BIND_PAUSE: Duration = Duration::from_millis(20);

/// Listens on the address (SO_REUSEADDR). Blocks for up to a second while the address is in use. The kernel caps the
/// backlog at `net.core.somaxconn`.
pub fn listen(address: SocketAddr, backlog: u32, options: &SocketOptions) -> io::Result<OwnedFd> {
    let socket = new_socket(address, options)?;
    socket.set_reuse_address(true)?;
    if address.is_ipv6() {
        socket.set_only_v6(true)?;
    }
    let backlog = i32::try_from(backlog).unwrap_or(i32::MAX);
    let deadline = Instant::now() + BIND_WAIT;
    while_in_use(deadline, || socket.bind(&address.into()))?;
    while_in_use(deadline, || socket.listen(backlog))?;
    Ok(socket.into())
}

/// Tries again until the deadline while the address is in use.
fn while_in_use(deadline: Instant, mut attempt: impl FnMut() -> io::Result<()>) -> io::Result<()> {
    loop {
        match attempt() {
            Err(error) if error.kind() == io::ErrorKind::AddrInUse && Instant::now() < deadline => {
                std::thread::sleep(BIND_PAUSE);
            }
            outcome => return outcome,
        }
    }
}

/// A socket that can be connected to the address, perhaps from a given local one.
pub fn outgoing(
    address: SocketAddr,
    local: Option<SocketAddr>,
    options: &SocketOptions,
) -> io::Result<OwnedFd> {
    let socket = new_socket(address, options)?;
    if let Some(local) = local {
        socket.bind(&local.into())?;
    }
    Ok(socket.into())
}

fn new_socket(address: SocketAddr, options: &SocketOptions) -> io::Result<Socket> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    socket.set_tcp_nodelay(true)?;
    if let Some(interval) = options.keepalive_interval {
        let keepalive = TcpKeepalive::new().with_time(interval).with_interval(interval);
        socket.set_tcp_keepalive(&keepalive.with_retries(options.keepalive_probes))?;
    }
    socket.set_tcp_user_timeout(options.user_timeout)?;
    Ok(socket)
}

/// The other side's address.
pub fn peer_address(socket: impl AsFd) -> io::Result<SocketAddr> {
    ip_address(SockRef::from(&socket).peer_addr()?)
}

/// This side's address; tells the port of a listener on port 0.
pub fn local_address(socket: impl AsFd) -> io::Result<SocketAddr> {
    ip_address(SockRef::from(&socket).local_addr()?)
}

fn ip_address(address: socket2::SockAddr) -> io::Result<SocketAddr> {
    address.as_socket().ok_or_else(|| io::Error::from(io::ErrorKind::Unsupported))
}
