//! Who the members of a cell are, and how that changes (ARCHITECTURE section 4.1, "Membership").
//!
//! Invariant: members come by rising id, each once, and no id is above the highest one that was ever given: a list has
//! one encoding, and an id that is not in it and not above that was a member's once and is nobody's for ever.
//! Deliberately absent: which change is allowed, which is the leader's to say.

use crate::cursor::{DecodeError, Decoded, Reader, Writer};
use crate::entry::{self, Command};
use crate::limit::{ADDRESS_BYTES_MAX, MEMBERS_MAX};
use crate::rows::{Row, Rows};
use crate::{Incarnation, NodeId};

/// A member as the log says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemberRow<'a> {
    /// The node.
    pub node: NodeId,
    /// The life of its data directory; another one under this id is not the member.
    pub incarnation: Incarnation,
    /// Whether it votes and counts for a majority; a learner only gets the log.
    pub is_voter: bool,
    /// Where it serves members; empty: as each node's own configuration says.
    pub peer_address: &'a str,
    /// Where it serves clients; empty likewise.
    pub client_address: &'a str,
}

impl<'a> Row<'a> for MemberRow<'a> {
    fn put(&self, out: &mut Vec<u8>) {
        out.put_u16(self.node.0);
        out.put(&self.incarnation.0);
        out.put_bool(self.is_voter);
        out.put_bytes(self.peer_address.as_bytes());
        out.put_bytes(self.client_address.as_bytes());
    }
    fn read(reader: &mut Reader<'a>) -> Decoded<MemberRow<'a>> {
        Ok(MemberRow {
            node: NodeId(reader.u16("node")?),
            incarnation: Incarnation(reader.random("incarnation")?),
            is_voter: reader.bool("is_voter")?,
            peer_address: reader.text(ADDRESS_BYTES_MAX, "peer_address")?,
            client_address: reader.text(ADDRESS_BYTES_MAX, "client_address")?,
        })
    }
}

/// The members of a cell from one entry of its log on.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Members<'a> {
    /// The highest id that any member ever had.
    pub node_max: NodeId,
    /// The members, by id.
    pub members: Rows<'a, MemberRow<'a>>,
}

impl<'a> Members<'a> {
    /// Appends the list.
    pub fn put(&self, out: &mut Vec<u8>) {
        out.put_u16(self.node_max.0);
        self.members.put(out);
    }

    /// Reads a list.
    pub fn read(reader: &mut Reader<'a>) -> Decoded<Members<'a>> {
        let node_max = NodeId(reader.u16("node_max")?);
        let members: Rows<'a, MemberRow<'a>> = Rows::read(reader, MEMBERS_MAX, "members")?;
        let mut last = NodeId(0);
        for member in members.iter() {
            if member.node <= last || member.node > node_max {
                return Err(DecodeError::Invalid("members"));
            }
            last = member.node;
        }
        // Without a voter nobody could ever commit another list.
        if !members.iter().any(|member| member.is_voter) {
            return Err(DecodeError::Invalid("members"));
        }
        Ok(Members { node_max, members })
    }

    /// The list in the payload of an entry, if that is what the entry is about. It counts from its append on, so it is
    /// looked for long before the entry is applied.
    pub fn in_entry(payload: &'a [u8]) -> Option<Decoded<Members<'a>>> {
        let kind = payload.get(2..4)?;
        (kind == entry::kind::MEMBERS.to_le_bytes()).then(|| match Command::decode(payload)? {
            Command::Members(members) => Ok(members),
            other => Err(DecodeError::UnknownKind(other.kind())),
        })
    }
}

/// One change of the members; one voter at a time (Raft dissertation, section 4.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemberChange<'a> {
    /// Adds a node that gets the log and has no vote.
    AddLearner {
        /// The node; its id is above every one that a member ever had.
        node: NodeId,
        /// The life of its data directory.
        incarnation: Incarnation,
        /// Where it serves members.
        peer_address: &'a str,
        /// Where it serves clients.
        client_address: &'a str,
    },
    /// Gives a learner that has caught up its vote.
    Promote {
        /// The learner.
        node: NodeId,
    },
    /// Takes a member out, for ever.
    Remove {
        /// The member.
        node: NodeId,
    },
    /// Says where a member serves from now on.
    SetAddresses {
        /// The member.
        node: NodeId,
        /// Where it serves members.
        peer_address: &'a str,
        /// Where it serves clients.
        client_address: &'a str,
    },
}

impl<'a> MemberChange<'a> {
    /// Whom it is about.
    pub fn node(&self) -> NodeId {
        match self {
            MemberChange::AddLearner { node, .. }
            | MemberChange::Promote { node }
            | MemberChange::Remove { node }
            | MemberChange::SetAddresses { node, .. } => *node,
        }
    }

    pub(crate) fn put(&self, out: &mut Vec<u8>) {
        out.put_u16(self.node().0);
        match self {
            MemberChange::AddLearner { incarnation, peer_address, client_address, .. } => {
                out.put(&incarnation.0);
                out.put_bytes(peer_address.as_bytes());
                out.put_bytes(client_address.as_bytes());
            }
            MemberChange::SetAddresses { peer_address, client_address, .. } => {
                out.put_bytes(peer_address.as_bytes());
                out.put_bytes(client_address.as_bytes());
            }
            MemberChange::Promote { .. } | MemberChange::Remove { .. } => {}
        }
    }

    pub(crate) fn read_add_learner(reader: &mut Reader<'a>) -> Decoded<MemberChange<'a>> {
        Ok(MemberChange::AddLearner {
            node: NodeId(reader.u16("node")?),
            incarnation: Incarnation(reader.random("incarnation")?),
            peer_address: reader.text(ADDRESS_BYTES_MAX, "peer_address")?,
            client_address: reader.text(ADDRESS_BYTES_MAX, "client_address")?,
        })
    }

    pub(crate) fn read_set_addresses(reader: &mut Reader<'a>) -> Decoded<MemberChange<'a>> {
        Ok(MemberChange::SetAddresses {
            node: NodeId(reader.u16("node")?),
            peer_address: reader.text(ADDRESS_BYTES_MAX, "peer_address")?,
            client_address: reader.text(ADDRESS_BYTES_MAX, "client_address")?,
        })
    }
}
