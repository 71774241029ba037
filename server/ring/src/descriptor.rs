//! The files and sockets a ring owns, and what is in flight on each.
//!
//! Invariant: a descriptor number reaches the kernel only while its slot is open, and its slot is reused only after
//! every operation on it has completed and it is closed, so no operation can ever hit somebody else's file.
//! A handle of a closed descriptor is a defect of the caller and stops the program.
//! Deliberately absent: anything that submits; this is bookkeeping.

use std::os::fd::OwnedFd;

use crate::Token;

/// A slot and the life of it that is meant.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Key {
    pub(crate) index: u32,
    generation: u32,
}

/// A socket owned by a ring; meaningless for any other ring. Dead after `close` or `detach`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Socket(pub(crate) Key);

/// A file owned by a ring; meaningless for any other ring. Dead after `close_file`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct File(pub(crate) Key);

/// What a slot holds.
pub(crate) struct Descriptor {
    generation: u32,
    fd: Option<OwnedFd>,
    /// Files have no arrivals to mark.
    is_socket: bool,
    /// Its place in the kernel's table of registered files, if it has one.
    pub(crate) registered: Option<u32>,
    ops_in_flight: u32,
    closing: Option<Token>,
    closes_left: u8,
    is_receiving: bool,
    /// Bytes handed out so far.
    received: u64,
    /// Where `received` must arrive before the marked arrivals are handed out.
    mark: Option<u64>,
    /// The turn in which the send in flight was queued.
    send_turn: u64,
    /// Whether the last send completed in the wait that submitted it.
    sends_promptly: bool,
}

/// All descriptors of one ring.
#[derive(Default)]
pub(crate) struct Descriptors {
    slots: Vec<Descriptor>,
    free: Vec<u32>,
    /// Places in the table of registered files that are free.
    pub(crate) registered_free: Vec<u32>,
    behind_mark: usize,
}

impl Descriptors {
    /// None yet, and this many places for registered files.
    pub(crate) fn new(registered_files: u32) -> Self {
        Self { registered_free: (0..registered_files).rev().collect(), ..Self::default() }
    }

    pub(crate) fn insert_socket(&mut self, fd: OwnedFd) -> Socket {
        Socket(self.insert(fd, true))
    }

    pub(crate) fn insert_file(&mut self, fd: OwnedFd) -> File {
        File(self.insert(fd, false))
    }

    fn insert(&mut self, fd: OwnedFd, is_socket: bool) -> Key {
        let index = self.free.pop().unwrap_or_else(|| {
            let index = u32::try_from(self.slots.len()).expect("fewer descriptors than 2^32");
            self.slots.push(Descriptor {
                generation: 0,
                fd: None,
                is_socket: false,
                registered: None,
                ops_in_flight: 0,
                closing: None,
                closes_left: 0,
                is_receiving: false,
                received: 0,
                mark: None,
                send_turn: 0,
                sends_promptly: true,
            });
            index
        });
        let slot = &mut self.slots[index as usize];
        slot.fd = Some(fd);
        slot.is_socket = is_socket;
        slot.received = 0;
        slot.sends_promptly = true;
        Key { index, generation: slot.generation }
    }

    /// The descriptor, open or closing. Panics on a handle that has outlived it.
    fn slot(&mut self, key: Key) -> &mut Descriptor {
        let slot = &mut self.slots[key.index as usize];
        assert_eq!(slot.generation, key.generation, "a handle was used after its descriptor was closed");
        slot
    }

    /// The descriptor of a handle that the caller may use: open and not closing.
    pub(crate) fn open(&mut self, key: Key) -> &mut Descriptor {
        let slot = self.slot(key);
        assert!(
            slot.fd.is_some() && slot.closing.is_none(),
            "a handle was used after its descriptor was closed"
        );
        slot
    }

    pub(crate) fn fd(&self, key: Key) -> Option<&OwnedFd> {
        let slot = &self.slots[key.index as usize];
        if slot.generation == key.generation { slot.fd.as_ref() } else { None }
    }

    pub(crate) fn op_started(&mut self, key: Key) {
        self.slot(key).ops_in_flight += 1;
    }

    /// Notes a final completion. True when the descriptor waits to be closed and this was the last operation.
    pub(crate) fn op_ended(&mut self, key: Key) -> bool {
        let slot = self.slot(key);
        slot.ops_in_flight -= 1;
        slot.ops_in_flight == 0 && slot.closing.is_some() && slot.fd.is_some()
    }

