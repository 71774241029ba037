//! Who the members of a cell are, as its entries say (contract, point 8; ARCHITECTURE section 4.1, "Membership").
//!
//! Invariant checked: committed lists differ in one voter at most from the ones before them, so that any two majorities of
//! neighbours meet, and none is appended before the one before it is committed; an id is a member in one incarnation, once; what an
//! operator was told to be done is in the log of every later leader; whoever leads has the votes of a majority of
//! the voters that its log names, takes those for members and was not removed before; and only who was removed
//! ends for it. It knows which entries were appended and committed and which votes were written down, and reads the lists
//! itself. Deliberately absent: what disks have; `majority` knows that, and counts among the voters named here.

use std::collections::{BTreeMap, BTreeSet};

use lockstep_wire::peer::Manifest;
use lockstep_wire::{Incarnation, LogIndex, MemberChange, Members, NodeId, Term};

use super::{Verdict, violated};
use crate::mark::{Mark, Marks};

/// The rules of this judge.
pub const ONE_AT_A_TIME: &str = "members change one at a time (contract 8)";
/// See [`ONE_AT_A_TIME`].
pub const ONE_INCARNATION: &str = "an id is a member in one incarnation, once (contract 8)";
/// See [`ONE_AT_A_TIME`].
pub const ELECTED: &str = "a leader has the votes of a majority of its voters (contract 8)";
const KNOWN: &str = "a leader knows the members that its log names (contract 8)";
const KEPT: &str = "a change of the members that was acknowledged is kept (contract 8)";
const OVER: &str = "whoever was removed leads no more (contract 8)";
const REMOVED: &str = "only who was removed ends for it (contract 8)";

/// A member in a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seat {
    /// The incarnation of its directory.
    pub incarnation: Incarnation,
    /// Whether it votes.
    pub is_voter: bool,
    addresses: (String, String),
}

/// A list of members.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Roster {
    /// The entry that it is; 0 for that of the birth.
    pub index: LogIndex,
    seats: BTreeMap<NodeId, Seat>,
    voters: BTreeSet<NodeId>,
}

impl Roster {
    fn new(index: LogIndex, seats: BTreeMap<NodeId, Seat>) -> Roster {
        let voters = seats.iter().filter(|(_, seat)| seat.is_voter).map(|(node, _)| *node).collect();
        Roster { index, seats, voters }
    }

    fn of_birth(born: impl Iterator<Item = (NodeId, Incarnation)>) -> Roster {
        let seat = |incarnation| Seat { incarnation, is_voter: true, addresses: Default::default() };
        Roster::new(LogIndex(0), born.map(|(node, incarnation)| (node, seat(incarnation))).collect())
    }

    fn of(index: LogIndex, members: &Members<'_>) -> Roster {
        let seats = members.members.iter().map(|row| {
            let addresses = (row.peer_address.to_owned(), row.client_address.to_owned());
            (row.node, Seat { incarnation: row.incarnation, is_voter: row.is_voter, addresses })
        });
        Roster::new(index, seats.collect())
    }

    fn highest(&self) -> NodeId {
        self.seats.last_key_value().map_or(NodeId(0), |(node, _)| *node)
    }

    /// The voters.
    pub fn voters(&self) -> &BTreeSet<NodeId> {
        &self.voters
    }

    /// All members.
    pub fn members(&self) -> impl Iterator<Item = NodeId> {
        self.seats.keys().copied()
    }

    /// A member, if the node is one.
    pub fn seat(&self, node: NodeId) -> Option<&Seat> {
        self.seats.get(&node)
    }

    /// Whether what an operator asked for is so.
    fn shows(&self, change: &MemberChange<'_>) -> bool {
        let seat = self.seats.get(&change.node());
        match change {
            MemberChange::AddLearner { incarnation, .. } => {
                seat.is_some_and(|seat| seat.incarnation == *incarnation)
            }
            MemberChange::Promote { .. } => seat.is_some_and(|seat| seat.is_voter),
            MemberChange::Remove { .. } => seat.is_none(),
            MemberChange::SetAddresses { peer_address, client_address, .. } => seat.is_some_and(|seat| {
                (seat.addresses.0.as_str(), seat.addresses.1.as_str()) == (peer_address, client_address)
            }),
        }
    }
}

