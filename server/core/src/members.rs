//! Who the members of a cell are, as a replica keeps it (ARCHITECTURE section 4.1, "Membership").
//!
//! Invariant: members come by rising id, each once, and an id is given once ever. Deliberately absent: from which entry
//! on a list counts, and whether its voters can be reached; both are Raft's.

use std::fmt;

use lockstep_wire::cursor::Reader;
use lockstep_wire::limit::MEMBERS_MAX;
use lockstep_wire::mutant::{self, Mutant};
use lockstep_wire::peer::MemberIncarnation;
use lockstep_wire::{Decoded, Incarnation, LogIndex, MemberChange, MemberRow, Members, NodeId, Rows};

use crate::cell::Member;

/// How many ids a newcomer may leave out: as many as changes that only other cells have made.
const ID_GAP_MAX: u32 = 16;

/// The members of a cell from some entry of its log on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Membership {
    /// The highest id that any member ever had.
    node_max: NodeId,
    members: Vec<Listed>,
}

/// A member in its list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed {
    /// The node.
    pub node: NodeId,
    /// The incarnation of its data directory.
    pub incarnation: Incarnation,
    /// Whether it votes.
    pub is_voter: bool,
    /// Where it serves members; empty: as each node's own configuration says.
    pub peer_address: String,
    /// Where it serves clients; empty likewise.
    pub client_address: String,
}

impl Listed {
    /// Where it serves members and clients, as far as is known: the log before the configuration.
    fn addresses<'a>(&'a self, configured: &'a [Member]) -> [&'a str; 2] {
        let configured = configured.iter().find(|member| member.node == self.node);
        let [peer, client] = configured.map_or(["", ""], |it| [&it.peer_address, &it.client_address]);
        let or = |listed: &'a str, other| if listed.is_empty() { other } else { listed };
        [or(&self.peer_address, peer), or(&self.client_address, client)]
    }

    fn row(&self) -> MemberRow<'_> {
        MemberRow {
            node: self.node,
            incarnation: self.incarnation,
            is_voter: self.is_voter,
            peer_address: &self.peer_address,
            client_address: &self.client_address,
        }
    }
}

/// Why the members are not changed as somebody wishes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemberObjection {
    /// Node 0 is nobody.
    Nobody,
    /// The id is, or was once, that of another directory, or was left out.
    IdTaken {
        /// The id.
        node: NodeId,
        /// The next one.
        next: u32,
    },
    /// The id would leave many others out, which could never be given any more.
    IdTooFar {
        /// The id.
        node: NodeId,
        /// The next one.
        next: u32,
    },
    /// An address is missing.
    NoAddress,
    /// Another member serves at one of the addresses.
    AddressTaken {
        /// The node that was to serve there.
        node: NodeId,
        /// The one that does.
        by: NodeId,
    },
    /// The cell has as many members as a cell may have.
    Full,
    /// The node is not a member.
    NotMember(NodeId),
    /// Another change is not committed yet.
    ChangeUnderWay,
    /// The learner's log is not where the leader's is.
    NotCaughtUp {
        /// The learner.
        node: NodeId,
        /// How many entries it lacks, as far as is known.
        lag: u64,
    },
    /// The learner has not said yet what it has.
    NotAnswered(NodeId),
    /// The node is not heard.
    Silent(NodeId),
    /// Nobody would have a vote any more.
    LastVoter(NodeId),
    /// Of the voters that there would be, too few are heard.
    NoMajority {
        /// Those that are heard.
        heard: usize,
        /// All of them.
        voters: usize,
    },
    /// The node leads.
    Leads(NodeId),
}

impl MemberObjection {
    /// Whether the request could never be granted as it stands: a field of it is wrong, not the moment.
    pub(crate) fn is_about_request(self) -> bool {
        match self {
            MemberObjection::Nobody
            | MemberObjection::IdTaken { .. }
            | MemberObjection::IdTooFar { .. }
            | MemberObjection::NoAddress
            | MemberObjection::AddressTaken { .. }
            | MemberObjection::NotMember(_) => true,
            MemberObjection::Full
            | MemberObjection::ChangeUnderWay
            | MemberObjection::NotCaughtUp { .. }
            | MemberObjection::NotAnswered(_)
            | MemberObjection::Silent(_)
            | MemberObjection::LastVoter(_)
            | MemberObjection::NoMajority { .. }
            | MemberObjection::Leads(_) => false,
        }
    }
}

