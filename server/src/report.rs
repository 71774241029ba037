//! Lines for whoever operates a node about what may come in floods.
//!
//! Invariant: of each kind at most one line a second is written, and it says how many were left out.
//! Deliberately absent: metrics, and lines about what happens rarely; those are written where it happens.

use std::collections::BTreeMap;
use std::io;
use std::time::{Duration, Instant};

use lockstep_ring::{Ring, Socket, net};
use lockstep_wire::{CellId, NodeId};

/// Between two lines of a kind.
const PAUSE: Duration = Duration::from_secs(1);

/// The kinds of lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    BadBytes,
    Unwelcome,
    NotWelcome(NodeId),
    MemberRefused(NodeId),
    Silent,
    Full,
    AcceptFailed,
    Overflow,
}

/// Writes lines, not too many.
#[derive(Debug, Default)]
pub(crate) struct Reporter {
    kinds: BTreeMap<Kind, (Instant, u64)>,
}

impl Reporter {
    /// Whether a line of this kind may be written now, and how many were left out since the last one.
    fn admit(&mut self, kind: Kind) -> Option<u64> {
        let now = Instant::now();
        match self.kinds.get_mut(&kind) {
            Some((last, left_out)) if now < *last + PAUSE => {
                *left_out += 1;
                None
            }
            Some((last, left_out)) => {
                *last = now;
                Some(std::mem::take(left_out))
            }
            None => {
                self.kinds.insert(kind, (now, 0));
                Some(0)
            }
        }
    }

    /// Somebody sent bytes that are no frame, or a frame that does not belong there.
    pub(crate) fn bad_bytes(&mut self, ring: &Ring, socket: Socket, reason: &str) {
        if let Some(left_out) = self.admit(Kind::BadBytes) {
            let from = address(ring, socket);
            tracing::warn!(from, reason, left_out, "closed a connection that does not speak this protocol");
        }
    }

    /// Somebody said a Hello that does not fit here.
    pub(crate) fn unwelcome(&mut self, detail: &str) {
        if let Some(left_out) = self.admit(Kind::Unwelcome) {
            tracing::warn!(detail, left_out, "refused a connection");
        }
    }

    /// A member does not welcome us, or what answers for it is not it.
    pub(crate) fn not_welcome(&mut self, node: NodeId, detail: &str) {
        if let Some(left_out) = self.admit(Kind::NotWelcome(node)) {
            tracing::warn!(%node, detail, left_out, "no link to a member");
        }
    }

    /// A member cannot take part in a cell, or this node cannot.
    pub(crate) fn member_refused(&mut self, node: NodeId, cell: CellId, peer: NodeId, reason: &str) {
        if let Some(left_out) = self.admit(Kind::MemberRefused(peer)) {
            tracing::warn!(%node, %cell, %peer, left_out, "{reason}");
        }
    }

    /// Somebody connected and said nothing.
    pub(crate) fn silent(&mut self, ring: &Ring, socket: Socket) {
        if let Some(left_out) = self.admit(Kind::Silent) {
            tracing::warn!(from = address(ring, socket), left_out, "closed a connection that said no Hello");
        }
    }

    /// There are as many connections as there may be.
    pub(crate) fn full(&mut self, connections_max: usize) {
        if let Some(left_out) = self.admit(Kind::Full) {
            tracing::warn!(connections_max, left_out, "refused a connection: there are too many");
        }
    }

    /// The kernel gave no socket.
    pub(crate) fn accept_failed(&mut self, error: &io::Error) {
        if let Some(left_out) = self.admit(Kind::AcceptFailed) {
            tracing::warn!(%error, left_out, "the kernel gave no socket; trying again shortly");
        }
    }

    /// A client does not read its answers.
    pub(crate) fn client_overflows(&mut self) {
        if let Some(left_out) = self.admit(Kind::Overflow) {
            tracing::warn!(left_out, "closed a connection whose client does not read its answers");
        }
    }

    /// A member does not read what it is sent.
    pub(crate) fn link_overflows(&mut self, node: NodeId) {
        if let Some(left_out) = self.admit(Kind::NotWelcome(node)) {
            tracing::warn!(%node, left_out, "closed the link to a member that does not read");
        }
    }
}

/// Where a connection comes from.
fn address(ring: &Ring, socket: Socket) -> String {
    let address = ring.with_socket(socket, |fd| net::peer_address(fd).ok()).flatten();
    address.map_or_else(|| "somebody".to_owned(), |address| address.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_leaves_one_line_and_a_count() {
        let mut reporter = Reporter::default();
        assert_eq!(reporter.admit(Kind::Silent), Some(0));
        assert_eq!(reporter.admit(Kind::Silent), None);
        assert_eq!(reporter.admit(Kind::Silent), None);
        assert_eq!(reporter.admit(Kind::Full), Some(0), "kinds are counted apart");
        reporter.kinds.get_mut(&Kind::Silent).unwrap().0 -= PAUSE;
        assert_eq!(reporter.admit(Kind::Silent), Some(2));
    }
}