/// The list in the payload of an entry, if that is what it is about.
fn list_in(index: LogIndex, payload: &[u8]) -> Option<Roster> {
    Some(Roster::of(index, &Members::in_entry(payload)?.ok()?))
}

/// A list that some replica has appended and nobody has applied yet.
#[derive(Debug)]
struct Pending {
    term: Term,
    roster: Roster,
    /// Some process, of whichever life, has taken it for committed.
    is_certain: bool,
}

/// Somebody who begins to lead.
#[derive(Clone, Copy, Debug)]
pub struct Claim<'a> {
    /// Who.
    pub node: NodeId,
    /// In which term.
    pub term: Term,
    /// Its log, entry `i + 1` by term and payload.
    pub log: &'a [(Term, Vec<u8>)],
    /// Whom it takes for voters, by id.
    pub voters: &'a BTreeSet<NodeId>,
}

/// The lists of one cell. See the module.
#[derive(Debug)]
pub struct Memberships {
    /// The one of the birth, then those that were committed.
    committed: Vec<Roster>,
    /// Whether it is known in which incarnations the members were born.
    is_born: bool,
    /// Lists that no entry which anybody has applied has taken the place of; those that are certain by rising index.
    pending: Vec<Pending>,
    /// All that anybody ever appended.
    known: BTreeMap<(LogIndex, Term), Roster>,
    /// The incarnation of each id that ever was a member.
    incarnations: BTreeMap<NodeId, Incarnation>,
    /// Who was removed, and the newest term that had a leader when that was first applied.
    removed: BTreeMap<NodeId, Term>,
    /// Votes that voters have written down: in a term, for a node.
    votes: BTreeMap<(Term, u16), BTreeSet<NodeId>>,
    /// The newest list that shows what an operator was told to be done, and the newest term that had a leader then.
    acknowledged: (LogIndex, Term),
    marks: Marks,
}

impl Memberships {
    /// A cell that is to be born with these.
    pub fn new(members: impl Iterator<Item = NodeId>) -> Memberships {
        Memberships {
            committed: vec![Roster::of_birth(members.map(|node| (node, Incarnation::default())))],
            is_born: false,
            pending: Vec::new(),
            known: BTreeMap::new(),
            incarnations: BTreeMap::new(),
            removed: BTreeMap::new(),
            votes: BTreeMap::new(),
            acknowledged: (LogIndex(0), Term(0)),
            marks: Marks::default(),
        }
    }

    /// What was seen.
    pub fn marks(&self) -> &Marks {
        &self.marks
    }

    /// The cell was restored from a backup: those that it was born with are born with it anew.
    pub fn on_restored(&mut self) {
        let born = Memberships::new(self.committed[0].members());
        *self = Memberships { marks: self.marks, ..born };
    }

    /// The cell is born, by this manifest. Whoever was the first to be born may have died before it said so, so that lists
    /// may have been committed since.
    pub fn on_born(&mut self, manifest: &Manifest<'_>) {
        if !std::mem::replace(&mut self.is_born, true) {
            let born = || manifest.members.iter().map(|member| (member.node, member.incarnation));
            self.committed[0] = Roster::of_birth(born());
            for (node, incarnation) in born() {
                self.incarnations.entry(node).or_insert(incarnation);
            }
        }
    }

    /// The newest list that is committed.
    pub fn newest(&self) -> &Roster {
        self.committed.last().expect("there is the one of the birth")
    }

    /// How many lists were committed, that of the birth among them.
    pub fn count(&self) -> usize {
        self.committed.len()
    }

    /// The lists that may be the one that counts, now or when what is on its way is committed.
    pub fn countable(&self) -> impl Iterator<Item = &Roster> {
        std::iter::once(self.newest()).chain(self.pending.iter().map(|list| &list.roster))
    }

    /// Whether a node was a member, or can be none any more, and is none.
    pub fn has_removed(&self, node: NodeId) -> bool {
        node <= self.highest() && self.newest().seat(node).is_none()
    }

    /// The highest id that was a member.
    fn highest(&self) -> NodeId {
        self.incarnations.last_key_value().map_or(NodeId(0), |(node, _)| *node)
    }