impl fmt::Display for MemberObjection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            MemberObjection::Nobody => f.write_str("there is no node 0"),
            MemberObjection::IdTaken { node, next } => write!(
                f,
                "the id {node} was given to another directory or left out, and ids are never used again, not even by the same \
                 machine; format the node with the next one, {next}"
            ),
            MemberObjection::IdTooFar { node, next } => write!(
                f,
                "node {node} would leave ids out, which could not be given later; format the node with the next one, {next}"
            ),
            MemberObjection::NoAddress => {
                f.write_str("the addresses are missing: say where the node serves members and clients")
            }
            MemberObjection::AddressTaken { node, by } => write!(
                f,
                "node {by} serves at one of the addresses of node {node} already; correct that, or move node {by} first"
            ),
            MemberObjection::Full => write!(f, "a cell has at most {MEMBERS_MAX} members; remove one first"),
            MemberObjection::NotMember(node) => write!(f, "node {node} is no member of this cell"),
            MemberObjection::ChangeUnderWay => {
                f.write_str("the last change of the members is not committed yet; try again when it is")
            }
            MemberObjection::NotCaughtUp { node, lag } => {
                let noun = if *lag == 1 { "entry" } else { "entries" };
                write!(f, "node {node} lacks {lag} {noun}; promote it when it has caught up")
            }
            MemberObjection::NotAnswered(node) => {
                write!(f, "node {node} has not said yet what it has; promote it when it has caught up")
            }
            MemberObjection::Silent(node) => write!(f, "node {node} is not heard; start it first"),
            MemberObjection::LastVoter(node) => {
                write!(
                    f,
                    "node {node} is the last voter, and no cell can be without any; promote another one first"
                )
            }
            MemberObjection::NoMajority { heard, voters } => write!(
                f,
                "of the {voters} voters that there would be only {heard} are heard, which is no majority: the cell \
                 would stand still; start others, or add and promote new ones first"
            ),
            MemberObjection::Leads(node) => {
                write!(f, "node {node} leads the cell; have it hand over first (transfer-leader)")
            }
        }
    }
}

impl Membership {
    /// These members, by rising id, and the highest id that any ever had.
    pub fn new(node_max: NodeId, members: Vec<Listed>) -> Membership {
        Membership { node_max, members }
    }

    /// Nobody: what a node knows that has yet to join.
    pub(crate) fn none() -> Membership {
        Membership { node_max: NodeId(0), members: Vec::new() }
    }

    /// All of these as voters, at the addresses of each node's configuration.
    pub(crate) fn of_birth(members: &[MemberIncarnation]) -> Membership {
        let listed = |member: &MemberIncarnation| Listed {
            node: member.node,
            incarnation: member.incarnation,
            is_voter: true,
            peer_address: String::new(),
            client_address: String::new(),
        };
        Membership {
            node_max: members.last().map_or(NodeId(0), |member| member.node),
            members: members.iter().map(listed).collect(),
        }
    }

