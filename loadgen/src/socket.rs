//! One connection at a time, as the client core asks for it.
//!
//! Invariant: nothing here waits. Bytes that the socket does not take are kept, up to a bound, and sent when it does; a
//! peer that takes none for so long that the bound is reached is given up. Deliberately absent: timeouts; the core has
//! them, and says when to stop connecting.

use std::future::Future;
use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::pin::Pin;
use std::task::{Context, Poll};

use futures_io::{AsyncRead, AsyncWrite};
use glommio::net::TcpStream;
use lockstep_client::core::ConnectionId;

/// What may wait for the socket to take it, in bytes. A closed loop asks for little at a time.
const UNSENT_BYTES_MAX: usize = 4 * 1024 * 1024;

/// What the core is to be told.
#[derive(Debug)]
pub(crate) enum News {
    Connected(ConnectionId),
    Failed(ConnectionId, String),
    /// So many bytes are in the buffer.
    Bytes(ConnectionId, usize),
    Closed(ConnectionId, String),
}

enum Link {
    Absent,
    Connecting(ConnectionId, Pin<Box<dyn Future<Output = io::Result<TcpStream>>>>),
    Open(ConnectionId, TcpStream),
}

pub(crate) struct Socket {
    link: Link,
    out: Vec<u8>,
    /// How much of `out` has been sent.
    sent: usize,
}

impl Socket {
    pub(crate) fn new() -> Socket {
        Socket { link: Link::Absent, out: Vec::new(), sent: 0 }
    }

    /// Begins to connect, in place of whatever there was.
    pub(crate) fn connect(&mut self, connection: ConnectionId, endpoint: String) {
        self.clear();
        self.link = Link::Connecting(connection, Box::pin(connect(endpoint)));
    }

    /// Keeps bytes for [`Socket::poll_send`].
    pub(crate) fn send(&mut self, connection: ConnectionId, bytes: &[u8]) {
        if matches!(self.link, Link::Open(open, _) if open == connection) {
            self.out.extend_from_slice(bytes);
        }
    }

    pub(crate) fn disconnect(&mut self, connection: ConnectionId) {
        let is_this = match self.link {
            Link::Absent => false,
            Link::Connecting(this, _) | Link::Open(this, _) => this == connection,
        };
        if is_this {
            self.clear();
        }
    }

    /// What has happened; bytes that came are in the buffer.
    pub(crate) fn poll_news(&mut self, cx: &mut Context<'_>, buffer: &mut [u8]) -> Poll<News> {
        match &mut self.link {
            Link::Absent => Poll::Pending,
            Link::Connecting(connection, connecting) => {
                let connection = *connection;
                match std::task::ready!(connecting.as_mut().poll(cx)) {
                    Ok(stream) => {
                        self.link = Link::Open(connection, stream);
                        Poll::Ready(News::Connected(connection))
                    }
                    Err(error) => {
                        self.clear();
                        Poll::Ready(News::Failed(connection, error.to_string()))
                    }
                }
            }
            Link::Open(connection, stream) => {
                let connection = *connection;
                let trouble = match std::task::ready!(Pin::new(stream).poll_read(cx, buffer)) {
                    Ok(0) => "closed the connection".to_owned(),
                    Ok(count) => return Poll::Ready(News::Bytes(connection, count)),
                    Err(error) => error.to_string(),
                };
                self.clear();
                Poll::Ready(News::Closed(connection, trouble))
            }
        }
    }

    /// Sends what the socket takes; news only when that is the end of it.
    pub(crate) fn poll_send(&mut self, cx: &mut Context<'_>) -> Option<News> {
        let Link::Open(connection, stream) = &mut self.link else { return None };
        let connection = *connection;
        while self.sent < self.out.len() {
            let trouble = match Pin::new(&mut *stream).poll_write(cx, &self.out[self.sent..]) {
                Poll::Ready(Ok(count)) if count > 0 => {
                    self.sent += count;
                    continue;
                }
                Poll::Ready(Ok(_)) => "takes no bytes".to_owned(),
                Poll::Ready(Err(error)) => error.to_string(),
                Poll::Pending if self.out.len() - self.sent <= UNSENT_BYTES_MAX => {
                    // What is kept never holds more sent bytes than unsent ones for long.
                    if self.sent > self.out.len() / 2 {
                        self.out.drain(..self.sent);
                        self.sent = 0;
                    }
                    return None;
                }
                Poll::Pending => "does not read what it is sent".to_owned(),
            };
            self.clear();
            return Some(News::Closed(connection, trouble));
        }
        self.out.clear();
        self.sent = 0;
        None
    }

    fn clear(&mut self) {
        self.link = Link::Absent;
        self.out.clear();
        self.sent = 0;
    }
}

async fn connect(endpoint: String) -> io::Result<TcpStream> {
    let address = match endpoint.parse::<SocketAddr>() {
        Ok(address) => address,
        // Asking the resolver blocks, so that it is left to the executor's other thread.
        Err(_) => glommio::executor().spawn_blocking(move || resolve(&endpoint)).await?,
    };
    let stream = TcpStream::connect(address).await.map_err(io::Error::from)?;
    stream.set_nodelay(true).map_err(io::Error::from)?;
    Ok(stream)
}

fn resolve(endpoint: &str) -> io::Result<SocketAddr> {
    let unknown = || io::Error::new(io::ErrorKind::NotFound, "the name has no address");
    endpoint.to_socket_addrs()?.next().ok_or_else(unknown)
}