    /// The lists in a log, the newest first, and that of the birth.
    pub fn lists_in<'a>(&'a self, log: &'a [(Term, Vec<u8>)]) -> impl Iterator<Item = &'a Roster> {
        // An index and a term name an entry (see `matching`).
        let lists = self.known.iter().rev().filter_map(|((index, term), roster)| {
            let at = usize::try_from(index.0 - 1).expect("a run is short");
            log.get(at).is_some_and(|(own, _)| own == term).then_some(roster)
        });
        lists.chain(self.committed.first())
    }

    fn newest_in<'a>(&'a self, log: &'a [(Term, Vec<u8>)]) -> &'a Roster {
        self.lists_in(log).next().expect("there is the one of the birth")
    }

    /// A replica appends an entry behind `log`; `committed` is how far anybody has applied.
    ///
    /// # Errors
    /// It is a list that may not follow the one before it.
    pub fn on_appended(
        &mut self,
        node: NodeId,
        log: &[(Term, Vec<u8>)],
        term: Term,
        payload: &[u8],
        committed: LogIndex,
    ) -> Verdict {
        let index = LogIndex(log.len() as u64 + 1);
        let Some(roster) = list_in(index, payload) else { return Ok(()) };
        if self.known.contains_key(&(index, term)) {
            return Ok(());
        }
        let before = self.newest_in(log);
        let verdict = match roster.voters.symmetric_difference(&before.voters).count() {
            0 | 1 if before.index <= committed => Ok(()),
            0 | 1 => violated(
                ONE_AT_A_TIME,
                format!(
                    "node {node} appends a list at {index} of term {term} behind that at {}, and {committed} is committed",
                    before.index
                ),
            ),
            _ => violated(
                ONE_AT_A_TIME,
                format!(
                    "node {node} appends at {index} of term {term} voters {:?} behind voters {:?}",
                    roster.voters, before.voters
                ),
            ),
        };
        self.known.insert((index, term), roster.clone());
        self.pending.push(Pending { term, roster, is_certain: false });
        verdict
    }

    /// A process takes its log for committed through an entry, which it need not have applied. That is not forgotten when
    /// it dies; nor is it believed of a list that `is_on_disks` does not find on the disks of a majority of its voters.
    pub fn on_certain(
        &mut self,
        log: &[(Term, Vec<u8>)],
        through: LogIndex,
        is_on_disks: impl Fn(Term, &Roster) -> bool,
    ) {
        for list in self.pending.iter_mut().filter(|list| !list.is_certain && list.roster.index <= through) {
            let at = usize::try_from(list.roster.index.0 - 1).expect("a run is short");
            let is_own = log.get(at).is_some_and(|(own, _)| *own == list.term);
            list.is_certain = is_own && is_on_disks(list.term, &list.roster);
        }
    }

    /// A log is about to lose what it has from an index on.
    pub fn on_truncated(&mut self, log: &[(Term, Vec<u8>)], from: LogIndex) {
        if self.newest_in(log).index >= from.max(LogIndex(1)) {
            self.marks.set(Mark::ChangeTakenBack);
        }
    }

    /// A snapshot that stands for these entries is about to take the place of a log.
    pub fn on_installed(&mut self, log: &[(Term, Vec<u8>)], entries: &[(Term, Vec<u8>)]) {
        if self.newest_in(entries).index > self.newest_in(log).index {
            self.marks.set(Mark::InstallBroughtList);
        }
    }