    pub(crate) fn of(members: &Members<'_>) -> Membership {
        let listed = |row: MemberRow<'_>| Listed {
            node: row.node,
            incarnation: row.incarnation,
            is_voter: row.is_voter,
            peer_address: row.peer_address.to_owned(),
            client_address: row.client_address.to_owned(),
        };
        Membership { node_max: members.node_max, members: members.members.iter().map(listed).collect() }
    }

    /// Hands the list out as a message carries it.
    pub(crate) fn with_rows<T>(&self, take: impl FnOnce(&Members<'_>) -> T) -> T {
        let rows: Vec<MemberRow<'_>> = self.members.iter().map(Listed::row).collect();
        take(&Members { node_max: self.node_max, members: Rows::Slice(&rows) })
    }

    /// Reads a list that [`Membership::with_rows`] has put.
    pub(crate) fn read(reader: &mut Reader<'_>) -> Decoded<Membership> {
        Members::read(reader).map(|members| Membership::of(&members))
    }

    /// The highest id that any member ever had.
    pub fn node_max(&self) -> NodeId {
        self.node_max
    }

    /// The members, by id.
    pub fn members(&self) -> &[Listed] {
        &self.members
    }

    /// A member, if the node is one.
    pub fn get(&self, node: NodeId) -> Option<&Listed> {
        let at = self.members.binary_search_by_key(&node, |member| member.node).ok()?;
        Some(&self.members[at])
    }

    /// Whether a node votes.
    pub fn is_voter(&self, node: NodeId) -> bool {
        self.get(node).is_some_and(|member| member.is_voter)
    }

    /// The voters, by id.
    pub fn voters(&self) -> impl Iterator<Item = NodeId> {
        self.members.iter().filter(|member| member.is_voter).map(|member| member.node)
    }

    /// How many voters are a majority.
    pub fn majority(&self) -> usize {
        self.voters().count() / 2 + 1
    }

    /// Whether the node was a member before, and is none for ever.
    pub fn has_removed(&self, node: NodeId) -> bool {
        node <= self.node_max && self.get(node).is_none()
    }

    /// The list after a change; the same one when there is nothing to change, so that a request may be sent again. Members
    /// that are listed without addresses serve where they are `configured`.
    ///
    /// # Errors
    /// When there can be no such list.
    pub fn changed(
        &self,
        change: &MemberChange<'_>,
        configured: &[Member],
    ) -> Result<Membership, MemberObjection> {
        let node = change.node();
        if node == NodeId(0) {
            return Err(MemberObjection::Nobody);
        }
        let mut next = self.clone();
        let at = self.members.binary_search_by_key(&node, |member| member.node);
        match (change, at) {
            (MemberChange::AddLearner { incarnation, peer_address, client_address, .. }, at) => {
                // A member it is wherever it serves by now, and with a vote as without.
                if at.is_ok_and(|at| self.members[at].incarnation == *incarnation) {
                    return Ok(next);
                }
                self.object_to_id(node)?;
                self.object_to_addresses(node, [peer_address, client_address], configured)?;
                if self.members.len() >= MEMBERS_MAX {
                    return Err(MemberObjection::Full);
                }
                let learner = Listed {
                    node,
                    incarnation: *incarnation,
                    is_voter: false,
                    peer_address: (*peer_address).to_owned(),
                    client_address: (*client_address).to_owned(),
                };
                let at = self.members.partition_point(|member| member.node < node);
                next.members.insert(at, learner);
                next.node_max = next.node_max.max(node);
            }
            (MemberChange::Promote { .. }, Ok(at)) => next.members[at].is_voter = true,
            (MemberChange::Remove { .. }, Ok(at)) => {
                next.members.remove(at);
                if next.voters().next().is_none() {
                    return Err(MemberObjection::LastVoter(node));
                }
            }
            (MemberChange::SetAddresses { peer_address, client_address, .. }, Ok(at)) => {
                self.object_to_addresses(node, [peer_address, client_address], configured)?;
                (*peer_address).clone_into(&mut next.members[at].peer_address);
                (*client_address).clone_into(&mut next.members[at].client_address);
            }
            (MemberChange::Remove { .. }, Err(_)) if self.has_removed(node) => {}
            (
                MemberChange::Promote { .. }
                | MemberChange::Remove { .. }
                | MemberChange::SetAddresses { .. },
                Err(_),
            ) => return Err(MemberObjection::NotMember(node)),
        }
        Ok(next)
    }

    /// Why no node can be added under this id. Whoever is not above the highest one was removed, so that one which is left
    /// out is lost.
    fn object_to_id(&self, node: NodeId) -> Result<(), MemberObjection> {
        let next = u32::from(self.node_max.0) + 1;
        let is_reused = node <= self.node_max && self.get(node).is_none() && mutant::is(Mutant::NodeIdReused);
        match u32::from(node.0) {
            _ if is_reused => Ok(()),
            id if id < next => Err(MemberObjection::IdTaken { node, next }),
            // A change that other cells have made and this one has not leaves a gap.
            id if id <= next + ID_GAP_MAX => Ok(()),
            _ => Err(MemberObjection::IdTooFar { node, next }),
        }
    }

    /// Why a node cannot serve at these addresses.
    fn object_to_addresses(
        &self,
        node: NodeId,
        addresses: [&str; 2],
        configured: &[Member],
    ) -> Result<(), MemberObjection> {
        if addresses.contains(&"") {
            return Err(MemberObjection::NoAddress);
        }
        let has_one = |it: &&Listed| it.addresses(configured).iter().any(|held| addresses.contains(held));
        let mut others = self.members.iter().filter(|member| member.node != node);
        others.find(has_one).map_or(Ok(()), |it| Err(MemberObjection::AddressTaken { node, by: it.node }))
    }

    /// Why the cell would stand still if these were its members and only those could be heard of whom that is said.
    ///
    /// # Errors
    /// When they are no majority.
    pub fn must_be_heard(&self, is_heard: impl Fn(NodeId) -> bool) -> Result<(), MemberObjection> {
        let voters = self.voters().count();
        let heard = self.voters().filter(|node| is_heard(*node)).count();
        match heard >= self.majority() {
            true => Ok(()),
            false => Err(MemberObjection::NoMajority { heard, voters }),
        }
    }
}

