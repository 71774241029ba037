//! The small safe layer over io_uring and aligned buffers: the one place with unsafe code.
//!
//! [`Ring`] is one io_uring for one thread (ARCHITECTURE section 6, "Shard loop"): one system call a turn submits everything
//! queued and waits; completions come back as a closed enum with the caller's [`Token`]. [`storage`] keeps a data
//! directory with it, [`net`] sets up sockets, [`probe`] tells in words what a host lacks.
//!
//! **Invariant:** the public interface is safe. Memory given to the kernel belongs to the ring until the completion that
//! gives it up has been taken; descriptors belong to it until they are closed or detached. Nothing that a caller does,
//! dropping and forgetting included, lets the kernel touch memory or files that are somebody else's.
//!
//! Deliberately absent: an async runtime, protocol, policy (what to retry, when to give up).

pub mod net;
pub mod probe;
pub mod storage;

mod aligned;
mod completion;
mod descriptor;
mod doorbell;
mod files;
mod group;
mod op;
mod reap;
mod ring;
mod sockets;
mod vectored;

pub use aligned::{ALIGNMENT, AlignedBuf};
pub use completion::{Chunk, Completion, Token};
pub use descriptor::{File, Socket};
pub use doorbell::{Doorbell, DoorbellId, Waker};
pub use files::{Durability, OpenMode};
pub use op::OpId;
pub use reap::Completions;
pub use ring::{GroupId, Ring, RingConfig, Turn};
