//! Reads are linearizable (contract, point 4).
//!
//! Invariant checked: a read of a lock shows the lock exactly as it was after the entry of its revision, and no
//! acknowledgement that anybody had when the read was asked for is missing in it. Deliberately absent: reads of
//! sessions and of tokens.

use std::collections::BTreeMap;

use lockstep_wire::{FencingToken, LogIndex, RequestId, SessionId};

use super::{Verdict, violated};

const RULE: &str = "reads are linearizable (contract 4)";

/// Who holds a lock: session, acquire, token.
pub type Holders = Vec<(SessionId, RequestId, FencingToken)>;

/// How the locks of one cell changed.
#[derive(Debug, Default)]
pub struct Readings {
    changes: BTreeMap<String, Vec<(LogIndex, Holders)>>,
    /// The newest entry of which any client has had an acknowledgement.
    acknowledged: LogIndex,
}

impl Readings {
    /// Names that anybody ever held or asked for.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.changes.keys().map(String::as_str)
    }

    /// A lock after an entry.
    pub fn on_state(&mut self, index: LogIndex, name: &str, holders: Holders) {
        let changes = self.changes.entry(name.to_owned()).or_default();
        let is_news = changes.last().map_or(!holders.is_empty(), |(_, last)| *last != holders);
        if is_news {
            changes.push((index, holders));
        }
    }

    /// A client was told of something that this entry did.
    pub fn on_acknowledged(&mut self, index: LogIndex) {
        self.acknowledged = self.acknowledged.max(index);
    }

    /// What a read that is asked for now must know of.
    pub fn floor(&self) -> LogIndex {
        self.acknowledged
    }

    /// A client was shown a lock, which it had asked for when `floor` was the floor.
    ///
    /// # Errors
    /// It was not so at its revision, or the revision is too old.
    pub fn on_read(&mut self, name: &str, revision: LogIndex, shown: &Holders, floor: LogIndex) -> Verdict {
        if revision < floor {
            return violated(
                RULE,
                format!(
                    "a read of {name} shows revision {revision}, and {floor} had been acknowledged before it"
                ),
            );
        }
        let changes = self.changes.get(name).map_or(&[][..], Vec::as_slice);
        let then = changes.iter().rev().find(|(index, _)| *index <= revision);
        let holders = then.map_or(&[][..], |(_, holders)| holders.as_slice());
        if holders != shown.as_slice() {
            return violated(
                RULE,
                format!("a read of {name} at {revision} shows {shown:?}, and it was {holders:?}"),
            );
        }
        self.on_acknowledged(revision);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_read_of_the_past_is_seen() {
        let mut readings = Readings::default();
        let holders = vec![(SessionId(1), RequestId(1), FencingToken(3))];
        readings.on_state(LogIndex(3), "n", holders.clone());
        assert!(readings.on_read("n", LogIndex(2), &Vec::new(), LogIndex(0)).is_ok());
        assert!(readings.on_read("n", LogIndex(2), &Vec::new(), LogIndex(3)).is_err());
        assert!(readings.on_read("n", LogIndex(4), &holders, LogIndex(3)).is_ok());
        assert!(readings.on_read("n", LogIndex(4), &Vec::new(), LogIndex(3)).is_err());
    }
}