/// The lists of a log: the one that is known to be committed, and those of the entries behind it, which count already.
#[derive(Clone, Debug)]
pub(crate) struct MembershipHistory {
    /// The list of the last entry that is known to be committed and has one; 0 for the birth.
    committed: (LogIndex, Membership),
    newer: Vec<(LogIndex, Membership)>,
}

impl MembershipHistory {
    pub(crate) fn new(committed: Membership) -> MembershipHistory {
        MembershipHistory { committed: (LogIndex(0), committed), newer: Vec::new() }
    }

    /// The one that counts: the newest in the log, committed or not (Raft dissertation, section 4.1).
    pub(crate) fn current(&self) -> &Membership {
        &self.newer.last().unwrap_or(&self.committed).1
    }

    pub(crate) fn committed(&self) -> &Membership {
        &self.committed.1
    }

    /// Whether the newest one is not known to be committed.
    pub(crate) fn is_changing(&self) -> bool {
        !self.newer.is_empty()
    }

    /// All of them, the newest first.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Membership> {
        self.newer.iter().rev().chain(std::iter::once(&self.committed)).map(|(_, list)| list)
    }

    pub(crate) fn push(&mut self, index: LogIndex, list: Membership) {
        self.newer.push((index, list));
    }

    /// The entries from `first` on are gone. Says whether another list counts now.
    pub(crate) fn truncate_from(&mut self, first: LogIndex) -> bool {
        let before = self.newer.len();
        self.newer.retain(|(index, _)| *index < first);
        self.newer.len() < before
    }

    /// The log is committed through here. Says whether that is news about a list.
    pub(crate) fn commit(&mut self, through: LogIndex) -> bool {
        let count = self.newer.partition_point(|(index, _)| *index <= through);
        let Some(last) = self.newer.drain(..count).next_back() else { return false };
        self.committed = last;
        true
    }

    /// The state of a snapshot has replaced what the log said through its index; `is_log_kept` tells whether the log goes
    /// on with the entries that it had.
    pub(crate) fn install(&mut self, index: LogIndex, list: Option<Membership>, is_log_kept: bool) {
        self.newer.retain(|(at, _)| is_log_kept && *at > index);
        // Whoever lost its snapshot may know of more that is committed, and gets an older state than that.
        let is_behind = is_log_kept && self.committed.0 > index;
        if let Some(list) = list.filter(|_| !is_behind) {
            self.committed = (index, list);
        }
    }

    /// The birth has said who the members are.
    pub(crate) fn begin(&mut self, list: Membership) {
        if self.committed.0 == LogIndex(0) {
            self.committed.1 = list;
        }
    }
}

#[cfg(test)]
mod tests;
