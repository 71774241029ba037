//! Reaping: kernel completions become [`Completion`]s, and finished operations leave the table.
//!
//! Invariant: an operation is removed exactly when its last completion is translated, and its memory goes to the caller or
//! is freed then, never before. Deliberately absent: any wait; what is not there yet is the next turn's.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{FromRawFd, OwnedFd};

use io_uring::cqueue;

use crate::aligned::Pinned;
use crate::completion::{Chunk, Completion, Token};
use crate::descriptor::Key;
use crate::doorbell::DoorbellId;
use crate::op::{Op, OpId};
use crate::ring::{GroupId, KIND_IGNORED, KIND_MASK, KIND_RANG, KIND_RING_FAILED, Ring};
use crate::sockets::Outgoing;
use crate::vectored::Vectored;

/// The iterator over the completions of a ring. It ends with what was there when it was made: what an operation that is
/// started meanwhile completes at once is the next turn's, and so never newer than a clock read before.
pub struct Completions<'r> {
    ring: &'r Ring,
    /// Entries of the kernel's queue that are still to be taken.
    left: usize,
}

impl<'r> Iterator for Completions<'r> {
    type Item = Completion<'r>;

    fn next(&mut self) -> Option<Completion<'r>> {
        self.ring.take_completion(&mut self.left)
    }
}

