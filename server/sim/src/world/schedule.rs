//! What is going to happen, in the order of true time.
//!
//! Invariant: events of one moment come in the order in which they were scheduled, so that equal runs stay equal.
//! Deliberately absent: taking an event back; whoever handles one looks whether it still matters.

use std::cmp::Ordering;
use std::collections::BinaryHeap;

use lockstep_wal::memory::Ticket;

use super::fault::Fault;
use super::network::{End, WireId};

/// True time, in ns since the run began. Nobody inside the system sees it.
pub type Moment = u64;

/// One ms of true time.
pub const MS: Moment = 1_000_000;

/// Something that happens.
#[derive(Debug)]
pub enum Event {
    /// Bytes come out of a wire.
    Arrive {
        /// Of which.
        wire: WireId,
        /// At which end.
        end: End,
        /// The bytes.
        bytes: Vec<u8>,
    },
    /// The request for a connection reaches its target.
    Dial {
        /// Which.
        wire: WireId,
    },
    /// The answer reaches whoever dialed.
    Answer {
        /// Which.
        wire: WireId,
        /// Whether nobody listens there.
        is_refused: bool,
    },
    /// An end learns that its wire is gone.
    Closed {
        /// Which.
        wire: WireId,
        /// Who learns it.
        end: End,
    },
    /// What an end sends has not been acknowledged for as long as it waits.
    Unacknowledged {
        /// Over which wire.
        wire: WireId,
        /// Who sends.
        end: End,
        /// Since when.
        since: Moment,
    },
    /// A disk has done an operation.
    DiskDone {
        /// Of which node.
        node: usize,
        /// Of which life of its process.
        life: u64,
        /// The operation.
        ticket: Ticket,
    },
    /// A node's loop goes around once.
    Turn {
        /// Which node.
        node: usize,
    },
    /// A client looks around.
    Wake {
        /// Which client.
        client: usize,
    },
    /// A write reaches the resource that locks protect.
    ResourceWrite(crate::oracle::exclusion::Write),
    /// A fault begins or ends.
    Fault(Fault),
    /// The next fault is drawn.
    Nemesis,
    /// The operator does something about the members.
    Operate,
}

#[derive(Debug)]
struct Scheduled {
    at: Moment,
    number: u64,
    event: Event,
}

impl PartialEq for Scheduled {
    fn eq(&self, other: &Scheduled) -> bool {
        (self.at, self.number) == (other.at, other.number)
    }
}

impl Eq for Scheduled {}

impl PartialOrd for Scheduled {
    fn partial_cmp(&self, other: &Scheduled) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Scheduled {
    /// Reversed: the heap gives its greatest first.
    fn cmp(&self, other: &Scheduled) -> Ordering {
        (other.at, other.number).cmp(&(self.at, self.number))
    }
}

/// All that is scheduled, and what time it is.
#[derive(Debug, Default)]
pub struct Schedule {
    now: Moment,
    numbers: u64,
    heap: BinaryHeap<Scheduled>,
}

impl Schedule {
    /// What time it is.
    pub fn now(&self) -> Moment {
        self.now
    }

    /// Schedules an event; what is past happens now.
    pub fn at(&mut self, at: Moment, event: Event) {
        self.numbers += 1;
        self.heap.push(Scheduled { at: at.max(self.now), number: self.numbers, event });
    }

    /// Schedules an event so many ns from now.
    pub fn after(&mut self, span: u64, event: Event) {
        self.at(self.now.saturating_add(span), event);
    }

    /// The next event up to a moment, which it then is; without one the moment itself has come.
    pub fn poll(&mut self, until: Moment) -> Option<Event> {
        if self.heap.peek().is_none_or(|next| next.at > until) {
            self.now = self.now.max(until);
            return None;
        }
        let next = self.heap.pop().expect("it was peeked at");
        self.now = next.at;
        Some(next.event)
    }
}
