//! Operations in flight: what each one is, and the memory it has lent to the kernel.
//!
//! Invariant: an operation, with every buffer, path, address and time it points the kernel to, stays in this table
//! from before its submission until its last completion has been taken. Nothing in it is reached by address except
//! through heap memory that does not move when the table does.
//! Deliberately absent: submission and translation of results.

use std::ffi::CString;

use io_uring::types::Timespec;
use socket2::SockAddr;

use crate::Token;
use crate::aligned::{AlignedBuf, Pinned};
use crate::descriptor::Key;
use crate::vectored::Vectored;

/// Names one operation in flight, so that it can be cancelled. Harmless once the operation has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct OpId {
    index: u32,
    generation: u32,
}

/// Generations stay below this, so that the top two bits of an operation's number in the kernel are zero.
const GENERATION_MASK: u32 = (1 << 30) - 1;

impl OpId {
    /// The number under which the kernel knows the operation.
    pub(crate) fn user_data(self) -> u64 {
        u64::from(self.generation) << 32 | u64::from(self.index)
    }

    #[allow(clippy::cast_possible_truncation, reason = "the two halves of a word")]
    pub(crate) fn from_user_data(user_data: u64) -> Self {
        Self { index: user_data as u32, generation: (user_data >> 32) as u32 }
    }
}

/// What is in flight.
#[expect(dead_code, reason = "some memory is only kept: the kernel alone reads it")]
pub(crate) enum Op {
    Accept { token: Token, listener: Key },
    Receive { token: Token, socket: Key, group: u16 },
    Send { token: Token, socket: Key, buffer: Vec<u8>, sent: usize, is_cancelled: bool },
    SendVectored { token: Token, socket: Key, message: Pinned<Vectored>, is_cancelled: bool },
    Connect { token: Token, socket: Key, address: Pinned<SockAddr> },
    Shutdown { token: Token, socket: Key },
    Close { descriptor: Key },
    Write { token: Token, file: Key, buffer: AlignedBuf },
    Read { token: Token, file: Key, buffer: AlignedBuf },
    Sync { token: Token, file: Key },
    Allocate { token: Token, file: Key },
    Open { token: Token, path: Pinned<CString> },
    Rename { token: Token, from: Pinned<CString>, to: Pinned<CString> },
    Unlink { token: Token, path: Pinned<CString> },
    Timer { token: Token, after: Pinned<Timespec> },
    Wake { counter: Pinned<u64> },
}

impl Op {
    /// The descriptor that must stay open until the operation has ended.
    pub(crate) fn descriptor(&self) -> Option<Key> {
        match self {
            Self::Accept { listener: key, .. }
            | Self::Receive { socket: key, .. }
            | Self::Send { socket: key, .. }
            | Self::SendVectored { socket: key, .. }
            | Self::Connect { socket: key, .. }
            | Self::Shutdown { socket: key, .. }
            | Self::Write { file: key, .. }
            | Self::Read { file: key, .. }
            | Self::Sync { file: key, .. }
            | Self::Allocate { file: key, .. } => Some(*key),
            // A close has taken the descriptor out of its slot already and is counted there apart.
            Self::Close { .. }
            | Self::Open { .. }
            | Self::Rename { .. }
            | Self::Unlink { .. }
            | Self::Timer { .. }
            | Self::Wake { .. } => None,
        }
    }
}

struct Slot {
    generation: u32,
    op: Option<Op>,
}

/// The table of operations in flight.
#[derive(Default)]
pub(crate) struct Ops {
    slots: Vec<Slot>,
    free: Vec<u32>,
}

impl Ops {
    pub(crate) fn insert(&mut self, op: Op) -> OpId {
        let index = self.free.pop().unwrap_or_else(|| {
            let index = u32::try_from(self.slots.len()).expect("fewer operations in flight than 2^32");
            self.slots.push(Slot { generation: 0, op: None });
            index
        });
        let slot = &mut self.slots[index as usize];
        slot.op = Some(op);
        OpId { index, generation: slot.generation }
    }

    /// The operation, if it is in flight.
    pub(crate) fn get_mut(&mut self, id: OpId) -> Option<&mut Op> {
        let slot = self.slots.get_mut(id.index as usize)?;
        if slot.generation == id.generation { slot.op.as_mut() } else { None }
    }

    /// Takes an operation out after its last completion.
    pub(crate) fn remove(&mut self, id: OpId) -> Op {
        let slot = &mut self.slots[id.index as usize];
        assert_eq!(slot.generation, id.generation, "the kernel completes operations in flight, once");
        let op = slot.op.take().expect("the kernel completes operations in flight, once");
        slot.generation = (slot.generation + 1) & GENERATION_MASK;
        self.free.push(id.index);
        op
    }

    pub(crate) fn in_flight(&self) -> usize {
        self.slots.len() - self.free.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shutdown_op(ops: &mut Ops) -> OpId {
        ops.insert(Op::Timer { token: Token(1), after: Pinned::new(Timespec::new()) })
    }

    #[test]
    fn slot_is_reused_under_another_name() {
        let mut ops = Ops::default();
        let first = shutdown_op(&mut ops);
        assert_eq!(ops.in_flight(), 1);
        ops.remove(first);
        assert_eq!(ops.in_flight(), 0);
        let second = shutdown_op(&mut ops);
        assert_ne!(first, second);
        assert!(ops.get_mut(first).is_none());
        assert!(ops.get_mut(second).is_some());
        assert_eq!(OpId::from_user_data(second.user_data()), second);
    }
}