/// Taking completions.
impl Ring {
    /// The completions that are there now, each taken as the iterator moves. Those that join while operations are started
    /// wait for the next turn, as does what did not fit into the kernel's queue.
    pub fn completions(&self) -> Completions<'_> {
        Completions { ring: self, left: self.uring.borrow_mut().completion().len() }
    }

    fn take_completion(&self, left: &mut usize) -> Option<Completion<'_>> {
        while *left > 0 {
            *left -= 1;
            let entry = self.uring.borrow_mut().completion().next()?;
            if let Some(completion) = self.translate(&entry) {
                return Some(completion);
            }
        }
        None
    }

    #[allow(clippy::cast_possible_truncation, reason = "the word was put into the lower half")]
    fn translate(&self, entry: &cqueue::Entry) -> Option<Completion<'_>> {
        let user_data = entry.user_data();
        match user_data & KIND_MASK {
            KIND_RANG => Some(Completion::DoorbellRang { word: user_data as u32 }),
            KIND_RING_FAILED => {
                let error = io::Error::from_raw_os_error(-entry.result());
                Some(Completion::DoorbellFailed { doorbell: DoorbellId(user_data as u32), error })
            }
            KIND_IGNORED => None,
            _ => {
                let id = OpId::from_user_data(user_data);
                if cqueue::more(entry.flags()) {
                    self.translate_more(id, entry)
                } else {
                    self.translate_last(id, entry)
                }
            }
        }
    }

    /// A completion of a multishot operation that goes on.
    fn translate_more(&self, id: OpId, entry: &cqueue::Entry) -> Option<Completion<'_>> {
        let mut ops = self.ops.borrow_mut();
        let op = ops.get_mut(id).expect("the kernel completes operations in flight");
        match *op {
            Op::Accept { token, .. } => {
                drop(ops);
                Some(self.accepted(token, entry, true))
            }
            Op::Receive { token, socket, group } => {
                drop(ops);
                Some(self.received(token, socket, group, entry, true))
            }
            _ => unreachable!("only accepts and receives are multishot"),
        }
    }

    /// The last completion of an operation, with which its memory comes back.
    fn translate_last(&self, id: OpId, entry: &cqueue::Entry) -> Option<Completion<'_>> {
        if self.continues_send(id, entry.result()) {
            return None;
        }
        let op = self.ops.borrow_mut().remove(id);
        // What the completion says about the socket is noted before the slot may go.
        let descriptor = op.descriptor();
        if let Op::Send { socket, .. } | Op::SendVectored { socket, .. } = &op {
            self.descriptors.borrow_mut().send_ended(*socket, self.turns.get());
        }
        if let Op::Receive { socket, .. } = &op {
            self.descriptors.borrow_mut().receive_ended(*socket);
        }
        let result = entry.result();
        let completion = match op {
            Op::Accept { token, .. } => Some(self.accepted(token, entry, false)),
            Op::Receive { token, socket, group } => Some(self.received(token, socket, group, entry, false)),
            Op::Send { token, buffer, sent, .. } => {
                let result = sent_result(result, sent >= buffer.len());
                Some(Completion::Sent { token, buffer, result })
            }
            Op::SendVectored { token, message, .. } => Some(self.sent_vectored(token, message, result)),
            Op::Connect { token, .. } => Some(Completion::Connected { token, result: unit_result(result) }),
            Op::Shutdown { token, .. } => Some(Completion::ShutDown { token, result: unit_result(result) }),
            Op::Close { descriptor } => {
                let token = self.descriptors.borrow_mut().close_ended(descriptor);
                token.map(|token| Completion::Closed { token })
            }
            Op::Write { token, buffer, .. } => {
                Some(Completion::Written { token, buffer, result: len_result(result) })
            }
            Op::Read { token, buffer, .. } => {
                Some(Completion::Read { token, buffer, result: len_result(result) })
            }
            Op::Sync { token, .. } => Some(Completion::Synced { token, result: unit_result(result) }),
            Op::Allocate { token, .. } => Some(Completion::Allocated { token, result: unit_result(result) }),
            Op::Open { token, .. } => Some(Completion::Opened { token, result: fd_result(result) }),
            Op::Rename { token, .. } => Some(Completion::Renamed { token, result: unit_result(result) }),
            Op::Unlink { token, .. } => Some(Completion::Unlinked { token, result: unit_result(result) }),
            Op::Timer { token, .. } if result == -libc::ECANCELED => {
                Some(Completion::TimerCancelled { token })
            }
            Op::Timer { token, .. } => Some(Completion::TimerFired { token }),
            Op::Wake { .. } => {
                if !self.is_dropping.get() {
                    self.listen_for_wakers();
                }
                Some(Completion::Woken)
            }
        };
        if let Some(key) = descriptor {
            let may_close = self.descriptors.borrow_mut().op_ended(key);
            if may_close {
                self.start_close(key);
            }
        }
        completion
    }

    fn accepted(&self, token: Token, entry: &cqueue::Entry, is_armed: bool) -> Completion<'_> {
        match fd_result(entry.result()) {
            Ok(fd) => Completion::Accepted { token, fd, is_armed },
            Err(error) => Completion::AcceptFailed { token, error },
        }
    }

    fn received(
        &self,
        token: Token,
        socket: Key,
        group: u16,
        entry: &cqueue::Entry,
        is_armed: bool,
    ) -> Completion<'_> {
        let chunk = cqueue::buffer_select(entry.flags()).map(|buffer_id| Chunk {
            ring: self,
            group: GroupId(group),
            buffer_id,
            base: self.groups.borrow()[usize::from(group)].buffer(buffer_id),
            len: usize::try_from(entry.result()).unwrap_or(0),
        });
        match (entry.result(), chunk) {
            (len, Some(bytes)) if len > 0 => {
                self.descriptors.borrow_mut().received(socket, bytes.len);
                Completion::Received { token, bytes, is_armed }
            }
            (error, _) if error == -libc::ENOBUFS => Completion::ReceiveStarved { token },
            (result, _) => {
                self.descriptors.borrow_mut().clear_mark(socket);
                if result < 0 {
                    Completion::ReceiveFailed { token, error: io::Error::from_raw_os_error(-result) }
                } else {
                    Completion::EndOfStream { token }
                }
            }
        }
    }

    fn sent_vectored(&self, token: Token, message: Pinned<Vectored>, result: i32) -> Completion<'_> {
        // SAFETY: the operation has ended, so the kernel does not look at the cell, and this is its only handle.
        let cell = unsafe { &mut *message.as_ptr() };
        let result = sent_result(result, cell.is_sent());
        let buffers = std::mem::take(&mut cell.buffers);
        self.return_message(message);
        Completion::SentVectored { token, buffers, result }
    }

    /// Counts what a send has sent, and sends the rest if there is one. False when it has ended, well or not.
    fn continues_send(&self, id: OpId, result: i32) -> bool {
        let len = usize::try_from(result).unwrap_or(0);
        if len == 0 {
            return false;
        }
        let mut ops = self.ops.borrow_mut();
        let (socket, rest) = match ops.get_mut(id).expect("the kernel completes operations in flight") {
            Op::Send { socket, buffer, sent, is_cancelled, .. } => {
                *sent += len;
                if *sent >= buffer.len() || *is_cancelled {
                    return false;
                }
                (*socket, Outgoing::Bytes(buffer[*sent..].as_ptr(), buffer.len() - *sent))
            }
            Op::SendVectored { socket, message, is_cancelled, .. } => {
                // SAFETY: the kernel has completed the call that used the cell, and the table holds its only handle.
                let cell = unsafe { &mut *message.as_ptr() };
                cell.advance(len);
                if cell.is_sent() || *is_cancelled {
                    return false;
                }
                (*socket, Outgoing::Message(cell.describe()))
            }
            _ => return false,
        };
        if self.is_dropping.get() || self.descriptors.borrow_mut().is_closing(socket) {
            return false;
        }
        drop(ops);
        self.send_rest(id, socket, rest);
        true
    }
}

fn sent_result(result: i32, is_all_sent: bool) -> io::Result<()> {
    match result {
        ..0 => unit_result(result),
        _ if is_all_sent => Ok(()),
        // The kernel took nothing of something, which it does not do; or a part, before it was told to stop.
        0 => Err(io::ErrorKind::WriteZero.into()),
        1.. => Err(io::Error::from_raw_os_error(libc::ECANCELED)),
    }
}

fn unit_result(result: i32) -> io::Result<()> {
    len_result(result).map(|_| ())
}

fn len_result(result: i32) -> io::Result<usize> {
    usize::try_from(result).map_err(|_| io::Error::from_raw_os_error(-result))
}

fn fd_result(result: i32) -> io::Result<OwnedFd> {
    if result < 0 {
        return Err(io::Error::from_raw_os_error(-result));
    }
    // SAFETY: a successful accept or open has made this descriptor for us and nobody else knows its number.
    Ok(unsafe { OwnedFd::from_raw_fd(result) })
}