    /// An entry is committed; leaders up to `newest` have been elected. Tells who was removed by it.
    ///
    /// # Errors
    /// It is a list that may not follow the one before it.
    pub fn on_committed(
        &mut self,
        index: LogIndex,
        payload: &[u8],
        newest: Term,
    ) -> Result<Option<NodeId>, super::Violation> {
        self.pending.retain(|list| list.roster.index > index);
        let Some(roster) = list_in(index, payload) else { return Ok(None) };
        let (before, highest) = (self.newest().clone(), self.highest());
        for (node, seat) in &roster.seats {
            let known = self.incarnations.insert(*node, seat.incarnation);
            let is_right = match known {
                Some(known) => known == seat.incarnation && before.seats.contains_key(node),
                None => *node > highest,
            };
            if !is_right {
                return violated(
                    ONE_INCARNATION,
                    format!(
                        "entry {index} has node {node} in incarnation {:?}; it was {known:?}, ids go to {highest}, and before \
                         that the members were {:?}",
                        seat.incarnation,
                        before.members().collect::<Vec<_>>()
                    ),
                );
            }
            match before.seats.get(node) {
                None => {
                    self.marks.set(Mark::LearnerAdded);
                    if node.0 > highest.0 + 1 {
                        self.marks.set(Mark::IdLeftOut);
                    }
                }
                Some(old) if !old.is_voter && seat.is_voter => self.marks.set(Mark::LearnerPromoted),
                Some(_) => {}
            }
        }
        if roster.voters.symmetric_difference(&before.voters).count() > 1 {
            return violated(
                ONE_AT_A_TIME,
                format!("entry {index} has voters {:?} behind voters {:?}", roster.voters, before.voters),
            );
        }
        let gone = before.seats.iter().find(|(node, _)| !roster.seats.contains_key(node));
        if let Some((node, seat)) = gone {
            self.removed.insert(*node, newest);
            if seat.is_voter {
                self.marks.set(Mark::VoterRemoved);
            }
        }
        let gone = gone.map(|(node, _)| *node);
        self.committed.push(roster);
        Ok(gone)
    }

    /// A vote is written down.
    pub fn on_vote(&mut self, voter: NodeId, term: Term, vote: u16) {
        if vote > 0 {
            self.votes.entry((term, vote)).or_default().insert(voter);
        }
    }

    /// A node begins to lead.
    ///
    /// # Errors
    /// It may not.
    pub fn on_leading(&self, claim: &Claim<'_>) -> Verdict {
        let Claim { node, term, log, voters } = *claim;
        let roster = self.newest_in(log);
        let votes = self.votes.get(&(term, node.0));
        let own = votes.map_or(0, |votes| votes.intersection(&roster.voters).count());
        if own * 2 <= roster.voters.len() {
            return violated(
                ELECTED,
                format!("node {node} leads in term {term} by {votes:?}; its log names {:?}", roster.voters),
            );
        }
        if *voters != roster.voters {
            return violated(
                KNOWN,
                format!("node {node} leads {voters:?} in term {term}; its log names {:?}", roster.voters),
            );
        }
        if self.removed.get(&node).is_some_and(|then| term > *then) {
            return violated(OVER, format!("node {node} leads in term {term}, and was removed before"));
        }
        let (acknowledged, then) = self.acknowledged;
        if term > then && roster.index < acknowledged {
            return violated(
                KEPT,
                format!(
                    "node {node} leads in term {term} by the list at {}; that at {acknowledged} was acknowledged",
                    roster.index
                ),
            );
        }
        Ok(())
    }

    /// An operator is told that a change is done which he asked for when `count` lists were committed; leaders up to
    /// `newest` have been elected.
    ///
    /// # Errors
    /// No list since then shows it.
    pub fn on_done(&mut self, change: &MemberChange<'_>, count: usize, newest: Term) -> Verdict {
        match self.committed[count - 1..].iter().find(|roster| roster.shows(change)) {
            Some(roster) if roster.index > self.acknowledged.0 => self.acknowledged = (roster.index, newest),
            Some(_) => {}
            None => {
                return violated(
                    KEPT,
                    format!(
                        "an operator is told that {change:?} is done; the members are {:?}",
                        self.newest()
                    ),
                );
            }
        }
        Ok(())
    }

    /// A node ends because it was removed, or because its id was left out. Nobody need have applied the list that says so:
    /// whoever tells a node knows that it is committed, and applies it when the turn comes to it. That a majority of disks
    /// has it is not enough: one of an older term may yet give way to another (Raft, figure 8).
    ///
    /// # Errors
    /// It was not.
    pub fn on_removed(&mut self, node: NodeId) -> Verdict {
        let mut highest = self.highest();
        let mut certain = self.pending.iter().filter(|list| list.is_certain);
        let is_coming = certain.any(|list| {
            highest = highest.max(list.roster.highest());
            node <= highest && list.roster.seat(node).is_none()
        });
        if !self.has_removed(node) && !is_coming {
            return violated(
                REMOVED,
                format!("node {node} takes itself for removed; the members are {:?}", self.newest().seats),
            );
        }
        if self.removed.contains_key(&node) {
            self.marks.set(Mark::RemovedNodeEnded);
        } else if !self.incarnations.contains_key(&node) {
            self.marks.set(Mark::LeftOutNodeEnded);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
