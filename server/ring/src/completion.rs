//! What comes back from a ring: one closed enum.
//!
//! Invariant: every operation yields exactly one last completion (the one that says so for an accept or a receive that
//! keeps going), whatever happens to it, and memory it was given comes back in that one.
//! Deliberately absent: raw results; errors are `io::Error`, a cancelled operation's is `ECANCELED`.
#![allow(unsafe_code)]

use std::fmt;
use std::io;
use std::ops::Deref;
use std::os::fd::OwnedFd;
use std::ptr::NonNull;

use crate::aligned::AlignedBuf;
use crate::doorbell::DoorbellId;
use crate::ring::{GroupId, Ring};

/// The caller's word for an operation, returned with each of its completions. The ring does not interpret it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Token(pub u64);

/// Received bytes, in a buffer lent by the ring; dropping them gives the buffer back to the kernel.
///
/// Keep one no longer than the turn: while it lives its group is one buffer short.
pub struct Chunk<'r> {
    pub(crate) ring: &'r Ring,
    pub(crate) group: GroupId,
    pub(crate) buffer_id: u16,
    pub(crate) base: NonNull<u8>,
    pub(crate) len: usize,
}

impl Deref for Chunk<'_> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: the kernel filled `len` bytes of this buffer (zeroed at birth, so initialized in any case) and has
        // given it up; it is lent again only in `drop`. The group's memory lives as long as the ring, borrowed here.
        unsafe { std::slice::from_raw_parts(self.base.as_ptr(), self.len) }
    }
}

impl Drop for Chunk<'_> {
    fn drop(&mut self) {
        self.ring.lend_again(self.group, self.buffer_id);
    }
}

impl fmt::Debug for Chunk<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Chunk({} bytes)", self.len)
    }
}

/// One completion.
#[derive(Debug)]
pub enum Completion<'r> {
    /// A connection came in. It is the caller's; [`Ring::adopt_socket`] takes it, options may be set before.
    Accepted {
        /// The accept's token.
        token: Token,
        /// The connection, with the options inherited from its listener.
        fd: OwnedFd,
        /// Whether the accept goes on; if not, and it was multishot, it must be armed again.
        is_armed: bool,
    },
    /// The accept ended. With EMFILE, ENFILE, ENOMEM or ENOBUFS arm it again after a pause.
    AcceptFailed {
        /// The accept's token.
        token: Token,
        /// Why.
        error: io::Error,
    },
    /// Bytes arrived; never empty.
    Received {
        /// The receive's token.
        token: Token,
        /// The bytes.
        bytes: Chunk<'r>,
        /// Whether the receive goes on; if not it must be armed again to hear more.
        is_armed: bool,
    },
    /// The group had no buffer left; nothing is lost. Arm the receive again once chunks have been dropped.
    ReceiveStarved {
        /// The receive's token.
        token: Token,
    },
    /// The other side has closed or shut down its sending half; the receive has ended.
    EndOfStream {
        /// The receive's token.
        token: Token,
    },
    /// The receive ended with an error.
    ReceiveFailed {
        /// The receive's token.
        token: Token,
        /// Why.
        error: io::Error,
    },
    /// A send ended: all bytes are with the kernel, or an error came after some of them.
    Sent {
        /// The send's token.
        token: Token,
        /// The buffer, unchanged, for reuse.
        buffer: Vec<u8>,
        /// Whether everything went out.
        result: io::Result<()>,
    },
    /// A gathered send ended: all bytes are with the kernel, or an error came after some of them.
    SentVectored {
        /// The send's token.
        token: Token,
        /// The buffers, unchanged, for reuse.
        buffers: Vec<Vec<u8>>,
        /// Whether everything went out.
        result: io::Result<()>,
    },
    /// A connect ended.
    Connected {
        /// The connect's token.
        token: Token,
        /// Whether the socket is connected.
        result: io::Result<()>,
    },
    /// A shutdown ended.
    ShutDown {
        /// The shutdown's token.
        token: Token,
        /// Whether it worked.
        result: io::Result<()>,
    },
    /// A socket or file is closed. It comes after the last completion of every operation on it.
    Closed {
        /// The close's token.
        token: Token,
    },
    /// A write ended.
    Written {
        /// The write's token.
        token: Token,
        /// The buffer.
        buffer: AlignedBuf,
        /// Bytes written; may be fewer than asked for.
        result: io::Result<usize>,
    },
    /// A read ended.
    Read {
        /// The read's token.
        token: Token,
        /// The buffer, filled from its start.
        buffer: AlignedBuf,
        /// Bytes read; fewer than asked for at the end of the file.
        result: io::Result<usize>,
    },
    /// A sync ended.
    Synced {
        /// The sync's token.
        token: Token,
        /// Whether everything written before is durable.
        result: io::Result<()>,
    },
    /// An allocation of file space ended.
    Allocated {
        /// The allocation's token.
        token: Token,
        /// Whether the space is there.
        result: io::Result<()>,
    },
    /// An open ended.
    Opened {
        /// The open's token.
        token: Token,
        /// The file; [`Ring::adopt_file`] takes it.
        result: io::Result<OwnedFd>,
    },
    /// A rename ended.
    Renamed {
        /// The rename's token.
        token: Token,
        /// Whether it worked.
        result: io::Result<()>,
    },
    /// A removal ended.
    Unlinked {
        /// The removal's token.
        token: Token,
        /// Whether it worked.
        result: io::Result<()>,
    },
    /// A timer fired.
    TimerFired {
        /// The timer's token.
        token: Token,
    },
    /// A timer was cancelled.
    TimerCancelled {
        /// The timer's token.
        token: Token,
    },
    /// Another ring rang this ring's [`Doorbell`](crate::Doorbell).
    DoorbellRang {
        /// What it said.
        word: u32,
    },
    /// The kernel refused to ring another ring (it has no memory left, as a rule). Ring again.
    DoorbellFailed {
        /// Whose doorbell.
        doorbell: DoorbellId,
        /// Why.
        error: io::Error,
    },
    /// A [`Waker`](crate::Waker) of this ring was used, once or more often, since the last time.
    Woken,
}

impl Completion<'_> {
    /// The token of the operation it belongs to; none for bells and wakers.
    pub fn token(&self) -> Option<Token> {
        match self {
            Self::Accepted { token, .. }
            | Self::AcceptFailed { token, .. }
            | Self::Received { token, .. }
            | Self::ReceiveStarved { token }
            | Self::EndOfStream { token }
            | Self::ReceiveFailed { token, .. }
            | Self::Sent { token, .. }
            | Self::SentVectored { token, .. }
            | Self::Connected { token, .. }
            | Self::ShutDown { token, .. }
            | Self::Closed { token }
            | Self::Written { token, .. }
            | Self::Read { token, .. }
            | Self::Synced { token, .. }
            | Self::Allocated { token, .. }
            | Self::Opened { token, .. }
            | Self::Renamed { token, .. }
            | Self::Unlinked { token, .. }
            | Self::TimerFired { token }
            | Self::TimerCancelled { token } => Some(*token),
            Self::DoorbellRang { .. } | Self::DoorbellFailed { .. } | Self::Woken => None,
        }
    }
}