    pub(crate) fn is_closing(&mut self, key: Key) -> bool {
        self.slot(key).closing.is_some()
    }

    /// Marks it for closing; true when nothing is in flight on it, so that it can be closed at once.
    pub(crate) fn begin_close(&mut self, key: Key, token: Token) -> bool {
        self.clear_mark(key);
        let slot = self.open(key);
        slot.closing = Some(token);
        slot.ops_in_flight == 0
    }

    /// Takes the descriptor out for the close operations, of which there are one or two.
    pub(crate) fn take_for_close(&mut self, key: Key) -> (OwnedFd, Option<u32>) {
        let slot = self.slot(key);
        let fd = slot.fd.take().expect("a descriptor is closed once");
        slot.closes_left = 1 + u8::from(slot.registered.is_some());
        (fd, slot.registered)
    }

    /// Notes one completed close; with the last one the slot is free and the caller's token comes back.
    pub(crate) fn close_ended(&mut self, key: Key) -> Option<Token> {
        let slot = self.slot(key);
        slot.closes_left -= 1;
        if slot.closes_left > 0 {
            return None;
        }
        let token = slot.closing.take();
        self.free(key);
        token
    }

    /// Takes the descriptor out for another owner, unless something is in flight on it.
    pub(crate) fn detach(&mut self, key: Key) -> Option<OwnedFd> {
        let slot = self.open(key);
        if slot.ops_in_flight > 0 {
            return None;
        }
        assert!(slot.registered.is_none(), "only files are registered, and those stay");
        let fd = slot.fd.take();
        self.clear_mark(key);
        self.free(key);
        fd
    }

    fn free(&mut self, key: Key) {
        let slot = self.slot(key);
        slot.generation = slot.generation.wrapping_add(1);
        let registered = slot.registered.take();
        self.registered_free.extend(registered);
        self.free.push(key.index);
    }

    /// Notes that a receive begins. A second one would be woken in vain by everything that arrives.
    pub(crate) fn receive_started(&mut self, key: Key) {
        let was_receiving = std::mem::replace(&mut self.open(key).is_receiving, true);
        assert!(!was_receiving, "a receive is in flight on the socket already");
    }

    pub(crate) fn receive_ended(&mut self, key: Key) {
        self.slot(key).is_receiving = false;
    }

    /// Counts bytes handed out.
    pub(crate) fn received(&mut self, key: Key, len: usize) {
        let slot = self.slot(key);
        slot.received += len as u64;
        if slot.mark.is_some_and(|mark| slot.received >= mark) {
            slot.mark = None;
            self.behind_mark -= 1;
        }
    }

    /// Notes that a send is queued; says whether it is expected to complete in the wait that submits it.
    pub(crate) fn send_queued(&mut self, key: Key, turn: u64) -> bool {
        let slot = self.open(key);
        slot.send_turn = turn;
        slot.sends_promptly
    }

    /// Notes that a send ended, after `turn` waits.
    pub(crate) fn send_ended(&mut self, key: Key, turn: u64) {
        let slot = self.slot(key);
        slot.sends_promptly = turn <= slot.send_turn + 1;
    }

    /// Nothing more will come from this socket.
    pub(crate) fn clear_mark(&mut self, key: Key) {
        if self.slot(key).mark.take().is_some() {
            self.behind_mark -= 1;
        }
    }

    /// Sets the mark of every socket to what has been handed out plus what `unread` says waits in it.
    pub(crate) fn mark(&mut self, unread: impl Fn(&OwnedFd) -> u64) {
        self.behind_mark = 0;
        for slot in &mut self.slots {
            slot.mark = None;
            if let (Some(fd), None, true) = (&slot.fd, slot.closing, slot.is_socket) {
                let waiting = unread(fd);
                if waiting > 0 {
                    slot.mark = Some(slot.received + waiting);
                    self.behind_mark += 1;
                }
            }
        }
    }

    /// Whether not all marked arrivals of this socket have been handed out.
    pub(crate) fn is_behind_mark(&mut self, key: Key) -> bool {
        self.slot(key).mark.is_some()
    }

    /// Sockets whose marked arrivals have not all been handed out.
    pub(crate) fn behind_mark(&self) -> usize {
        self.behind_mark
    }
}
