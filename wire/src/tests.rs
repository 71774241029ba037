//! What holds for every message alike: its bytes are pinned, it survives the wire, and nothing that is not
//! a message passes for one.
//!
//! Invariant: a message kind that [`message::Message`] does not know is a failing test. Deliberately absent: the
//! frame's own tests, which stand beside it, and the proof that decoding allocates nothing, which needs
//! an allocator of its own: `tests/allocation.rs`.

mod document;
mod golden;
mod hostile;
mod identity;
mod message;
