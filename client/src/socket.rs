//! One TCP connection on behalf of the core.
//!
//! Invariant: dropping the [`Socket`] ends its task, its connection with it. Deliberately absent: what the bytes mean.

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use crate::core::ConnectionId;

/// Reads that wait for the driver; a server that says more is read later.
pub(crate) const NEWS_MAX: usize = 64;
/// One read, in bytes.
const READ_BYTES: usize = 64 * 1024;

/// What happened to a connection.
#[derive(Debug)]
pub(crate) enum News {
    Connected,
    Bytes(Vec<u8>),
    /// Not connected (any more), and why.
    Gone(String),
}

/// A connection that exists or is being made.
#[derive(Debug)]
pub(crate) struct Socket {
    pub(crate) connection: ConnectionId,
    /// What the core lets out is bounded by its windows, so that this need not be.
    outgoing: mpsc::UnboundedSender<Vec<u8>>,
    task: JoinHandle<()>,
}

impl Socket {
    pub(crate) fn connect(
        connection: ConnectionId,
        endpoint: String,
        news: mpsc::Sender<(ConnectionId, News)>,
    ) -> Socket {
        let (outgoing, frames) = mpsc::unbounded_channel();
        let task = tokio::spawn(async move {
            let reason = match run(connection, &endpoint, &news, frames).await {
                Ok(()) => "the member closed the connection".to_owned(),
                Err(error) => error.to_string(),
            };
            // The driver may be gone, and then nobody wants to know.
            let _ = news.send((connection, News::Gone(reason))).await;
        });
        Socket { connection, outgoing, task }
    }

    pub(crate) fn send(&self, bytes: Vec<u8>) {
        // The task says `Gone` itself when it has ended.
        let _ = self.outgoing.send(bytes);
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn run(
    connection: ConnectionId,
    endpoint: &str,
    news: &mpsc::Sender<(ConnectionId, News)>,
    mut frames: mpsc::UnboundedReceiver<Vec<u8>>,
) -> std::io::Result<()> {
    let stream = TcpStream::connect(endpoint).await?;
    stream.set_nodelay(true)?;
    let (mut from, mut to) = stream.into_split();
    if news.send((connection, News::Connected)).await.is_err() {
        return Ok(());
    }
    let read = async {
        let mut buffer = vec![0; READ_BYTES];
        loop {
            let count = from.read(&mut buffer).await?;
            let bytes = buffer[..count].to_vec();
            if count == 0 || news.send((connection, News::Bytes(bytes))).await.is_err() {
                return Ok(());
            }
        }
    };
    let write = async {
        while let Some(bytes) = frames.recv().await {
            to.write_all(&bytes).await?;
        }
        Ok(())
    };
    tokio::select! {
        ended = read => ended,
        ended = write => ended,
    }
}
