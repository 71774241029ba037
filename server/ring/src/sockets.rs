//! Operations on sockets: accept, receive, send, connect, shut down.
//!
//! Invariant: each goes through [`Ring::start`], which takes ownership of what the kernel is pointed to.
//! Deliberately absent: the rule that a connection has one send in flight; a stream with two may mix their bytes when
//! one goes out in part, so the caller keeps it.
#![allow(unsafe_code)]

use std::net::{Shutdown, SocketAddr};

use io_uring::{opcode, squeue};
use socket2::SockAddr;

use crate::aligned::Pinned;
use crate::completion::Token;
use crate::descriptor::{Key, Socket};
use crate::op::{Op, OpId};
use crate::ring::{GroupId, Ring, Target, entry_on};

/// Bytes still to be sent, by address.
pub(crate) enum Outgoing {
    Bytes(*const u8, usize),
    Message(*const libc::msghdr),
}

/// `MSG_WAITALL` lets the kernel go on by itself after a partial send; `MSG_NOSIGNAL` makes a broken pipe an error.
const SEND_FLAGS: i32 = libc::MSG_NOSIGNAL | libc::MSG_WAITALL;
/// Bytes in one system call at most.
const SEND_BYTES_MAX: u32 = 1 << 30;

impl Ring {
    /// Accepts connections until it fails or is cancelled.
    pub fn accept_multishot(&self, listener: Socket, token: Token) -> OpId {
        let entry = entry_on!(self.target(listener.0), |fd| {
            opcode::AcceptMulti::new(fd).flags(libc::SOCK_CLOEXEC).build()
        });
        // SAFETY: the entry refers to no memory.
        unsafe { self.start(Op::Accept { token, listener: listener.0 }, entry) }
    }

    /// Accepts one connection.
    pub fn accept(&self, listener: Socket, token: Token) -> OpId {
        let (address, len) = (std::ptr::null_mut(), std::ptr::null_mut());
        let entry = entry_on!(self.target(listener.0), |fd| {
            opcode::Accept::new(fd, address, len).flags(libc::SOCK_CLOEXEC).build()
        });
        // SAFETY: the entry refers to no memory; the peer's address is asked of the socket.
        unsafe { self.start(Op::Accept { token, listener: listener.0 }, entry) }
    }

    /// Receives into buffers of the group until the stream ends, the group is empty, or it is cancelled. Panics while
    /// another receive is in flight on the socket.
    pub fn receive_multishot(&self, socket: Socket, group: GroupId, token: Token) -> OpId {
        self.descriptors.borrow_mut().receive_started(socket.0);
        let entry = entry_on!(self.target(socket.0), |fd| opcode::RecvMulti::new(fd, group.0).build());
        // SAFETY: the entry refers to the group's buffers only.
        unsafe { self.start(Op::Receive { token, socket: socket.0, group: group.0 }, entry) }
    }

    /// Receives once, into one buffer of the group, and at most `len_max` bytes: what is beyond them stays in the
    /// socket, for whoever owns it next. Panics while another receive is in flight on the socket.
    pub fn receive(&self, socket: Socket, group: GroupId, len_max: u32, token: Token) -> OpId {
        self.descriptors.borrow_mut().receive_started(socket.0);
        let len = len_max.min(self.group_buffer_size(group));
        let entry = entry_on!(self.target(socket.0), |fd| {
            opcode::Recv::new(fd, std::ptr::null_mut(), len).buf_group(group.0).build()
        });
        let entry = entry.flags(squeue::Flags::BUFFER_SELECT);
        // SAFETY: the entry refers to the group's buffers only.
        unsafe { self.start(Op::Receive { token, socket: socket.0, group: group.0 }, entry) }
    }

    /// Sends the whole buffer. At most one send may be in flight on a socket.
    pub fn send(&self, socket: Socket, buffer: Vec<u8>, token: Token) -> OpId {
        let bytes = Outgoing::Bytes(buffer.as_ptr(), buffer.len());
        let entry = self.send_entry(socket.0, &bytes);
        // SAFETY: the bytes are the heap memory of the vector, which the operation owns and nobody changes meanwhile.
        unsafe {
            self.start(Op::Send { token, socket: socket.0, buffer, sent: 0, is_cancelled: false }, entry)
        }
    }

    /// Sends all buffers, in order, as one stream of bytes. At most one send may be in flight on a socket.
    pub fn send_vectored(&self, socket: Socket, buffers: Vec<Vec<u8>>, token: Token) -> OpId {
        let message = self.spare_message();
        // SAFETY: the cell is spare: no operation uses it, and this is its only handle.
        let cell = unsafe { &mut *message.as_ptr() };
        cell.load(buffers);
        let header = cell.describe();
        let entry = self.send_entry(socket.0, &Outgoing::Message(header));
        // SAFETY: the header is in the pinned cell; the table of pieces and the bytes are heap memory of vectors in it.
        unsafe {
            self.start(Op::SendVectored { token, socket: socket.0, message, is_cancelled: false }, entry)
        }
    }

    /// Queues the rest of a send whose operation is still in the table.
    pub(crate) fn send_rest(&self, id: OpId, socket: Key, rest: Outgoing) {
        let entry = build_send(self.target_of_op(socket), &rest);
        // SAFETY: as at the first submission: the memory is the operation's, which stays in the table.
        unsafe { self.push(entry.user_data(id.user_data())) };
    }

    fn send_entry(&self, socket: Key, bytes: &Outgoing) -> squeue::Entry {
        if self.descriptors.borrow_mut().send_queued(socket, self.turns.get()) {
            self.prompt_sends.set(self.prompt_sends.get() + 1);
        }
        build_send(self.target(socket), bytes)
    }

    /// Connects the socket.
    pub fn connect(&self, socket: Socket, address: SocketAddr, token: Token) -> OpId {
        let address = Pinned::new(SockAddr::from(address));
        // SAFETY: the cell was made in the line above and nothing else points to it yet.
        let (pointer, len) = unsafe { ((*address.as_ptr()).as_ptr(), (*address.as_ptr()).len()) };
        let entry =
            entry_on!(self.target(socket.0), |fd| opcode::Connect::new(fd, pointer.cast(), len).build());
        // SAFETY: the address is in the pinned cell, which the operation owns.
        unsafe { self.start(Op::Connect { token, socket: socket.0, address }, entry) }
    }

    /// Shuts down one half of the connection or both.
    pub fn shutdown(&self, socket: Socket, half: Shutdown, token: Token) -> OpId {
        let half = match half {
            Shutdown::Read => libc::SHUT_RD,
            Shutdown::Write => libc::SHUT_WR,
            Shutdown::Both => libc::SHUT_RDWR,
        };
        let entry = entry_on!(self.target(socket.0), |fd| opcode::Shutdown::new(fd, half).build());
        // SAFETY: the entry refers to no memory.
        unsafe { self.start(Op::Shutdown { token, socket: socket.0 }, entry) }
    }
}

fn build_send(target: Target, bytes: &Outgoing) -> squeue::Entry {
    entry_on!(target, |fd| match *bytes {
        Outgoing::Bytes(base, len) => {
            // Longer ones go out in several calls, like any partial send.
            let len = u32::try_from(len).unwrap_or(SEND_BYTES_MAX).min(SEND_BYTES_MAX);
            opcode::Send::new(fd, base, len).flags(SEND_FLAGS).build()
        }
        Outgoing::Message(header) =>
            opcode::SendMsg::new(fd, header).flags(SEND_FLAGS.cast_unsigned()).build(),
    })
}
