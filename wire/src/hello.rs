//! The first message of a connection in each direction (ARCHITECTURE section 3, `Hello`).
//!
//! Invariant: nothing else is understood before a valid Hello, and a connection serves the cell named
//! in it. Deliberately absent: the decision whether to welcome; that is `core::hello`.

use crate::cursor::{DecodeError, Decoded, Reader, Writer};
use crate::limit::{ADDRESS_BYTES_MAX, CREDENTIALS_BYTES_MAX};
use crate::reply::{DETAIL_BYTES_MAX, put_detail};
use crate::{ClusterId, Incarnation, NodeId, Status};

/// The protocol versions that this build speaks, first and last.
pub const PROTOCOL: (u16, u16) = (1, 1);

/// Who speaks on a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// A client of the cell named in the head.
    Client,
    /// Another member, with votes, beats and replies: small and never behind bulk.
    PeerControl(PeerIdentity),
    /// Another member, with entries.
    PeerBulk(PeerIdentity),
}

/// Which node and which shard of it speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerIdentity {
    /// The node that opened the connection.
    pub node: NodeId,
    /// The node it means to reach.
    pub to: NodeId,
    /// The shard of both whose cells the connection carries.
    pub shard: u16,
    /// The life of the data directory of `node`.
    pub incarnation: Incarnation,
}

/// What whoever connects says first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hello<'a> {
    /// The first protocol version it speaks.
    pub protocol_min: u16,
    /// The last one.
    pub protocol_max: u16,
    /// The cluster it means; all zero for a client that does not know it yet.
    pub cluster: ClusterId,
    /// Who it is.
    pub role: Role,
    /// Where a member serves members, `host:port`; not sent by a client.
    pub peer_address: &'a str,
    /// What it proves its identity with; empty until there is a policy.
    pub credentials: &'a [u8],
}

/// The answer of whoever was connected to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HelloReply<'a> {
    /// `OK`, or why the connection is about to be closed.
    pub status: Status,
    /// What to know about the refusal; empty on a welcome.
    pub detail: &'a str,
    /// The protocol version of the connection.
    pub protocol: u16,
    /// The node that answers.
    pub node: NodeId,
    /// Its cluster.
    pub cluster: ClusterId,
    /// The life of its data directory.
    pub incarnation: Incarnation,
    /// The shortest TTL the cell grants, in ms.
    pub ttl_ms_min: u32,
    /// The longest TTL the cell grants, in ms.
    pub ttl_ms_max: u32,
    /// The cell's leader as far as the node knows; 0 for none.
    pub leader: NodeId,
    /// Where that leader serves clients; empty when not known.
    pub leader_address: &'a str,
}

impl<'a> Hello<'a> {
    /// Appends the body.
    pub fn put(&self, out: &mut Vec<u8>) {
        out.put_u16(self.protocol_min);
        out.put_u16(self.protocol_max);
        out.put(&self.cluster.0);
        let (code, identity) = match self.role {
            Role::Client => (0, None),
            Role::PeerControl(identity) => (1, Some(identity)),
            Role::PeerBulk(identity) => (2, Some(identity)),
        };
        out.put_u8(code);
        if let Some(identity) = identity {
            out.put_u16(identity.node.0);
            out.put_u16(identity.to.0);
            out.put_u16(identity.shard);
            out.put(&identity.incarnation.0);
            out.put_bytes(self.peer_address.as_bytes());
        }
        out.put_bytes(self.credentials);
    }

    /// Reads the body.
    pub fn decode(body: &'a [u8]) -> Decoded<Hello<'a>> {
        let mut reader = Reader::new(body);
        let protocol_min = reader.u16("protocol_min")?;
        let protocol_max = reader.u16("protocol_max")?;
        if protocol_max < protocol_min {
            return Err(DecodeError::Invalid("protocol_max"));
        }
        let cluster = ClusterId(reader.random("cluster")?);
        let code = reader.u8("role")?;
        let mut peer_address = "";
        let role = match code {
            0 => Role::Client,
            1 | 2 => {
                let identity = PeerIdentity {
                    node: NodeId(reader.u16("node")?),
                    to: NodeId(reader.u16("to")?),
                    shard: reader.u16("shard")?,
                    incarnation: Incarnation(reader.random("incarnation")?),
                };
                peer_address = reader.text(ADDRESS_BYTES_MAX, "peer_address")?;
                if code == 1 { Role::PeerControl(identity) } else { Role::PeerBulk(identity) }
            }
            _ => return Err(DecodeError::Invalid("role")),
        };
        let credentials = reader.bytes(CREDENTIALS_BYTES_MAX, "credentials")?;
        reader.finish()?;
        Ok(Hello { protocol_min, protocol_max, cluster, role, peer_address, credentials })
    }
}

impl<'a> HelloReply<'a> {
    /// Appends the body.
    pub fn put(&self, out: &mut Vec<u8>) {
        out.put_u8(self.status as u8);
        put_detail(self.detail, out);
        out.put_u16(self.protocol);
        out.put_u16(self.node.0);
        out.put(&self.cluster.0);
        out.put(&self.incarnation.0);
        out.put_u32(self.ttl_ms_min);
        out.put_u32(self.ttl_ms_max);
        out.put_u16(self.leader.0);
        out.put_bytes(self.leader_address.as_bytes());
    }

    /// Reads the body.
    pub fn decode(body: &'a [u8]) -> Decoded<HelloReply<'a>> {
        let mut reader = Reader::new(body);
        let reply = HelloReply {
            status: Status::from_code(reader.u8("status")?)?,
            detail: reader.text(DETAIL_BYTES_MAX, "detail")?,
            protocol: reader.u16("protocol")?,
            node: NodeId(reader.u16("node")?),
            cluster: ClusterId(reader.random("cluster")?),
            incarnation: Incarnation(reader.random("incarnation")?),
            ttl_ms_min: reader.u32("ttl_ms_min")?,
            ttl_ms_max: reader.u32("ttl_ms_max")?,
            leader: NodeId(reader.u16("leader")?),
            leader_address: reader.text(ADDRESS_BYTES_MAX, "leader_address")?,
        };
        reader.finish()?;
        Ok(reply)
    }
}
